"""`audit run --transfers` while a job begins: the audit makes way for it within a second, and says so."""

import sys

import pytest
from tests.fixtures.waiting import wait_for
from tests.integration.audit.conftest import LabAudits
from tests.integration.audit.test_resume import counted

from fabricpulse.audit.model import Run
from fabricpulse.lab import Lab
from fabricpulse.lab.process import LabProcess

pytestmark = [pytest.mark.root, pytest.mark.slow]

# Each transfer lasts ten seconds: far longer than a job is let wait.
LONG = ("--transfers", "--yes", "--rate", "50", "--seconds", "10", "--datagrams", "100", "--no-duplex")
STOPPED = "a transfer is stopped"
# A job that no plugin and no queue pair tells of: traffic alone.
FLOOD = """
import socket, sys, time
link = socket.socket(type=socket.SOCK_DGRAM)
link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"rail1")
link.connect((sys.argv[1], 5001))
data = bytes(1400)
while True:
    try:
        link.send(data)
    except OSError:
        time.sleep(0.001)
"""


def agent(lab: Lab, host: str) -> LabProcess:
    return next(process for process in lab.host(host).processes() if process.name == "audit")


def moved(lab: Lab, host: str) -> int:
    """Bytes of all NICs of a host."""
    files = [
        f"/sys/class/net/{nic}/statistics/{way}_bytes" for nic in ("rail0", "rail1") for way in ("rx", "tx")
    ]
    return sum(int(line) for line in lab.host(host).run(["cat", *files]).stdout.split())


def reported(run: Run) -> set[tuple[str, str]]:
    """What was found of paths, but for NICs that were not tested."""
    return {(f.check, f.host) for f in run.findings if f.check.startswith("path-")}


def test_a_job_that_starts_stops_the_transfers_of_its_host(shared_lab: Lab, run: LabAudits) -> None:
    """A process with the plugin: transfers of both NICs end, in both directions, and no further one begins; those of
    other hosts are made. Nobody is accused, and the host's NICs are reported as not tested, with the job."""
    sent = 'fabricpulse_audit_transfers_total{direction="sent"}'
    before = counted(shared_lab, sent)
    process = run.start(30, *LONG)
    wait_for(
        lambda: all(now > then for now, then in zip(counted(shared_lab, sent), before, strict=True)),
        120,
        "all to send",
    )
    job = shared_lab.host("h1").popen(["sleep", "1000"], name="job")
    plugin = shared_lab.host("h1").run_dir / "plugin"
    plugin.mkdir(exist_ok=True)
    mark = plugin / f"{job.pid}.telemetry"
    try:
        mark.touch()
        agent(shared_lab, "h1").wait_for_output(STOPPED, 30)

        def quiet() -> bool:
            first = moved(shared_lab, "h1")
            shared_lab.host("h1").run(["sleep", "0.5"])
            return moved(shared_lab, "h1") - first < 100_000

        wait_for(quiet, 10, "the NICs of the job to be free")
        process.wait(300)
    finally:
        mark.unlink(missing_ok=True)
        job.kill()
    found = run.read()
    assert not found.cancelled
    assert reported(found) <= {("path-untested", "h1")}
    said = " ".join([*found.notes, *(f.summary for f in found.findings if f.check == "path-untested")])
    assert f"a job runs here (process {job.pid})" in said
    made = {(m.source_host, m.target_host) for m in found.measurements if m.kind == "bandwidth"}
    assert made >= {(a, b) for a in ("h0", "h2", "h3") for b in ("h0", "h2", "h3") if a != b}


def test_traffic_of_others_stops_a_transfer(shared_lab: Lab, run: LabAudits) -> None:
    """A NIC that begins to carry more than the audit's own bytes makes way, at whichever end has a transfer then."""
    sent = 'fabricpulse_audit_transfers_total{direction="sent"}'
    before = sum(counted(shared_lab, sent))
    process = run.start(30, *LONG)
    wait_for(lambda: sum(counted(shared_lab, sent)) > before + 4, 120, "transfers")
    target = shared_lab.host("h3").nic("rail1").address
    flood = shared_lab.host("h2").popen([sys.executable, "-Ic", FLOOD, str(target)], name="flood")
    try:
        ends = [agent(shared_lab, host) for host in ("h2", "h3")]
        wait_for(lambda: any("of others" in end.output() for end in ends), 60, "a transfer to be stopped")
    finally:
        flood.kill()
        process.terminate()
        process.wait(60)
