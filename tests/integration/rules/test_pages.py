"""One fault, one page: fleets with a fault each, a real Prometheus with our rules, a real Alertmanager, our route."""

from pathlib import Path

import pytest
from tests.integration.rules.fleets import RAILS
from tests.integration.rules.one_page import PAGES, TICKETS, outcome


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.root
@pytest.mark.prometheus
def test_one_page_per_fault(tmp_path: Path) -> None:
    """A dead host, coordinator, leaf (of unknown and of known name), rail and NIC are one critical alert each, notified
    once, and none in a fleet that is well; two faults at once are two. A NIC that drops large packets, a clock that
    contradicts the others and an exporter that is dead are one warning each. What else Alertmanager holds of a fleet is
    muted. Pushed and ruled alert are one. A new start of Prometheus pages nothing and ends nothing.
    """
    found = outcome(tmp_path)

    assert found.early == []
    assert found.ended == []
    for name, pages in found.pages.items():
        notified = [(page["alertname"], page.get("instance"), page.get("device")) for page in pages]
        assert set(notified) == PAGES.get(name or "", set()), name
    assert sorted(
        (t.get("cluster"), (t["alertname"], t.get("instance"), t.get("device"))) for t in found.tickets
    ) == [(name, ticket) for name, notified in TICKETS.items() for ticket in notified]
    # The job that waits for the dead host stands still; the host's page is that of both.
    stalled = [each for each in found.alerts if each["labels"]["alertname"] == "FabricCollectiveStalled"]
    assert {(a["labels"]["cluster"], a["labels"]["peer"], a["status"]["state"]) for a in stalled} == {
        ("host", "h1", "suppressed"),
        ("host-and-nic", "h1", "suppressed"),
    }
    # A pushed alert and the rule's are one: as many alerts as NICs, pushed or not.
    lost = [each for each in found.alerts if each["labels"]["alertname"] == "FabricNicDisconnected"]
    assert len(lost) == found.dead_nics
    assert RAILS[1] in {alert["labels"]["device"] for alert in lost}
