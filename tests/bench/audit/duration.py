"""How long an audit of a lab takes: hosts in namespaces of this machine, an agent each, all tests but NCCL."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fabricpulse.audit.model import Run
from fabricpulse.lab import Lab

CLI = (sys.executable, "-Im", "fabricpulse.core.cli", "audit")
# Beyond what the run may take: it must end by itself.
PATIENCE_S = 400.0


@contextmanager
def agents(lab: Lab, folder: Path) -> Iterator[None]:
    """An agent on each host of a lab."""
    (folder / "token").write_text("0123456789abcdef")
    daemons = []
    try:
        for host in lab.hosts:
            settings = folder / f"{host.name}.yaml"
            settings.write_text(f"token_file: {folder}/token\nstate: {folder}/{host.name}\n")
            host.run(["sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647"])
            daemons.append(host.popen([*CLI, "node", "--config", str(settings)], name="audit"))
        for daemon in daemons:
            daemon.wait_for_output("listening", 120)
        yield
    finally:
        for daemon in daemons:
            daemon.kill()


def timed_run(lab: Lab, folder: Path, *more: str) -> tuple[Run, float]:
    """A run of all hosts of a lab, which have agents; and seconds of the whole command."""
    saved = folder / "run.json"
    saved.unlink(missing_ok=True)
    begun = time.monotonic()
    process = lab.mgmt.popen(
        [
            *(*CLI, "run", "--membership", str(lab.write_membership())),
            *("--token-file", str(folder / "token"), "--save", str(saved), "--yes", *more),
        ],
        name="run",
    )
    process.wait(PATIENCE_S)
    seconds = time.monotonic() - begun
    if not saved.exists():
        raise RuntimeError(f"the run has saved nothing:\n{process.tail()}")
    return msgspec.json.decode(saved.read_bytes(), type=Run), seconds


def measure(*more: str) -> dict[str, object]:
    """16 hosts with two NICs: echoes, transfers at the default rate and length, both ways at once."""
    before = os.getloadavg()[0]
    with Lab(hosts=16, rails=2) as lab, tempfile.TemporaryDirectory() as folder, agents(lab, Path(folder)):
        run, seconds = timed_run(lab, Path(folder), "--transfers", *more)
    kinds = {
        kind: sum(m.kind == kind for m in run.measurements)
        for kind in ("connectivity", "loss", "bandwidth", "duplex")
    }
    found = [f"{f.check} {f.host} {f.subject}" for f in run.findings if f.check.startswith("path-")]
    return {
        "seconds": seconds,
        "hosts": len(run.hosts),
        "cancelled": run.cancelled,
        "measurements": kinds,
        "retests": sum(m.attempts - 1 for m in run.measurements if m.kind == "bandwidth"),
        "path_findings": len(found),
        "notes": list(run.notes),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }
