"""The programs that docs/clocksync.md shows: they compile as it says, and read what the page has."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.clocksync.clock.test_clock_readers import page

from fabricpulse.clocksync.command import command
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.shm.clock_page import ClockPageWriter, ClockStatus

DOCS = Path(__file__).parents[4] / "docs" / "clocksync.md"
LANGUAGES = ("c", "cpp", "python")


def example(language: str) -> str:
    """The one program in `language` on the page."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(), re.M | re.S)
    return str(found)


@pytest.fixture(scope="module", params=LANGUAGES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Built with the command in the first line of the example, which must not warn."""
    source = example(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "python":
        (folder / "example.py").write_text(source)
        return [sys.executable, str(folder / "example.py")]
    [line] = re.findall(r"\A// (.*) && (\./.*)\n", source)
    include = CliRunner().invoke(command, ["include"]).output.strip()
    words = shlex.split(line[0].replace("$(fabricpulse clocksync include)", include))
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]}")
    [name] = [word for word in words if word.endswith((".c", ".cc"))]
    (folder / name).write_text(source)
    subprocess.run([*words, "-Wall", "-Wextra", "-Wpedantic", "-Werror"], cwd=folder, check=True)
    return [str(folder / line[1])]


def run(program: list[str], run_dir: Path) -> subprocess.CompletedProcess[str]:
    command = program if program[0] == sys.executable else [*program, str(run_dir / "clock")]
    environment = os.environ | {RUN_DIR_ENV: str(run_dir)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_it_says_now_earliest_and_latest(program: list[str], tmp_path: Path) -> None:
    """The page is 1 ms ahead of the host and good for 2 us."""
    written = HostClock().cross_timestamp()
    before = written.host_ns
    ClockPageWriter(tmp_path / "clock").write(page(written))

    result = run(program, tmp_path)

    assert result.returncode == 0, result.stderr
    now, earliest, latest = (int(word) for word in result.stdout.split())
    past_s = (time.time_ns() - before) * 1e-9
    assert before + 1_000_000 <= now <= time.time_ns() + 1_000_000 + 20_000 * past_s
    assert now - earliest == latest - now
    assert 2_000 <= now - earliest <= 2_000 + 250 * past_s + 1


def test_a_page_from_before_the_boot_gives_no_fleet_time(program: list[str], tmp_path: Path) -> None:
    """In a run directory that outlives the boot, until the sidecar starts: the raw clock is behind the page's."""
    now = HostClock().cross_timestamp()
    ClockPageWriter(tmp_path / "clock").write(page(replace(now, raw_ns=now.raw_ns + 3600 * 10**9)))

    result = run(program, tmp_path)

    assert result.returncode == 1
    assert "no fleet time" in result.stderr


def test_it_says_when_there_is_no_fleet_time(program: list[str], tmp_path: Path) -> None:
    """A page without fleet time, and no page: an error, and no number that somebody could take for a time."""
    for written in (False, True):
        if written:
            ClockPageWriter(tmp_path / "clock").write(
                page(HostClock().cross_timestamp(), ClockStatus.UNKNOWN)
            )

        result = run(program, tmp_path)

        assert result.returncode == 1
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(
    shutil.which("pkg-config") is None, reason="no pkg-config: system_packages.sh test installs it"
)
def test_a_build_outside_finds_the_headers_by_pkg_config(tmp_path: Path) -> None:
    """The example in C compiles with what pkg-config says, away from this tree; the version is the package's."""
    text = CliRunner().invoke(command, ["include", "--pkg-config"]).output
    (tmp_path / "fabricpulse.pc").write_text(text)
    environment = os.environ | {"PKG_CONFIG_PATH": str(tmp_path)}

    def asked(option: str) -> list[str]:
        words = ["pkg-config", option, "fabricpulse"]
        result = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
        return shlex.split(result.stdout)

    assert asked("--modversion") == [version("fabricpulse")]
    (tmp_path / "now.c").write_text(example("c"))
    flags = [*asked("--cflags"), *asked("--libs"), "-Wall", "-Werror"]
    subprocess.run(["cc", *flags, "now.c", "-o", "now"], cwd=tmp_path, check=True)
    words = [str(tmp_path / "now"), str(tmp_path / "no-page")]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "no-page" in result.stderr
