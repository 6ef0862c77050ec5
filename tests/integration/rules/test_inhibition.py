"""One fault, one page: a real Alertmanager with the shipped inhibitions and all alerts that a fault raises.

Each fault is in a cluster of its own, beside one alert of the same kind elsewhere in it, which must still notify. What
raises these alerts is in the cases of promtool, and for some of the faults in test_pages.py.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.fixtures.rules.alertmanager import Labels, not_muted, post, shipped_alertmanager
from tests.fixtures.waiting import wait_for

from fabricpulse.lab.tools import command_line, find_tool

pytestmark = pytest.mark.prometheus


def alert(name: str, **labels: str) -> Labels:
    return {"alertname": name, "severity": "warning", **labels}


def flow(
    sender: str, receiver: str, workload: str = "1", network: str = "rail0", name: str = "FabricPathContended"
) -> Labels:
    """An alert on a flow, as lib/flows.libsonnet labels it: the sender first."""
    ends = {"instance": sender, "device": network, "peer": receiver, "peer_device": network}
    return alert(name, workload=workload, network=network, **ends)


def incast(receiver: str, workload: str = "1", device: str = "rail0") -> Labels:
    ends = {"instance": receiver, "device": device, "peer": receiver, "peer_device": device}
    return alert("FabricIncast", workload=workload, **ends)


def nic(name: str, host: str, device: str = "rail0", **labels: str) -> Labels:
    return alert(name, instance=host, device=device, network=device, **labels)


def lossy_leaf(leaf: str, network: str = "rail0") -> Labels:
    """As mixins/alerts/path.libsonnet labels it."""
    return alert("FabricNetworkLossy", network=network, leaf=leaf, faulty=leaf, peer=leaf)


# Of each fault: what notifies, and what does not.
FAULTS: dict[str, tuple[list[Labels], list[Labels]]] = {
    "two jobs on one link": (
        [flow("h1", "h2"), flow("h3", "h4", workload="2")],
        [
            alert("FabricJobsContend", network="rail0"),
            alert("FabricNetworkSlow", network="rail0", flows="measured"),
        ],
    ),
    # Whoever has no label says nothing of the others' network.
    "a contended flow on a rail, a slow network elsewhere": (
        [
            flow("h1", "h2"),
            alert("FabricNetworkSlow", network="rail1"),
            alert("FabricJobsContend", network="rail1"),
        ],
        [],
    ),
    "an incast": (
        [incast("h9"), flow("h1", "h9", workload="2"), flow("h1", "h8"), flow("h1", "h9", network="rail1")],
        [flow("h1", "h9"), flow("h2", "h9"), flow("h3", "h9")],
    ),
    "a slow NIC of which nobody knows what it usually receives": (
        [nic("FabricNicSlow", "h9", direction="receive"), incast("h8"), incast("h9", device="rail1")],
        [incast("h9"), flow("h1", "h9"), flow("h2", "h9"), flow("h3", "h9")],
    ),
    "NICs that take a GID of RoCE v1, and one with another MTU": (
        [
            nic("FabricGidRoceV1", "h1"),
            nic("FabricNicOddOneOut", "h1", attribute="MTU"),
            nic("FabricNicOddOneOut", "h2", attribute="GID index"),
        ],
        [
            nic("FabricNicOddOneOut", "h1", attribute="GID index"),
            alert("FabricGidInconsistent", instance="h1"),
        ],
    ),
    "NICs whose GIDs have moved or are gone": (
        [
            nic("FabricGidMoved", "h1"),
            alert("FabricGidInconsistent", instance="h2"),
            nic("FabricNicOddOneOut", "h2", attribute="MTU"),
            nic("FabricNicOddOneOut", "h3", attribute="GID index"),
        ],
        [
            alert("FabricGidInconsistent", instance="h1"),
            nic("FabricNicOddOneOut", "h1", attribute="GID index"),
            nic("FabricNicOddOneOut", "h2", attribute="GID index"),
        ],
    ),
    "a port that is too slow": (
        [
            alert("FabricPortsMissing", instance="h1"),
            nic("FabricNicOddOneOut", "h1", attribute="MTU"),
            nic("FabricNicOddOneOut", "h2", attribute="speed"),
        ],
        [nic("FabricNicOddOneOut", "h1", attribute="speed")],
    ),
    "a stall whose head one host knows": (
        [
            alert(
                "FabricCollectiveStalled", workload="1", head="rank", communicator="a1", rank="8", peer="h1"
            ),
            alert("FabricCollectiveStalled", workload="2", head="unknown"),
        ],
        [alert("FabricCollectiveStalled", workload="1", head="unknown")],
    ),
    "a dead host": (
        [
            alert("FabricHostDown", instance="h1", peer="h1"),
            nic("FabricNicDisconnected", "h2"),
            alert("FabricCollectiveStalled", workload="2", peer="h2", rank="9"),
        ],
        [
            alert("FabricExporterDown", instance="h1", job="fabricpulse-mesh"),
            alert("FabricExporterGone", instance="h1", job="fabricpulse-nic", daemon="nic"),
            nic("FabricNicDisconnected", "h1"),
            nic("FabricNicUnknown", "h1"),
            alert("FabricCollectiveStalled", workload="1", peer="h1", rank="8"),
            alert("FabricAgentLost", instance="h1"),
            alert("FabricClockUnsynchronized", instance="h1"),
        ],
    ),
    "a dead host that ran the coordinator and the receiver": (
        [alert("FabricHostDown", instance="monitor", peer="monitor", serves="coordinator and receiver")],
        [
            alert("FabricClockCoordinatorLost"),
            alert("FabricRemediationDown"),
            alert("FabricFrontEndDisconnected", instance="h1"),
            alert("FabricAgentLost", instance="h1"),
        ],
    ),
    "a dead host that ran the receiver": (
        [
            alert("FabricHostDown", instance="monitor", peer="monitor", serves="receiver"),
            alert("FabricClockCoordinatorLost"),
        ],
        [alert("FabricRemediationDown")],
    ),
    "a dead host that ran the coordinator": (
        [
            alert("FabricHostDown", instance="monitor", peer="monitor", serves="coordinator"),
            alert("FabricRemediationDown"),
        ],
        [alert("FabricClockCoordinatorLost")],
    ),
    "a Prometheus that reaches nothing": (
        [alert("FabricNoData")],
        [
            alert("FabricHostDown", instance="h1", peer="h1"),
            alert("FabricExporterDown", instance="h1", job="fabricpulse-mesh"),
            alert("FabricRemediationDown"),
        ],
    ),
    "a lossy spine": (
        [
            alert("FabricFaultLocated", kind="switch", what="loss", faulty="spine1"),
            nic("FabricNicLossy", "h1", direction="receive"),
            nic("FabricMtuBlackHole", "h3"),
        ],
        [
            nic("FabricNicLossy", "h2", direction="receive", peers="lossy"),
            nic("FabricPathDown", "h1", leaf="leaf1"),
            nic("FabricPathLossy", "h2", leaf="leaf2"),
            nic("FabricEdgeLoss", "h2", peer="h1", peer_device="rail0"),
        ],
    ),
    "a lossy link of one rail": (
        [
            alert("FabricFaultLocated", kind="link", what="loss", faulty="l1", peer="s1", network="rail0"),
            alert("FabricNetworkDown", network="rail0"),
            nic("FabricNicLossy", "h2", device="rail1", direction="receive", peers="lossy"),
            nic("FabricPathDown", "h1", device="rail1", leaf="leaf1"),
            nic("FabricPathLossy", "h4", device="rail1", leaf="leaf2"),
            nic("FabricEdgeLoss", "h2", device="rail1", peer="h1", peer_device="rail1"),
        ],
        [
            nic("FabricNicLossy", "h2", direction="receive", peers="lossy"),
            nic("FabricPathDown", "h1", leaf="leaf1"),
            nic("FabricPathLossy", "h4", leaf="leaf2"),
            nic("FabricEdgeLoss", "h2", peer="h1", peer_device="rail0"),
            alert("FabricSloMissed", network="rail0", objective="loss"),
        ],
    ),
    "a spine of one rail that drops large packets": (
        [
            alert("FabricFaultLocated", kind="switch", what="mtu", faulty="spine1", network="rail0"),
            nic("FabricMtuBlackHole", "h2", device="rail1"),
        ],
        [nic("FabricMtuBlackHole", "h1")],
    ),
    "a spine that delays, and losses that it does not explain": (
        [
            alert("FabricFaultLocated", kind="switch", what="delay", faulty="spine1"),
            nic("FabricNicLossy", "h2", direction="receive", peers="lossy"),
            nic("FabricPathDown", "h1", leaf="leaf1"),
            nic("FabricPathLossy", "h4", leaf="leaf2"),
            nic("FabricEdgeLoss", "h2", peer="h1", peer_device="rail0"),
            nic("FabricMtuBlackHole", "h3"),
        ],
        [],
    ),
    "a lossy spine without a coordinator": (
        [
            alert("FabricNetworkLossy", network="rail0"),
            nic("FabricPathDown", "h3"),
            nic("FabricNicLossy", "h1", direction="receive"),
            nic("FabricMtuBlackHole", "h3"),
        ],
        [
            nic("FabricNicLossy", "h2", direction="receive", peers="lossy"),
            nic("FabricPathLossy", "h4"),
            nic("FabricEdgeLoss", "h5", peer="h1", peer_device="rail0"),
        ],
    ),
    "a lossy leaf without a coordinator": (
        [
            lossy_leaf("leaf1"),
            nic("FabricNicLossy", "h2", direction="receive", peers="lossy", leaf="leaf2"),
            nic("FabricEdgeLoss", "h3", peer="h1", peer_device="rail0", leaf="leaf2"),
        ],
        [
            nic("FabricNicLossy", "h1", direction="receive", peers="lossy", leaf="leaf1"),
            nic("FabricPathLossy", "h1", leaf="leaf1"),
            nic("FabricEdgeLoss", "h1", peer="h3", peer_device="rail0", leaf="leaf1"),
        ],
    ),
    "a lossy network one leaf of which was named first": (
        [alert("FabricNetworkLossy", network="rail0")],
        [lossy_leaf("leaf1")],
    ),
    "a lossy spine that a coordinator finds later": (
        [alert("FabricFaultLocated", kind="switch", what="loss", faulty="spine1")],
        [alert("FabricNetworkLossy", network="rail0")],
    ),
    "a lossy spine of one rail that a coordinator finds later": (
        [
            alert("FabricFaultLocated", kind="switch", what="loss", faulty="spine1", network="rail0"),
            alert("FabricNetworkLossy", network="rail1"),
        ],
        [alert("FabricNetworkLossy", network="rail0")],
    ),
    "a lossy leaf that a coordinator finds, and another": (
        [
            alert("FabricFaultLocated", kind="switch", what="loss", faulty="leaf1", network="rail0"),
            lossy_leaf("leaf2"),
        ],
        [lossy_leaf("leaf1")],
    ),
    "a lossy leaf of several rails that a coordinator finds, and another": (
        [alert("FabricFaultLocated", kind="switch", what="loss", faulty="leaf1"), lossy_leaf("leaf2")],
        [lossy_leaf("leaf1"), lossy_leaf("leaf1", "rail1")],
    ),
    "a lossy link to a leaf, and another leaf": (
        [
            alert("FabricFaultLocated", kind="link", what="loss", faulty="s1", peer="leaf1", network="rail0"),
            lossy_leaf("leaf2"),
        ],
        [lossy_leaf("leaf1")],
    ),
    "a leaf that delays, and losses that it does not explain": (
        [
            alert("FabricFaultLocated", kind="switch", what="delay", faulty="leaf1", network="rail0"),
            lossy_leaf("leaf1"),
        ],
        [],
    ),
    "a spine that drops large packets": (
        [
            alert("FabricFaultLocated", kind="switch", what="mtu", faulty="spine1"),
            nic("FabricPathDown", "h1", leaf="leaf1"),
        ],
        [nic("FabricMtuBlackHole", "h1"), nic("FabricMtuBlackHole", "h2")],
    ),
    "a dead coordinator": (
        [
            alert("FabricClockCoordinatorLost"),
            alert("FabricExporterDown", instance="h1", job="fabricpulse-mesh"),
        ],
        [
            *(alert("FabricClockCoordinatorDown", instance=f"h{host}") for host in range(64)),
            *(alert("FabricClockBoundWide", instance=f"h{host}") for host in range(64)),
            alert("FabricExporterDown", instance="monitor", job="fabricpulse-coordinator"),
        ],
    ),
    "a dead leaf": (
        [
            alert("FabricFaultLocated", kind="switch", faulty="leaf7", leaf="leaf7", network="rail0"),
            nic("FabricNicDisconnected", "h40", device="rail1", leaf="leaf8"),
        ],
        [
            alert("FabricNetworkDown", network="rail0"),
            *(nic("FabricNicDisconnected", f"h{host}", leaf="leaf7") for host in range(32)),
            *(nic("FabricNicFlapping", f"h{host}", leaf="leaf7") for host in range(32)),
        ],
    ),
    "a dead rail": (
        [alert("FabricNetworkDown", network="rail0"), nic("FabricNicDisconnected", "h1", device="rail1")],
        [nic("FabricNicDisconnected", f"h{host}") for host in range(32)],
    ),
    "a dead NIC": (
        [
            nic("FabricNicDisconnected", "h1"),
            nic("FabricLaneDown", "h2", workload="1"),
            nic("FabricLaneDown", "h1", device="rail1", workload="1"),
        ],
        [
            nic("FabricLaneDown", "h1", workload="1"),
            nic("FabricPathDown", "h1"),
            nic("FabricLinkFlapping", "h1"),
            nic("FabricIbLinkDowned", "h1"),
            nic("FabricRetriesExceeded", "h1", kind="transport"),
            nic("FabricNicSlow", "h1", device="rail1", direction="receive"),
        ],
    ),
    "a flapping NIC": (
        [nic("FabricNicFlapping", "h1"), nic("FabricNicDisconnected", "h1", device="rail1")],
        [
            nic("FabricNicDisconnected", "h1"),
            nic("FabricNicFlappingSlowly", "h1"),
            nic("FabricLinkFlapping", "h1"),
            nic("FabricLaneFailovers", "h1"),
        ],
    ),
    "a NIC that has gone from its bus": (
        [
            nic("FabricNicGone", "h1"),
            nic("FabricNicDisconnected", "h1"),
            alert("FabricPortsMissing", instance="h2"),
        ],
        [alert("FabricPortsMissing", instance="h1")],
    ),
    "a dead receiver of remediation": (
        [alert("FabricRemediationDown"), alert("FabricExporterDown", instance="h1", job="fabricpulse-nic")],
        [
            alert("FabricExporterDown", instance="monitor", job="fabricpulse-remediation"),
            *(alert("FabricAgentLost", instance=f"h{host}") for host in range(8)),
        ],
    ),
    "a NIC that stops the network": (
        [
            nic("FabricPauseStorm", "h1"),
            nic("FabricReceiverCongested", "h2"),
            nic("FabricPaused", "h9", device="rail7"),
        ],
        [nic("FabricReceiverCongested", "h1"), nic("FabricPaused", "h3"), nic("FabricPaused", "h4")],
    ),
    "a NIC that flaps slowly": (
        [nic("FabricNicFlappingSlowly", "h1"), nic("FabricNicDisconnected", "h2")],
        [nic("FabricNicDisconnected", "h1")],
    ),
}


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an Alertmanager with deploy/alertmanager.yml, whose receivers notify nobody."""
    place = find_tool("alertmanager")
    if place is None:
        pytest.skip("alertmanager is not installed; scripts/fetch_tools.sh gets it")
    command = [str(part) for part in command_line(place)]
    with shipped_alertmanager(command, tmp_path_factory.mktemp("alertmanager")) as address:
        yield address


