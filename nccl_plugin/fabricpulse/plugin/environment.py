"""The environment variables that make NCCL load the plugin, and a check of those that are set.

What each NCCL release looks for is from its loader (src/plugin/net.cc and src/plugin/profiler.cc of each release): it
tries the symbols of its own version first and then the older ones that it still supports.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fabricpulse.core.environment import Format, Variable, render
from fabricpulse.core.errors import UserError

NET_NAME = "fabricpulse"
# Of the file names that NCCL and RCCL look for when a plugin is named shortly, see links.py.
NET_PREFIXES = ("libnccl-net", "librccl-net")
PROFILER_PREFIXES = ("libnccl-profiler", "librccl-profiler")

# First NCCL release (major, minor) -> newest and oldest net version that it loads, newest and oldest profiler version.
_LOADS: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int] | None], ...] = (
    ((2, 30), (12, 6), (6, 1)),
    ((2, 29), (11, 6), (6, 1)),
    ((2, 28), (11, 6), (5, 1)),
    ((2, 27), (10, 6), (4, 1)),
    ((2, 26), (10, 6), (3, 1)),
    ((2, 24), (9, 5), (2, 1)),
    ((2, 23), (8, 5), (1, 1)),
    ((2, 20), (8, 5), None),
    ((2, 19), (7, 5), None),
    ((2, 13), (6, 4), None),
)
# 2.31 added profiler version 7 to what 2.30 loads.
_PROFILER_7 = (2, 31)
# From 2.21 on NCCL_NET_PLUGIN is tried as it is, so that it may be a path; before, libnccl-net-VALUE.so alone was.
_PATHS = (2, 21)


class Transport(StrEnum):
    """Who moves the job's data.

    auto : the plugin, unless this host has RDMA devices; then as observe. tcp, verbs : the plugin, over TCP or over
    queue pairs, whatever the host has. observe : NCCL's own transport; the plugin's profiler feeds telemetry.
    """

    AUTO = "auto"
    TCP = "tcp"
    VERBS = "verbs"
    OBSERVE = "observe"


@dataclass(frozen=True)
class JobEnvironment:
    """What to set in a job for one NCCL release.

    net, profiler : the versions that NCCL will choose from this library; net is 0 if NCCL keeps its own transport.
    takes_paths : whether that release lets NCCL_NET_PLUGIN be a path.
    """

    library: Path
    takes_paths: bool
    settings: tuple[Variable, ...]
    net: int
    profiler: int | None

    def render(self, style: Format, environment: Mapping[str, str]) -> str:
        """The settings in that format; `environment` is what prepended ones are prepended to.

        Raises UserError for a value that it cannot carry.
        """
        return render(self.settings, style, environment, net=self.net or None, profiler=self.profiler)


def parse_version(text: str) -> tuple[int, int]:
    """`2.27.3` or `2.27` as (2, 27). Raises UserError."""
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*([-+].*)?", text)
    if not match:
        raise UserError(f"NCCL version {text!r} is not of the form 2.27.3")
    return int(match.group(1)), int(match.group(2))


def exported_versions(library: Path) -> tuple[set[int], set[int]]:
    """The versions of the net and the profiler symbols that `library` exports. Raises UserError if it does not load."""
    try:
        handle = ctypes.CDLL(str(library), mode=os.RTLD_LOCAL | os.RTLD_LAZY)
    except OSError as error:
        raise UserError(f"{library} cannot be loaded: {error}") from error
    net = {version for version in range(4, 20) if hasattr(handle, f"ncclNetPlugin_v{version}")}
    profiler = {version for version in range(1, 20) if hasattr(handle, f"ncclProfiler_v{version}")}
    return net, profiler


def rdma_devices(folder: Path = Path("/sys/class/infiniband")) -> list[str]:
    """The RDMA devices that the kernel has, whatever the state of their ports: a link may be down just now."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def job_environment(
    library: Path, nccl: tuple[int, int] | None, profiler_only: bool = False, lanes: str | None = None
) -> JobEnvironment:
    """The variables for NCCL release `nccl` (None: the newest known).

    profiler_only : NCCL keeps its own transport and only feeds telemetry. lanes : FABRICPULSE_LANES; None: left
    to the plugin. Raises UserError when this library offers nothing that the release can load.
    """
    net_versions, profiler_versions = exported_versions(library)
    net_range, profiler_range = _loads(nccl or _PROFILER_7)
    net = max((v for v in net_versions if net_range[1] <= v <= net_range[0]), default=None)
    profiler = None
    if profiler_range is not None:
        profiler = max(
            (v for v in profiler_versions if profiler_range[1] <= v <= profiler_range[0]), default=None
        )
    release = ".".join(map(str, nccl or _PROFILER_7))
    if profiler_only:
        if profiler is None:
            raise UserError(
                f"NCCL {release} loads no profiler version that {library.name} has; use 2.27 or newer"
            )
        setting = Variable("NCCL_PROFILER_PLUGIN", str(library), "telemetry of NCCL's own transport")
        return JobEnvironment(library, True, (setting,), 0, profiler)
    if net is None:
        offered = ", ".join(f"v{v}" for v in sorted(net_versions)) or "none"
        raise UserError(
            f"NCCL {release} loads net plugins v{net_range[1]} to v{net_range[0]}, {library.name} offers {offered}; "
            f"use NCCL {_oldest(net_versions)} or newer"
        )
    takes_paths = (nccl or _PROFILER_7) >= _PATHS
    settings = [
        Variable(
            "NCCL_NET_PLUGIN",
            str(library) if takes_paths else NET_NAME,
            "loads the plugin; without it NCCL looks for libnccl-net.so only",
        ),
        Variable(
            "NCCL_NET",
            NET_NAME,
            "makes NCCL fail at start, not fall back in silence, if the plugin cannot be used",
        ),
    ]
    if not takes_paths:
        reason = f"where NCCL {release}, which takes no path, finds the plugin by its name"
        settings.append(Variable("LD_LIBRARY_PATH", str(library.parent), reason, prepended=True))
    if lanes is not None:
        settings.append(Variable("FABRICPULSE_LANES", lanes, "what lanes are made of: tcp or verbs"))
    if profiler is not None:
        settings.append(
            Variable("NCCL_PROFILER_PLUGIN", str(library), "per-collective bandwidth; may be left out")
        )
    return JobEnvironment(library, takes_paths, tuple(settings), net, profiler)


