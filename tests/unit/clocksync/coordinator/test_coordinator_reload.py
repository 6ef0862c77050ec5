"""What a reload of the coordinator takes from its settings, and what it says of the rest."""

from pathlib import Path

import pytest

from fabricpulse.clocksync.coordinator.coordinator import Coordinator
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.web.options import WebOptions


async def test_a_reload_takes_what_it_can_and_names_what_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who switches datagrams off must not believe that they are, as long as they are taken."""
    config = tmp_path / "coordinator.yaml"
    config.write_text("lease_s: 10\n")
    life = Lifetime()
    coordinator = Coordinator(DaemonOptions(config, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), life)
    config.write_text("lease_s: 20\n")
    await life.reload()
    assert coordinator.fleet.lease_s == 20
    assert caplog.records == []
    config.write_text("lease_s: 30\ndatagrams: false\n")
    await life.reload()
    assert coordinator.fleet.lease_s == 30
    assert [(r.getMessage(), r.__dict__["fields"]) for r in caplog.records] == [
        ("changed settings need a restart", {"config": str(config), "settings": "datagrams"})
    ]
    caplog.clear()
    config.write_text("hosts_share_machines: false\nalerting: {severity: warning}\n")
    await life.reload()
    assert [r.__dict__["fields"]["settings"] for r in caplog.records] == [
        "hosts_share_machines, alerting.severity"
    ]
