"""Finds Prometheus and Alertmanager.

Looked for in FABRICPULSE_TOOLS (a directory, or several as in PATH) if it is set; then on PATH; then in
`.tools/usr/bin` of the checkout, where `scripts/fetch_tools.sh` unpacks Debian's packages.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.core.errors import UserError

TOOLS_ENV = "FABRICPULSE_TOOLS"

# Debian calls its Alertmanager prometheus-alertmanager; upstream's archive calls it alertmanager.
_NAMES = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("alertmanager", "prometheus-alertmanager"),
    "amtool": ("amtool",),
}


@dataclass(frozen=True)
class Tools:
    """The programs of one Prometheus and one Alertmanager release."""

    prometheus: Path
    promtool: Path
    alertmanager: Path
    amtool: Path


def find_tools(directory: Path | None = None) -> Tools:
    """All four programs; with `directory`, only from there.

    Raises UserError that names the missing ones, or a folder of FABRICPULSE_TOOLS that holds none of them: whoever
    names a release means that one, and another found on PATH would pass for it unseen.
    """
    if directory is None:
        for named in _named_folders():
            if not any(find_tool(name, named) for name in _NAMES):
                raise UserError(
                    f"{TOOLS_ENV} names {named}, which holds none of {', '.join(_NAMES)}: correct it, or unset it to "
                    "use those on PATH or in .tools/usr/bin"
                )
    found = {name: find_tool(name, directory) for name in _NAMES}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        where = str(directory) if directory is not None else "PATH and .tools/usr/bin"
        raise UserError(
            f"{', '.join(missing)} not found in {where}: run scripts/fetch_tools.sh, install Prometheus and "
            f"Alertmanager, or name their directory in {TOOLS_ENV}"
        )
    return Tools(**{name: path for name, path in found.items() if path is not None})


def command_line(program: Path) -> list[str | Path]:
    """How `program` is started in a lab: directly, unless it was unpacked and needs files of its package in /usr/share.

    Debian's Alertmanager reads its templates from /usr/share/prometheus. Where that is not installed, the unpacked
    /usr/share is laid over the system's, in a mount namespace of this process alone; that needs the lab's root.
    """
    share = program.parent.parent / "share"
    if Path("/usr/share/prometheus").exists() or not (share / "prometheus").is_dir():
        return [program]
    script = 'mount --bind "$1" /usr/share && shift && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", share, program]


def find_tool(name: str, directory: Path | None = None) -> Path | None:
    """One program by its upstream name, or None."""
    search = os.pathsep.join(map(str, [directory] if directory is not None else search_path()))
    for alias in _NAMES.get(name, (name,)):
        path = shutil.which(alias, path=search)
        if path is not None:
            return Path(path).resolve()
    return None


def search_path() -> list[Path]:
    """Where programs are looked for, in order."""
    entries = [*_named_folders(), *_folders("PATH")]
    checkout = checkout_root()
    if checkout is not None:
        entries.append(checkout / ".tools" / "usr" / "bin")
    return entries


def _named_folders() -> list[Path]:
    return _folders(TOOLS_ENV)


def _folders(variable: str) -> list[Path]:
    return [Path(entry) for entry in os.environ.get(variable, "").split(os.pathsep) if entry]


def checkout_root() -> Path | None:
    """The checkout that this package, or else the working directory, lies in; None for an installed wheel elsewhere."""
    for start in (Path(__file__).resolve(), Path.cwd()):
        for folder in (start, *start.parents):
            if (folder / "pyproject.toml").is_file() and (folder / "lab" / "fabricpulse").is_dir():
                return folder
    return None