def _oldest(net_versions: set[int]) -> str:
    """The first NCCL release that loads one of these versions."""
    releases = [first for first, net, _ in _LOADS if any(net[1] <= v <= net[0] for v in net_versions)]
    return ".".join(map(str, min(releases, default=_LOADS[0][0])))


def check(wanted: JobEnvironment, environment: Mapping[str, str]) -> list[str]:
    """What is wrong with `environment` where `wanted` should be set, one sentence each; empty when it will work."""
    problems = []
    if wanted.net == 0 and environment.get("NCCL_NET", "").lower() == NET_NAME:
        problems.append(
            f"NCCL_NET={NET_NAME} moves the job to the plugin's lanes; unset it, or give --transport verbs or tcp"
        )
    for setting in wanted.settings:
        if (
            setting.prepended
        ):  # any folder serves that has the library or a link to it: looked at with its name
            continue
        found = environment.get(setting.name)
        if found is None:
            if setting.name != "NCCL_PROFILER_PLUGIN" or wanted.net == 0:
                problems.append(f"{setting.name} is not set; set it to {setting.value} ({setting.reason})")
        elif setting.name == "NCCL_NET":
            if found.lower() != setting.value:
                problems.append(f"NCCL_NET={found} chooses another transport; set it to {setting.value}")
        elif not wanted.takes_paths and "/" in found:
            problems.append(
                f"{setting.name}={found} is a path, which this NCCL does not take; set it to {setting.value}, and "
                f"LD_LIBRARY_PATH to {wanted.library.parent}"
            )
        elif not _names_library(
            found,
            wanted.library,
            environment.get("LD_LIBRARY_PATH", ""),
            NET_PREFIXES if setting.name == "NCCL_NET_PLUGIN" else PROFILER_PREFIXES,
            wanted.takes_paths,
        ):
            problems.append(
                f"{setting.name}={found} does not lead to {wanted.library}; LD_LIBRARY_PATH must have its folder, or "
                "one with a link to it"
            )
    algorithms = environment.get("NCCL_COLLNET_ENABLE", "0")
    if algorithms not in ("", "0"):
        problems.append("NCCL_COLLNET_ENABLE is set, but the plugin offers no collective offload; unset it")
    return problems


def _names_library(
    value: str, library: Path, load_path: str, prefixes: tuple[str, ...], as_it_is: bool
) -> bool:
    """Whether a plugin variable leads NCCL or RCCL to `library`: a path, a file name on the loader's path, or a short
    name to which one of `prefixes` belongs. as_it_is : whether the value may be a file name itself."""
    for entry in value.split(","):
        if "/" in entry:
            if Path(entry).exists() and Path(entry).resolve() == library.resolve():
                return True
        else:
            # NCCL's and RCCL's rule: the name as it is, then with the prefix of its kind (links.py).
            folders = [Path(folder) for folder in load_path.split(":") if folder]
            names = (*([entry] if as_it_is else []), *(f"{prefix}-{entry}.so" for prefix in prefixes))
            if any((folder / name).resolve() == library.resolve() for folder in folders for name in names):
                return True
    return False


def _loads(nccl: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int] | None]:
    for first, net, profiler in _LOADS:
        if nccl >= first:
            if profiler is not None and nccl >= _PROFILER_7:
                return net, (7, profiler[1])
            return net, profiler
    raise UserError(
        f"NCCL {'.'.join(map(str, nccl))} is too old for net plugins of any version that fabricpulse has"
    )