def test_one_alert_of_each_fault_notifies(alertmanager: str) -> None:
    """Of all alerts that a fault raises only those that name it are not muted, and none elsewhere is."""
    posted = [
        labels | {"cluster": fault}
        for fault, (notified, muted) in FAULTS.items()
        for labels in (*notified, *muted)
    ]
    # The same alerts in a fleet in which nothing else is wrong.
    alone = flow("h1", "h9", network="rail5")
    posted += [alone | {"cluster": "another fleet"}]
    post(alertmanager, posted)

    def active() -> dict[str, list[Labels]]:
        found: dict[str, list[Labels]] = {}
        for labels in not_muted(alertmanager, len(posted)):
            found.setdefault(labels.pop("cluster"), []).append(labels)
        return {fault: sorted(labels, key=_ordered) for fault, labels in found.items()}

    expected = {fault: sorted(_filled(notified), key=_ordered) for fault, (notified, _) in FAULTS.items()}
    expected["another fleet"] = _filled([alone])
    # What mutes is known a moment after it has been posted.
    with suppress(AssertionError):
        wait_for(lambda: active() == expected, 20, "only what names a fault notifies")
    assert active() == expected


def _filled(alerts: list[Labels]) -> list[Labels]:
    return [{name: text for name, text in labels.items() if text} for labels in alerts]


def _ordered(labels: Labels) -> list[tuple[str, str]]:
    return sorted(labels.items())
