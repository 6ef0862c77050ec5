"""How long an audit of a lab takes: hosts in namespaces of this machine, an agent each, all tests but NCCL.

All are echoes, cables by LLDP, loss at the whole rate, TCP in one direction and in both, and what the hosts say of
themselves. A lab in namespaces has no RDMA, and its switches do not speak LLDP: each host waits for them all the time.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from fabricpulse.audit.model import Run
from fabricpulse.lab import Lab
from fabricpulse.lab.node import Host
from fabricpulse.lab.process import LabProcess

CLI = (sys.executable, "-Im", "fabricpulse.core.cli", "audit")
# Seconds of datagrams at the whole rate, each way of each pair: a NIC sends, and is sent, eight times as many.
LOSS_S = 0.5
# Of each NIC, Mb/s: what the few processors that carry all 32 of them send at once. At 10 Gb/s they are the limit,
# and their turns look like slow paths.
RATE_MBIT_S = 500
# Beyond what the run may take: it must end by itself.
PATIENCE_S = 400.0


@contextmanager
def agents(lab: Lab, folder: Path) -> Iterator[None]:
    """An agent on each host of a lab."""
    (folder / "token").write_text("0123456789abcdef")
    daemons = []
    try:
        for host in lab.hosts:
            host.run(["sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647"])
            daemons.append(start_agent(host, folder))
        for daemon in daemons:
            daemon.wait_for_output("listening", 120)
        yield
    finally:
        for daemon in daemons:
            daemon.kill()


def start_agent(host: Host, folder: Path) -> LabProcess:
    """The agent of one host; its token is there."""
    settings = folder / f"{host.name}.yaml"
    settings.write_text(f"token_file: {folder}/token\nstate: {folder}/{host.name}\n")
    return host.popen([*CLI, "node", "--config", str(settings)], name="audit")


def timed_run(
    lab: Lab, folder: Path, *more: str, amid: Callable[[], object] = lambda: None
) -> tuple[Run, float]:
    """A run of all hosts of a lab, which have agents; and seconds of the whole command. amid : called as it runs."""
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
    amid()
    process.wait(PATIENCE_S)
    seconds = time.monotonic() - begun
    if not saved.exists():
        raise RuntimeError(f"the run has saved nothing:\n{process.tail()}")
    return msgspec.json.decode(saved.read_bytes(), type=Run), seconds


def measure(
    *more: str, amid: Callable[[Lab, ExitStack], object] = lambda _lab, _stack: None
) -> dict[str, object]:
    """16 hosts with two NICs. amid : called as it runs; what it leaves on the stack is undone after it."""
    before = os.getloadavg()[0]
    with Lab(hosts=16, rails=2) as lab, tempfile.TemporaryDirectory() as folder, agents(lab, Path(folder)):
        plan = Path(folder) / "wiring.yaml"
        lines = [
            f"  {host.name}: {{{', '.join(f'{n.device}: {{switch: {n.leaf}}}' for n in host.nics)}}}\n"
            for host in lab.hosts
        ]
        plan.write_text("wiring:\n" + "".join(lines))
        loss = ("--rate", str(RATE_MBIT_S), "--loss-seconds", f"{LOSS_S:g}")
        options = ("--transfers", *loss, "--wiring-file", str(plan), *more)
        with ExitStack() as stack:
            run, seconds = timed_run(lab, Path(folder), *options, amid=lambda: amid(lab, stack))
    kinds = {
        kind: sum(m.kind == kind for m in run.measurements)
        for kind in ("connectivity", "loss", "bandwidth", "duplex")
    }
    # That busy processors have spoilt all tests of a NIC accuses nobody.
    untested = [f for f in run.findings if f.check == "path-untested"]
    found = [f for f in run.findings if f.check.startswith("path-") and f not in untested]
    return {
        "seconds": seconds,
        "hosts": len(run.hosts),
        "cancelled": run.cancelled,
        "measurements": kinds,
        "retests": sum(m.attempts - 1 for m in run.measurements if m.kind == "bandwidth"),
        "path_findings": len(found),
        "untested_nics": len(untested),
        "by_check": Counter(f"{f.check} {f.evidence.get('blame', '')}".strip() for f in found),
        "examples": [f"{f.host or 'no host'} {f.subject}: {f.summary}" for f in found[:3]],
        "rate_mbit_s": RATE_MBIT_S,
        "loss_s_a_way": LOSS_S,
        "loss_s_a_nic": LOSS_S * kinds["loss"] / (2 * len(run.hosts)),
        "notes": list(run.notes),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }
