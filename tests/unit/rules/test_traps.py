"""What rules are commonly misled by, and the case of promtool that shows that ours are not."""

import re
from pathlib import Path

import pytest

CASES = Path(__file__).parents[3] / "rules" / "tests"
# Beginnings of the names of cases, by file.
TRAPS: dict[str, list[tuple[str, str]]] = {
    "one failed scrape, at whatever interval": [
        ("traps", "one failed scrape of all daemons at an interval of a minute"),
        ("traps", "a new target whose first scrapes fail"),
        ("nic", "failed scrapes neither hide nor end a disconnect"),
        ("pipeline", "an exporter without a good scrape for a minute alerts"),
        ("scrape-intervals", "at a scrape each 60 s three slow flows into one NIC are an incast, also while"),
    ],
    "a target that has gone from discovery": [
        ("pipeline", "a daemon that has left discovery alerts for a day"),
        ("traps", "a daemon that leaves discovery under Kubernetes labels is missed"),
        ("pipeline", "no fabricpulse daemon for five minutes alerts"),
    ],
    "a target that answers without metrics": [("traps", "a target that answers without the metrics")],
    "a counter that is first seen above zero": [
        ("traps", "failovers of a job that began between two scrapes count"),
        ("hardware", "a link that trained again alerts, a counter that only started above 0 does not"),
        ("traps", "a NIC that flaps while its exporter is replaced"),
    ],
    "events between the samples of a long scrape interval": [
        ("traps", "three disconnects within five minutes at an interval of a minute"),
        ("traps", "three events between two samples that are six minutes apart"),
        ("nic", "disconnects shorter than a scrape count"),
        ("scrape-intervals", "at a scrape each 60 s a flow that is slower than its siblings"),
    ],
    "a NIC that flaps slowly": [
        ("nic", "a NIC that flaps each six minutes for an hour flaps slowly"),
        ("traps", "six losses within an hour that two pods tell of"),
    ],
    "what remediation does on purpose": [
        ("job", "a lane that remediation keeps down on purpose is no news"),
        ("job", "a NIC that a job has not used for ten minutes alerts; a planned pause"),
        ("scrape-intervals", "rails that are uneven because a lane is down, or avoided on purpose"),
    ],
    "a gauge that is bad each other time": [("traps", "a gauge that is bad each other time")],
    "fleets whose names are the same": [
        ("traps", "two fleets whose hosts, NICs and networks have the same names"),
        ("pipeline", "the receiver of one cluster does not stand in for that of another"),
        ("summary", "coordinators that most hosts do not reach are lost"),
    ],
    "cards in slots that are slower by design": [
        ("nic", "a card at full width of a narrower slot is as good")
    ],
    "a pod that is replaced": [
        ("traps", "what lasts while pods are replaced fires when it has lasted long enough, once"),
        ("traps", "of two pods that speak of one NIC the one that says that it is lost counts"),
        ("traps", "a lost NIC whose exporter is replaced is one alert"),
    ],
    "an exporter that gives less than the rules read": [
        ("gauge", "a disconnected NIC alerts at once"),
        ("gauge", "failed scrapes neither hide nor end a disconnect"),
        ("gauge", "three of eight NICs of a network at once are the network"),
    ],
    "a watcher that has died or is blind": [
        ("pipeline", "agents without any receiver alert"),
        ("pipeline", "a receiver without news of Alertmanager"),
        ("pipeline", "pushes that fail for two minutes alert"),
        ("pipeline", "deliveries that are refused for two minutes alert"),
        ("pipeline", "a kill switch that stays set for four hours is forgotten"),
        ("pipeline", "a receiver whose reconciler hangs alerts"),
        ("pipeline", "a host that is not in its own membership"),
    ],
    "a summary that takes the place of its members (test_inhibition.py: they are muted)": [
        ("summary", "a host none of whose daemons answers is down"),
        ("summary", "three of eight NICs of a network at once are the network"),
        ("summary", "coordinators that most hosts do not reach are lost"),
        ("traps", "the leaf of a NIC stays in its alerts"),
    ],
    "a link that is full, and one that is slow": [
        ("full-nic", "FabricNicSlow: not of a NIC that receives as much as it usually does"),
        ("full-nic", "FabricIncast: not into a NIC that receives less than it usually does"),
        ("full-nic", "FabricJobsContend: in one network, not on two rails"),
    ],
}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_has_its_cases(trap: str) -> None:
    """Each trap has a case, and each case named here is there once."""
    assert TRAPS[trap]
    for file, beginning in TRAPS[trap]:
        names = re.findall(r"^ *- name: '?(.+)", (CASES / f"{file}.yaml").read_text(), re.MULTILINE)
        found = [name for name in names if name.startswith(beginning)]
        assert len(found) == 1, (file, beginning)
