"""Local users who may write to the plugin's directory cannot end a job (docs/run-directory.md)."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for

from fabricpulse.plugin.locate import library

pytestmark = pytest.mark.root
NOBODY = 65534


@contextmanager
def waiting_job(program: Path, run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A job whose process id is known before it starts: it does so with the first line on its standard input."""
    command = ["sh", "-c", 'read _; exec "$0" "$@"', str(program), str(library()), "v7", "1", "60"]
    environment = {"FABRICPULSE_RUN_DIR": str(run_dir), "FABRICPULSE_NICS": "none-such"}
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        yield process


def played(process: subprocess.Popen[str]) -> None:
    """Starts it and waits until it has used its telemetry."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    while (line := process.stdout.readline()) and line != "played\n":
        pass
    assert line == "played\n", process.wait(10)


@pytest.mark.parametrize("hidden", [True, False])
def test_a_file_that_lies_ready_is_not_written(profiler_host: Path, tmp_path: Path, hidden: bool) -> None:
    """A stranger knows a job's process id and puts a file where its telemetry will be: the job never maps it, so that
    nothing ends when the stranger truncates it."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    folder.chmod(0o1777)
    with waiting_job(profiler_host, tmp_path) as process:
        name = f"{process.pid}-{Path(f'/proc/{process.pid}/ns/pid').stat().st_ino:x}"
        planted = folder / f"{'.' if hidden else ''}{name}.telemetry"
        planted.touch()
        planted.chmod(0o666)
        os.chown(planted, NOBODY, NOBODY)
        with planted.open("r+b") as stranger:
            played(process)
            stranger.truncate(0)
            final = folder / f"{name}.telemetry"
            assert os.fstat(stranger.fileno()).st_ino != final.stat().st_ino
            assert os.fstat(stranger.fileno()).st_size == 0
            assert (final.stat().st_uid, final.stat().st_mode & 0o777) == (os.geteuid(), 0o644)
        assert process.poll() is None


def test_a_clock_page_of_a_stranger_is_not_mapped(profiler_host: Path, tmp_path: Path) -> None:
    """Who owns a mapped file may truncate it: that of a stranger is left alone."""
    page = tmp_path / "clock"
    page.write_bytes(bytes(1 << 16))
    os.chown(page, NOBODY, NOBODY)
    with waiting_job(profiler_host, tmp_path) as process:
        played(process)
        assert str(page) not in Path(f"/proc/{process.pid}/maps").read_text()
        os.truncate(page, 0)
        assert process.poll() is None


@pytest.mark.timeout(120)
def test_a_fifo_in_place_of_a_file_is_not_waited_for(profiler_host: Path, tmp_path: Path) -> None:
    """A stranger's FIFO under the name of a telemetry file: each job of the host that began waited for its writer."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    folder.chmod(0o1777)
    fifo = folder / "999999999-1.telemetry"
    os.mkfifo(fifo, 0o666)
    os.chown(fifo, NOBODY, NOBODY)
    with waiting_job(profiler_host, tmp_path) as process:
        played(process)


def test_what_was_left_half_made_is_removed(profiler_host: Path, tmp_path: Path) -> None:
    """A job that was killed while it made its file leaves a hidden one; the next job removes it."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    left = folder / ".999999999-1.0123456789abcdef"
    left.touch()
    with waiting_job(profiler_host, tmp_path) as process:
        played(process)
        wait_for(lambda: not left.exists(), 10, "the leftover is gone")
