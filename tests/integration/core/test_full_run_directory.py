"""A run directory without room: the daemon says so in one sentence and leaves nothing that is half made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FLEET = "hosts: [{name: h0, nics: [{device: lo, address: 127.0.0.1, network: a}]}]\n"
# A file system of (2 + room) pages, two of them taken; what is left in it after the daemon has ended.
SCRIPT = """
mount -t tmpfs -o size=$(((2 + $1) * 4096)) none "$2" && head -c 8192 /dev/zero > "$2/taken" || exit 99
shift 2
"$@"
echo "exit $?"
ls -A "$FABRICPULSE_RUN_DIR"
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("daemon", "room", "what", "left"),
    [
        ("clocksync sidecar", 0, "the lock {run}/sidecar.lock", {"sidecar.lock"}),
        ("clocksync sidecar", 1, "the clock page {run}/clock", {"sidecar.lock"}),
        ("clocksync sidecar", 2, "{run}/clockbound", {"sidecar.lock", "clock"}),
        ("mesh", 0, "the lock {run}/mesh.lock", {"mesh.lock"}),
        ("mesh", 1, "the probe ring {run}/probes", {"mesh.lock"}),
        ("nic", 0, "the lock {run}/nic.lock", {"nic.lock"}),
    ],
)
def test_no_room(daemon: str, room: int, what: str, left: set[str], tmp_path: Path) -> None:
    """`room` pages are free; the first file that finds none is named, and what to do. Nobody dies of a SIGBUS."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "config.yaml").write_text(
        f"membership: {{file: {tmp_path / 'fleet.yaml'}}}\n" if daemon == "mesh" else "{}"
    )
    command = [sys.executable, "-Im", "fabricpulse.core.cli", *daemon.split()]
    command += [f"--config={tmp_path / 'config.yaml'}", "--web.listen-address=127.0.0.1:0"]
    own_mounts = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--map-root-user", "--mount"]

    result = subprocess.run(
        [*own_mounts, "bash", "-c", SCRIPT, "script", str(room), str(run), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"FABRICPULSE_RUN_DIR": str(run)},
    )

    if result.returncode == 99 or "unshare" in result.stderr:
        pytest.skip(f"no mount namespace here: {result.stderr.strip()}")
    code, *files = result.stdout.splitlines()
    [message] = [line for line in result.stderr.splitlines() if not line.startswith("ts=")]
    assert message.startswith(
        f"fabricpulse: error: {'outputs.clockbound: ' if room == 2 else ''}"
        f"cannot write {what.format(run=run)}: No space left on device; "
    )
    assert "make room on" in message or "or off" in message
    assert code == "exit 1"
    assert set(files) == left | {"taken"}
