"""`audit run --resume` on a lab: a run that was killed is gone on with, and nothing is tested twice."""

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fixtures.audit.paths import path_findings_of
from tests.fixtures.waiting import wait_for
from tests.integration.audit.conftest import LabAudits

from fabricpulse.audit.model import Measurement, Run
from fabricpulse.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.slow]

TRANSFERS = ("--transfers", "--yes", "--rate", "100", "--seconds", "0.2", "--datagrams", "200")


def counted(lab: Lab, series: str, hosts: Sequence[str] = ()) -> list[float]:
    """A counter of the agents, by host. hosts : all if empty."""
    names = hosts or [host.name for host in lab.hosts]
    texts = [lab.http_get("mgmt", f"http://{name}:9617/metrics") for name in names]
    found = [re.search(rf"^{re.escape(series)} (\S+)", text, re.MULTILINE) for text in texts]
    return [float(hit[1]) for hit in found if hit]


def transfers(run: Run) -> dict[tuple[str, ...], Measurement]:
    """Their bandwidth, by their ends."""
    return {
        (m.source_host, m.source_device, m.target_host, m.target_device): m
        for m in run.measurements
        if m.kind == "bandwidth"
    }


def made(run: Run) -> int:
    """Transfers of which the run tells."""
    return sum(m.attempts for m in run.measurements if m.kind in ("bandwidth", "duplex"))


def test_a_run_that_was_killed_is_gone_on_with(shared_lab: Lab, run: LabAudits, tmp_path: Path) -> None:
    """A NIC is slow. Ctrl-C amid the transfers, or a kill, of which the last checkpoint is left: the run that goes on
    asks no host again, makes no transfer that the part tells of, and finds what a whole run finds."""
    sent, audited = 'fabricpulse_audit_transfers_total{direction="sent"}', "fabricpulse_audit_runs_total"
    with shared_lab.host("h2").nic("rail0").limit(40):
        whole = run(30, *TRANSFERS)
        assert path_findings_of(whole) == {("path-bandwidth", "nic", "h2", "rail0")}
        assert len(transfers(whole)) == 24
        for number in (signal.SIGINT, signal.SIGKILL):
            before, hosts = sum(counted(shared_lab, sent)), counted(shared_lab, audited)
            process = run.start(30, *TRANSFERS)

            def enough(before: float = before) -> bool:
                known = run.saved.exists() and len(transfers(run.read())) > 0
                return known and sum(counted(shared_lab, sent)) - before >= 8

            wait_for(enough, 120, "the midst of the transfers", poll_s=0.05)
            process.send_signal(number)
            process.wait(60)
            part = run.read()
            assert part.cancelled
            assert 0 < len(transfers(part)) < 24
            kept = tmp_path / f"{number.name}.json"
            kept.write_bytes(run.saved.read_bytes())
            # What was under way when the command was killed ends with its connection.
            wait_for(lambda: settled(shared_lab, sent), 60, "the agents to be done")
            middle = sum(counted(shared_lab, sent))
            resumed = run(30, *TRANSFERS, "--resume", str(kept))

            assert not resumed.cancelled
            assert path_findings_of(resumed) == path_findings_of(whole)
            assert transfers(resumed).keys() == transfers(whole).keys()
            assert any("4 hosts were not asked again" in note for note in resumed.notes)
            assert counted(shared_lab, audited) == [count + 1 for count in hosts]
            assert sum(counted(shared_lab, sent)) - middle == made(resumed) - made(part)
            # What the part has is taken over as it is, but for slow ways, which are tested a second time.
            for ends, m in transfers(part).items():
                if m.ok:
                    assert transfers(resumed)[ends].value == m.value
            # A third time only where a busy host has spoilt both.
            assert {1, 2} <= {m.attempts for m in transfers(resumed).values()} <= {1, 2, 3}


def settled(lab: Lab, series: str) -> bool:
    """Whether no agent begins anything for a moment."""
    before = counted(lab, series)
    time.sleep(1)
    return counted(lab, series) == before
