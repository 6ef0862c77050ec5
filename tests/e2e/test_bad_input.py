"""What a person can get wrong is answered with one sentence and a non-zero exit, never with a traceback."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fixtures.ports import reserved_port

from fabricpulse.plugin import locate

FABRICPULSE = (sys.executable, "-m", "fabricpulse.core.cli")
ROOT = Path(__file__).parents[2]


def run(command: Sequence[str | Path], run_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, which must come by itself."""
    return subprocess.run(
        command,
        env=os.environ | {"FABRICPULSE_RUN_DIR": str(run_dir)} | environment,
        cwd=run_dir,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def the_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says what is wrong; fails on a traceback, on silence and on success."""
    everything = done.stdout + done.stderr
    assert done.returncode not in (0, None), everything
    assert done.returncode > 0, f"ended by signal {-done.returncode}: {everything}"
    assert "Traceback" not in everything
    found = [line for line in done.stderr.splitlines() if re.search(r"\b[Ee]rror: ", line)]
    assert len(found) == 1, everything
    return found[0]


@pytest.mark.root
@pytest.mark.prometheus
@pytest.mark.parametrize("behind", [0, 3])
def test_demo_port_in_use(tmp_path: Path, behind: int) -> None:
    """The demo says which of its ports is taken, before it builds anything."""
    ports = [reserved_port()]
    while len(ports) <= behind:
        port = reserved_port()
        ports = [*ports, port] if port == ports[-1] + 1 else [port]
    port = ports[-1]
    with socket.create_server(("127.0.0.1", port)):
        done = run([*FABRICPULSE, "demo", "--headless", "--port", str(ports[0])], tmp_path)
    sentence = the_sentence(done)
    assert f":{port}" in sentence
    assert "building" not in done.stdout
    assert "choose another port" in sentence


def test_demo_result_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Said at once, not after the run."""
    done = run([*FABRICPULSE, "demo", "--headless", "--json", tmp_path / "absent" / "x.json"], tmp_path)
    assert "absent" in the_sentence(done)


@pytest.mark.root
def test_demo_without_prometheus(tmp_path: Path) -> None:
    """Where no Prometheus is found the demo names what is missing and what to do."""
    if os.geteuid() != 0:
        pytest.skip("needs root to hide .tools in a mount namespace")
    folder = ROOT / ".tools"
    hide = f"mount -t tmpfs none {folder} && " if folder.is_dir() else ""
    script = f'{hide}exec "$@"'
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("sh", "mount"):
        (empty / tool).symlink_to(shutil.which(tool) or "/bin/sh")
    command = [shutil.which("unshare") or "unshare", "--mount", "sh", "-c", script, "sh"]
    done = run(
        [*command, *FABRICPULSE, "demo", "--headless"], tmp_path, PATH=str(empty), FABRICPULSE_TOOLS=""
    )
    sentence = the_sentence(done)
    assert "prometheus" in sentence
    assert "fetch_tools.sh" in sentence


@pytest.mark.root
@pytest.mark.prometheus
def test_demo_without_permission_for_namespaces(tmp_path: Path) -> None:
    """The message distinguishes a machine that allows no namespaces from one that lacks a program, with the remedy."""
    if os.geteuid() != 0:
        pytest.skip("needs root to take namespaces away")
    # A user namespace of its own in which nobody may make another one, then without any capability.
    script = (
        "echo 0 > /proc/sys/user/max_user_namespaces && "
        'exec setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all "$@"'
    )
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    done = run([*command, *FABRICPULSE, "demo", "--headless"], tmp_path)
    sentence = the_sentence(done)
    assert "namespaces" in sentence
    assert "root" in sentence


def test_unreachable_peers(tmp_path: Path) -> None:
    """A rank whose peers do not come says which address it waited at, and for how long it has tried."""
    port = reserved_port()
    ring_command: list[str | Path] = [
        locate.ring(),
        "--size",
        "2",
        "--rendezvous",
        f"127.0.0.1:{port}",
        "--connect-seconds",
        "1",
    ]
    for rank, words in (("0", "1 of 1 ranks did not come within 1 s"), ("1", "rank 0 does not answer")):
        done = run([*ring_command, *("--rank", rank)], tmp_path)
        assert done.returncode == 1
        (sentence,) = done.stderr.splitlines()
        assert words in sentence
        assert f"127.0.0.1:{port}" in sentence


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    """Talking to a job that does not exist names where it was looked for."""
    done = run([*FABRICPULSE, "plugin", "ctl", "4711", "status"], tmp_path)
    assert str(tmp_path) in the_sentence(done)
