"""`fabricpulse lab`, as typed."""

import os
import signal
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

FABRICPULSE = str(Path(sysconfig.get_path("scripts")) / "fabricpulse")


def lab_command(*words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs `fabricpulse lab …` to its end."""
    return subprocess.run(
        [FABRICPULSE, "lab", *words], capture_output=True, text=True, check=False, timeout=60, cwd=cwd
    )  # fmt: skip


def test_run_ends_as_its_program_does() -> None:
    """Output, exit code, and 128 + signal."""
    done = lab_command(
        "run", "--hosts", "1", "--rails", "1", "--on", "h0", "--", "sh", "-c", "hostname; exit 9"
    )
    assert (done.returncode, done.stdout, done.stderr) == (9, "h0\n", "")
    assert lab_command("run", "--hosts", "1", "--on", "h0", "--", "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run", "--hosts", "0", "true"), "hosts=0"),
        (("run", "--hosts", "1", "--on", "h7", "true"), "no node 'h7'"),
        (("run", "--hosts", "1", "nonesuch"), "cannot start nonesuch"),
        (("up", "--forward", "9090"), "is not NODE:PORT"),
        (("exec", "--lab", "/nonesuch", "h0", "true"), "/nonesuch is not the directory of a running lab"),
        (("run", "--hosts", "1", "--directory", "/proc/nonesuch", "true"), "cannot make the lab's directory"),
    ],
)
def test_bad_input_is_one_sentence_and_no_traceback(words: tuple[str, ...], text: str) -> None:
    """Exit code 1, one line on standard error."""
    done = lab_command(*words)
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.startswith("fabricpulse: error: ")
    assert done.stderr.count("\n") == 1


def test_a_lab_in_any_directory_is_found() -> None:
    """`lab up --directory` is listed as others are. The one of pytest is too long for a lab."""
    with TemporaryDirectory(prefix="l") as directory:
        with Lab(hosts=1, rails=1, directory=Path(directory)).start():
            assert f"{directory} " in lab_command("list").stdout
        assert f"{directory} " not in lab_command("list").stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_up_shows_the_lab_and_ends_with_a_signal(signum: signal.Signals) -> None:
    """The picture names every host; `list` and `exec` find it; a signal ends it without a word, its directory goes."""
    with subprocess.Popen(
        [FABRICPULSE, "lab", "up", "--hosts", "2", "--rails", "1", "--forward", "h1:9610"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            picture = []
            while "Ctrl-C" not in (line := process.stdout.readline()):
                assert line, process.stderr.read() if process.stderr else ""
                picture.append(line)
            directory = Path(picture[0].split()[-1])
            assert any(line.split()[:1] == ["h1"] and "10.10.0.2" in line for line in picture)
            assert any("h1:9610 is http://127.0.0.1:" in line for line in picture)
            assert str(directory) in lab_command("list").stdout
            inside = lab_command("exec", "--lab", str(directory), "h1", "hostname")
            assert inside.stdout == "h1\n", inside.stderr
            process.send_signal(signum)
            _, error = process.communicate(timeout=60)
            assert error == ""
            assert process.returncode == 0
            assert not directory.exists()
            assert str(directory) not in lab_command("list").stdout
        finally:
            process.kill()


def test_exec_into_a_lab_has_the_hosts_environment(shared_lab: Lab) -> None:
    """Host name, NICs, run directory and clock; the program's exit code."""
    script = "hostname; ls /sys/class/net; echo $FABRICPULSE_RUN_DIR; echo $FABRICPULSE_VIRTUAL_CLOCK; exit 5"
    done = lab_command("exec", "--lab", str(shared_lab.directory), "h1", "sh", "-c", script)
    host = shared_lab.host("h1")
    assert done.stdout.split() == [
        "h1",
        "fe0",
        "lo",
        "rail0",
        "rail1",
        str(host.run_dir),
        str(host.clock.path),
    ]
    assert done.returncode == 5
    missing = lab_command("exec", "--lab", str(shared_lab.directory), "h9", "true")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "no node 'h9'" in missing.stderr


def test_a_relative_path_of_exec_is_relative_to_where_the_user_is(shared_lab: Lab, tmp_path: Path) -> None:
    """A file that the program writes lies in the caller's directory, not in /; arguments arrive as they were given."""
    script = 'printf %s "$1" > plot.svg'
    words = ("exec", "--lab", str(shared_lab.directory), "h1", "sh", "-c", script, "sh", "two  words; $HOME")
    done = lab_command(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "plot.svg").read_text() == "two  words; $HOME"


def test_exec_from_a_directory_that_the_lab_does_not_have_is_one_sentence(shared_lab: Lab) -> None:
    """/run of the lab is its own: the program is not started somewhere else instead."""
    outside = Path("/run/fabricpulse-test-of-exec")
    if os.geteuid() != 0:
        pytest.skip("needs root to make a directory in /run")
    outside.mkdir()
    try:
        done = lab_command("exec", "--lab", str(shared_lab.directory), "h1", "pwd", cwd=outside)
    finally:
        outside.rmdir()
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"fabricpulse: error: {outside} does not exist inside the lab: change to another directory\n"
    )
