"""What a person gets wrong is one sentence and a non-zero exit, whichever daemon it is."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.fixtures.root_logger import kept_root_logger

from fabricpulse.core.cli import cli
from fabricpulse.core.errors import UserError

# A daemon that refuses to start leaves what it has opened to the end of its process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DAEMONS = {
    "mesh": "{host: h0, membership: {file: FLEET}}",
    "nic": "{}",
    "qp": "{}",
    "clocksync sidecar": "{host: h0}",
    "clocksync coordinator": "{}",
    "remediation receiver": "{journal: RUN/receiver.db}",
    "remediation node": "{host: h0, journal: RUN/node.db}",
    "audit node": "{host: h0, state: RUN/audit, token_file: RUN/token}",
}
FLEET = "hosts: [{name: h0, nics: [{device: lo, address: 127.0.0.1, network: a}]}]\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "fleet.yaml").write_text(FLEET)
    (folder / "token").write_text("0" * 64)
    (folder / "token").chmod(0o600)
    return folder


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    with kept_root_logger():
        yield


def arguments(daemon: str, config: str, run_dir: Path, *options: str) -> list[str]:
    path = run_dir / "config.yaml"
    path.write_text(config.replace("FLEET", str(run_dir / "fleet.yaml")).replace("RUN", str(run_dir)))
    return [*daemon.split(), f"--config={path}", *options]


def refusal(command: list[str], run_dir: Path) -> tuple[str, int]:
    """Runs the daemon in this process; it must refuse to start. The sentence and the exit code."""
    result = CliRunner(env={"FABRICPULSE_RUN_DIR": str(run_dir)}).invoke(cli, command)
    assert isinstance(result.exception, UserError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception), result.exception.exit_code


@pytest.mark.parametrize("daemon", DAEMONS)
def test_unknown_key(daemon: str, run_dir: Path) -> None:
    """An unknown key is refused with file, line and a hint; exit code 2."""
    words, code = refusal(arguments(daemon, "# a comment\nsomething_else: 3\n", run_dir), run_dir)

    assert f"{run_dir / 'config.yaml'}:2: unknown key 'something_else'; " in words
    assert code == 2


@pytest.mark.parametrize("daemon", DAEMONS)
def test_absent_configuration(daemon: str, run_dir: Path) -> None:
    """A configuration file that is not there is named."""
    words, code = refusal(arguments(daemon, "{}", run_dir, "--config=/absent.yaml"), run_dir)

    assert words == "cannot read configuration /absent.yaml: No such file or directory"
    assert code == 2


@pytest.mark.parametrize("daemon", DAEMONS)
def test_port_in_use(daemon: str, run_dir: Path) -> None:
    """A taken port is named, with the way out; a process of its own prints just that and leaves nothing running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = arguments(daemon, DAEMONS[daemon], run_dir, f"--web.listen-address={address}")

        result = subprocess.run(
            [sys.executable, "-Im", "fabricpulse.core.cli", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=os.environ | {"FABRICPULSE_RUN_DIR": str(run_dir)},
        )

    lines = [line for line in result.stderr.splitlines() if not line.startswith("ts=")]
    words = f"cannot listen on {address}: address already in use; choose another --web.listen-address"
    assert lines == [f"fabricpulse: error: {words}"]
    assert result.returncode == 1


@pytest.mark.parametrize("daemon", DAEMONS)
def test_malformed_address(daemon: str, run_dir: Path) -> None:
    """An address that is none is refused, before anything is locked or made."""
    command = arguments(daemon, DAEMONS[daemon], run_dir, "--web.listen-address=9610")
    before = sorted(run_dir.iterdir())

    words, code = refusal(command, run_dir)

    assert (words, code) == ("listen address '9610' is not HOST:PORT", 2)
    assert sorted(run_dir.iterdir()) == before


@pytest.mark.parametrize("daemon", DAEMONS)
def test_bad_web_configuration(daemon: str, run_dir: Path) -> None:
    """A web configuration that cannot be honoured is refused before anything is served."""
    (run_dir / "web.yaml").write_text("tls_server_config: {cert_file: absent.pem, key_file: absent.pem}\n")
    command = arguments(daemon, DAEMONS[daemon], run_dir, f"--web.config.file={run_dir / 'web.yaml'}")

    words, code = refusal(command, run_dir)

    assert "cannot load the certificates" in words
    assert code == 2


@pytest.mark.parametrize("daemon", ["mesh", "nic", "qp", "clocksync sidecar"])
def test_run_directory_cannot_be_made(daemon: str, run_dir: Path) -> None:
    """A run directory that cannot be made is named, with the variable that moves it."""
    (run_dir / "file").touch()
    nowhere = run_dir / "file" / "run"

    words, _ = refusal(
        arguments(daemon, DAEMONS[daemon], run_dir, "--web.listen-address=127.0.0.1:0"), nowhere
    )

    assert words.startswith(f"cannot create the run directory {nowhere}: ")
    assert "set FABRICPULSE_RUN_DIR" in words
