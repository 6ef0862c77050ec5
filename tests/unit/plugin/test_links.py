"""`fabricpulse plugin link`: the plugin by the names that NCCL and RCCL look for."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import UserError
from fabricpulse.plugin import environment, links
from fabricpulse.plugin.command import command
from fabricpulse.plugin.locate import library

# What RCCL does with NCCL_NET_PLUGIN and NCCL_PROFILER_PLUGIN: the value as it is, then with its prefix, on the
# library path; then the newest symbol. Prints, for each library asked for: which name and symbol were found, and the
# loader's handle.
RCCL = """
import ctypes, json, os, sys
for value, prefix, symbol, versions in json.loads(sys.argv[1]):
    names = [value, f"{prefix}-{value}.so"] if value else [f"{prefix}.so"]
    for name in names:
        try:
            loaded = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError:
            continue
        found = next((f"{symbol}_v{v}" for v in versions if hasattr(loaded, f"{symbol}_v{v}")), None)
        print(json.dumps([name, found, loaded._handle]))
        break
    else:
        print(json.dumps([None, None, None]))
"""
NET, PROFILER = list(range(12, 5, -1)), [6, 5, 4, 3, 2, 1]


def rccl(
    folder: Path, *asked: tuple[str, str, str, list[int]]
) -> list[tuple[str | None, str | None, int | None]]:
    done = subprocess.run(
        [sys.executable, "-c", RCCL, json.dumps(asked)],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("profiler", ["librccl-profiler", "libnccl-profiler"])
def test_rccl_finds_both_parts_by_the_short_name_in_one_library(tmp_path: Path, profiler: str) -> None:
    """Net v12 and profiler v6, and one handle: the same library, not a second copy of it in the process."""
    done = CliRunner().invoke(command, ["link", str(tmp_path / "lib")], catch_exceptions=False)
    assert done.exit_code == 0
    assert len(done.output.split()) == 4
    net, prof = rccl(
        tmp_path / "lib",
        ("fabricpulse", "librccl-net", "ncclNetPlugin", NET),
        ("fabricpulse", profiler, "ncclProfiler", PROFILER),
    )
    assert net[:2] == ("librccl-net-fabricpulse.so", "ncclNetPlugin_v12")
    assert prof[:2] == (f"{profiler}-fabricpulse.so", "ncclProfiler_v6")
    assert net[2] == prof[2]


def test_the_default_names_only_when_asked_for(tmp_path: Path) -> None:
    """A folder on everybody's library path must not change jobs that name no plugin."""
    asked = ("", "librccl-net", "ncclNetPlugin", NET)
    links.make_links(library(), tmp_path)
    assert rccl(tmp_path, asked) == [(None, None, None)]
    links.make_links(library(), tmp_path, default=True)
    assert rccl(tmp_path, asked)[0][:2] == ("librccl-net.so", "ncclNetPlugin_v12")


def test_links_that_lead_elsewhere_are_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    made = links.make_links(library(), tmp_path)
    made[0].unlink()
    made[0].symlink_to(tmp_path / "gone.so")
    (tmp_path / "other").touch()
    assert links.make_links(library(), tmp_path) == made
    assert {path.resolve() for path in made} == {library()}
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["other", *(p.name for p in made)])


def test_another_plugins_library_is_left_alone(tmp_path: Path) -> None:
    """Refused before the first link is made."""
    (tmp_path / "librccl-net.so").write_bytes(b"another plugin")
    with pytest.raises(UserError, match=r"librccl-net\.so exists and is no link"):
        links.make_links(library(), tmp_path, default=True)
    assert [p.name for p in tmp_path.iterdir()] == ["librccl-net.so"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot link the plugin in .*file/lib"):
        links.make_links(library(), tmp_path / "file" / "lib")


def test_the_check_of_the_environment_knows_the_links(tmp_path: Path) -> None:
    """Short names are right with the folder on the library path, and wrong without."""
    plan = environment.job_environment(library(), None)
    short = {
        "NCCL_NET_PLUGIN": "fabricpulse",
        "NCCL_NET": "fabricpulse",
        "NCCL_PROFILER_PLUGIN": "fabricpulse",
    }
    links.make_links(library(), tmp_path)
    assert environment.check(plan, {**short, "LD_LIBRARY_PATH": str(tmp_path)}) == []
    problems = environment.check(plan, short)
    assert len(problems) == 2
    (tmp_path / "librccl-profiler-fabricpulse.so").unlink()
    (tmp_path / "libnccl-profiler-fabricpulse.so").unlink()
    (problem,) = environment.check(plan, {**short, "LD_LIBRARY_PATH": str(tmp_path)})
    assert problem.startswith("NCCL_PROFILER_PLUGIN=fabricpulse does not lead to")


def test_the_library_loads_by_a_link_with_its_own_symbols(tmp_path: Path) -> None:
    """All versions that the library has are there by each of its names."""
    versions = environment.exported_versions(library())
    for path in links.make_links(library(), tmp_path, default=True):
        assert environment.exported_versions(path) == versions
        assert ctypes.CDLL(str(path))._handle == ctypes.CDLL(str(library()))._handle
