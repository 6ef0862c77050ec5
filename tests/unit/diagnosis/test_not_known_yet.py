"""Of some flows it is not known how they are: their hosts are away, or have just come. That proves nothing."""

from tests.unit.diagnosis.test_random_faults import QUIET_S, names, steady
from tests.unit.diagnosis.virtual_fleet import Fault, VirtualFleet


def test_a_link_that_drops_large_packets_is_no_switch_as_the_coordinator_starts() -> None:
    """For half a minute hosts have just come, and what they do not say of a flow proves nothing: of the leaf only those
    flows counted that suffer.
    """
    fleet = VirtualFleet(9024, 9, 2, 3, 3, blind=["h8"])
    link = ("link", "leaf2-r1", "spine1-r1")
    fleet.faults = [steady("mtu", 1.0, link)]
    assert names(fleet.play(50)) == {link}


def test_a_restart_of_a_host_whose_nic_lost_packets_is_no_fault_of_it() -> None:
    """What the NIC had lost has arrived from hosts that are there: it vouches for nothing that the restart lost."""
    fleet = VirtualFleet(12014, 9, 2, 3, 3)
    nic = ("nic_rx", "h6/r0")
    fleet.faults = [steady("loss", 0.02, nic, begins_s=QUIET_S + 24, ends_s=QUIET_S + 47)]
    for number, host in enumerate(fleet.hosts):
        stops_s = QUIET_S + 40.4 + 2.5 * number
        fleet.restart(host, stops_s, stops_s + 3.5)
    assert names(fleet.play(QUIET_S + 80)) == {(*nic, "")}


def test_a_lossy_leaf_of_a_dead_host_is_not_its_other_nics() -> None:
    """Who is away is counted upon for some seconds, as if the leaf lost nothing on the way to him."""
    fleet = VirtualFleet(12020, 9, 2, 3, 3)
    parts = [(way, f"h6/{rail}") for rail in fleet.rails for way in ("nic_tx", "nic_rx")]
    dead = steady("loss", 1.0, *parts, begins_s=QUIET_S + 6.7)
    dead.host = "h6"
    fleet.faults = [dead, steady("loss", 0.6, ("switch", "leaf0-r1"), begins_s=QUIET_S + 7.6)]
    assert names(fleet.play(QUIET_S + 40)) == {("switch", "leaf0-r1", ""), ("host", "h6", "")}


def test_a_dead_leaf_whose_hosts_restart_is_not_its_uplinks() -> None:
    """Who had lost packets in every report and reports no more has not received all of them since."""
    fleet = VirtualFleet(12046, 9, 2, 3, 3)
    leaf = ("switch", "leaf2-r1")
    fleet.faults = [steady("loss", 1.0, leaf, begins_s=14.65, ends_s=36.14)]
    for number, host in enumerate(fleet.hosts):
        stops_s = 17.0 + 2.5 * number
        fleet.restart(host, stops_s, stops_s + 3.5)
    assert names(fleet.play(60)) == {(*leaf, "")}


def test_a_burst_as_the_coordinator_starts_is_not_its_last_flows() -> None:
    """What was found of a leaf had ended before it could be reported; reports of one host are left."""
    fleet = VirtualFleet(21027, 9, 2, 3, 3)
    fleet.play(30)
    fleet.restart_coordinator()
    leaf = ("switch", "leaf2-r1")
    flap = Fault("loss", (leaf,), frozenset(), lambda _, since: float(since % 10 < 1), 33.4, 80.0)
    fleet.faults = [flap]
    assert names(fleet.play(50)) == {(*leaf, "")}


def test_a_flap_that_has_ended_does_not_come_back_with_each_restart() -> None:
    """What a restart loses on flows that had flapped is no sign that they do so still."""
    fleet = VirtualFleet(21013, 15, 1, 5, 3, traced=False, blind=["h4"])
    way = ("link", "leaf1-r0", "spine2-r0")
    fleet.faults = [Fault("loss", (way,), frozenset(), lambda _, since: float(since % 10 < 1), 16.1, 56.8)]
    for number, host in enumerate(fleet.hosts):
        stops_s = 51.3 + 2.5 * number
        fleet.restart(host, stops_s, stops_s + 3.5)
    assert names(fleet.play(68)) <= {("link", "leaf1-r0", "fabric")}
    assert not names(fleet.play(30))
