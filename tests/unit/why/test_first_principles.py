"""What physics says of a fault, written down without running the model: one thing is wrong, and the model must not be
misled by what it brings about, by what was always so, or by what is not known."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.why.facts import HOSTS, RAILS, healthy, slow, with_flows, with_nic
from tests.fixtures.why.findings import first, late, likely

from fabricpulse.why.facts import Facts, Flow, Nic, NicId
from fabricpulse.why.finding import LIKELY
from fabricpulse.why.infer import Ranked, infer

# Of a queue that has grown: some hundred microseconds where there were twenty.
WAITS = {"delay_s": 400e-6, "floor_s": 150e-6}
SOCKETS_LESS = {"marked": None, "retransmits": None}


def rdma(facts: Facts, **counted: Any) -> Facts:
    """Queue pairs: nobody counts marks of a flow. counted : what the driver counts of every port."""
    facts = with_flows(facts, lambda _: True, **SOCKETS_LESS)
    return replace(facts, nics=tuple(replace(n, **counted) for n in facts.nics))


def all_to_all() -> Facts:
    """Each of eight hosts sends to each other on both rails; the first half of them is one pod."""
    hosts = tuple(f"h{number}" for number in range(8))
    facts = healthy(hosts)
    flows = tuple(
        Flow(
            *(NicId(a, rail), NicId(b, rail), 3e9, 3e9, 20e-6, 20e-6, 12e-6, 10e-6),
            marked=0,
            retransmits=0,
        )
        for a in hosts
        for b in hosts
        for rail in RAILS
        if a != b
    )
    return replace(facts, flows=flows)


def first_pod(host: str) -> bool:
    return host in ("h0", "h1", "h2", "h3")


def test_a_crowded_uplink_under_all_to_all_is_no_incast() -> None:
    """Four senders into each NIC of the other pod wait, and those of its own pod do not: the queue is further away."""
    facts = with_flows(
        slow(all_to_all()),
        lambda f: first_pod(f.source.host) and not first_pod(f.target.host) and f.source.device == "rail0",
        **WAITS,
        marked=900.0,
    )
    assert first(facts) == "contention_self"


def test_an_incast_under_all_to_all() -> None:
    """All that goes to one NIC waits, wherever it comes from."""
    facts = with_flows(slow(all_to_all()), lambda f: f.target == ("h5", "rail1"), **WAITS, marked=900.0)
    assert likely(facts) == [("incast", "rail1 of h5")]


@pytest.mark.parametrize("counted", [{"slowed": 500.0}, {"resent": 20.0}, {"pause_received": 0.3}])
def test_a_queue_of_rdma_is_seen_in_what_ports_count(counted: dict[str, float]) -> None:
    """The sender is asked to slow down, sends again, or is paused."""
    quiet = rdma(slow(healthy()), slowed=0.0, resent=0.0, marked=0.0)
    waiting = with_flows(quiet, lambda f: f.source == ("h1", "rail0"), **WAITS)
    assert (
        first(with_nic(with_nic(waiting, "h1", "rail0", **counted), "h2", "rail0", marked=50.0))
        == "contention_self"
    )
    # Without any sign the same is another way.
    assert first(waiting) == "misrouted_path"


def test_marks_of_another_flow_of_the_sender_are_no_sign() -> None:
    """The receiver counts marks, and none arrive there."""
    quiet = rdma(slow(healthy()), slowed=0.0, resent=0.0, marked=0.0)
    facts = with_flows(quiet, lambda f: f.source == ("h1", "rail0"), **WAITS)
    assert first(with_nic(facts, "h1", "rail0", slowed=500.0)) == "misrouted_path"


def test_without_counters_a_queue_and_another_way_are_not_distinguished_with_confidence() -> None:
    """InfiniBand in a container: no driver's counters at all."""
    facts = with_flows(rdma(slow(healthy())), lambda f: f.source == ("h1", "rail0"), **WAITS)
    (reported,) = infer(facts).causes
    assert reported.finding.confidence < 0.7


def test_a_senders_pause_is_part_of_an_incast() -> None:
    """Lossless Ethernet: the port into the NIC fills, the switch pauses who sends; the receiver pauses nobody."""
    facts = with_flows(rdma(slow(all_to_all())), lambda f: f.target == ("h5", "rail1"), **WAITS)
    for host in {h.name for h in facts.hosts} - {"h5"}:
        facts = with_nic(facts, host, "rail1", pause_received=0.2)
    assert first(facts) == "incast"


def test_long_ways_that_were_as_long_before_are_no_contention() -> None:
    """Between pods a flow takes longer than within one, some packets are marked, and the job is as quick as ever."""
    far = {"delay_s": 90e-6, "delay_before_s": 88e-6, "floor_s": 45e-6, "probe_s": 40e-6, "marked": 40.0}
    facts = with_flows(all_to_all(), lambda f: first_pod(f.source.host) != first_pod(f.target.host), **far)
    assert likely(facts) == []
    late = replace(
        slow(facts), ranks=tuple(replace(r, duration_s=0.02 if r.rank == 2 else 0.06) for r in facts.ranks)
    )
    assert likely(late) == [("straggler_rank", "rank 2 on h2")]


def test_a_job_that_waited_before_as_well_is_not_whom_this_one_waits_with() -> None:
    """In a large fleet some job has slow flows at any time."""
    queued = with_flows(slow(healthy()), lambda f: f.source == ("h1", "rail0"), **WAITS, marked=900.0)
    elsewhere: dict[str, tuple[Flow, ...]] = {"other": (Flow(NicId("h9", "rail0"), NicId("h8", "rail0")),)}
    facts = replace(queued, other_slow_flows=elsewhere)
    assert first(facts) == "contention_jobs"
    old = replace(facts, other_slow_before=frozenset({"other"}))
    assert first(old) == "contention_self"
    shared: dict[str, tuple[Flow, ...]] = {"other": (Flow(NicId("h1", "rail0"), NicId("h8", "rail0")),)}
    assert first(replace(old, other_slow_flows=shared)) == "contention_jobs"


def test_with_whom_is_not_said_where_nobody_records_it() -> None:
    """Without the rules of fabricpulse contention is found, and its title is no certainty."""
    queued = with_flows(slow(healthy()), lambda f: f.source == ("h1", "rail0"), **WAITS, marked=900.0)
    (reported,) = infer(replace(queued, other_slow_flows=None)).causes
    assert LIKELY <= reported.finding.confidence < 0.9


def test_a_mesh_that_does_not_reach_a_nic_over_which_the_job_sends() -> None:
    """Another key, or a firewall: the probes of a host do not arrive, and its flows carry what they carried."""
    facts = healthy()
    for rail in RAILS:
        facts = with_nic(facts, "h1", rail, connected=False, loss_in=1.0, loss_out=1.0)
    assert likely(facts) == []
    # Nor does the plugin of who sends to it look switched off, whatever else its NICs send.
    idle = with_flows(slow(facts), lambda f: "h1" in (f.source.host, f.target.host), sent=0.0)
    assert {c for c, _ in likely(idle)} == {"nic_flap"}


def test_a_dead_leaf_is_one_finding() -> None:
    facts = slow(healthy(tuple(f"h{i}" for i in range(8))))
    for i in range(4):
        facts = with_nic(facts, f"h{i}", "rail0", connected=False, disconnects=1, loss_in=1.0)
    places = [w for c, w in likely(facts) if c == "nic_flap"]
    assert places == ["rail0 of h0, rail0 of h1, rail0 of h2 and 1 more"]


@pytest.mark.parametrize(
    "fault", [{"connected": False, "disconnects": 2}, {"loss_in": 0.05, "lossy_edges": 3}, {"speed": 1.25e10}]
)
def test_a_nic_of_a_network_that_the_job_does_not_use(fault: dict[str, Any]) -> None:
    """The storage rail is broken; the job is slow because of its input."""
    facts = healthy()
    storage = tuple(Nic(NicId(h, "stor0"), "storage", True, 0, 0, 0, 5e10, 5e10, edges=3) for h in HOSTS)
    pace = replace(facts.collectives[0], rate=5.0)
    facts = with_nic(
        replace(facts, nics=(*facts.nics, *storage), collectives=(pace,)), "h1", "stor0", **fault
    )
    assert likely(facts) == [("compute", "all ranks")]


def test_probes_that_are_lost_beside_packets_that_are_not() -> None:
    """A host too busy to take probes: 5 % are lost on all of its edges, and of 20 GB/s nothing is sent again."""
    facts = healthy()
    for rail in RAILS:
        facts = with_nic(facts, "h1", rail, loss_in=0.05, lossy_edges=3)
    assert likely(facts) == []
    again = with_flows(facts, lambda f: f.target == ("h1", "rail0"), retransmits=5000.0)
    assert likely(again) == [("nic_loss", "rail0 of h1")]
    # Nobody counts what queue pairs send again.
    assert {c for c, _ in likely(rdma(facts))} == {"nic_loss"}


def test_narrow_slots_of_all_machines_are_no_fault() -> None:
    """Cards for sixteen lanes in slots with eight, everywhere; one that has trained down to two is one."""
    facts = replace(healthy(), nics=tuple(replace(n, pcie_share=0.5) for n in healthy().nics))
    assert likely(facts) == []
    assert likely(with_nic(facts, "h2", "rail0", pcie_share=0.125)) == [
        ("receiver_congestion", "rail0 of h2")
    ]


def test_a_job_that_always_uses_one_rail() -> None:
    """As it is set up; what is new is a late rank."""
    facts = with_flows(healthy(), lambda f: f.source.device == "rail1", sent=0.0, sent_before=0.0)
    assert likely(facts) == []
    assert likely(late(slow(facts), 1)) == [("straggler_rank", "rank 1 on h1")]
    newly = with_flows(healthy(), lambda f: f.source.device == "rail1", sent=0.0)
    assert first(newly) == "uneven_rails"


def test_without_the_mesh_a_slow_nic_for_other_uses_is_none() -> None:
    """Each host has a card for its management beside its rails; without the mesh nothing says what belongs together."""
    cards = tuple(Nic(NicId(h, "eno1"), speed=3e9, speed_before=3e9) for h in HOSTS)
    facts = replace(healthy(), nics=(*(replace(n, network="") for n in healthy().nics), *cards))
    assert likely(facts) == []
    assert likely(with_nic(facts, "h1", "rail0", speed=1.25e10)) == [("slow_link", "rail0 of h1")]


def test_loss_before_a_full_port_is_no_bad_cable() -> None:
    """An incast overflows its queue: probes are lost and those that arrive have waited, as the packets of the job."""
    facts = with_flows(
        slow(all_to_all()), lambda f: f.target == ("h5", "rail1"), **WAITS, marked=0, retransmits=90.0
    )
    facts = with_nic(facts, "h5", "rail1", loss_in=0.04, lossy_edges=3)
    assert first(with_flows(facts, lambda f: f.target == ("h5", "rail1"), probe_s=300e-6)) == "incast"
    # Probes are as quick as ever: what loses packets is no queue.
    assert first(facts) == "nic_loss"


@pytest.mark.parametrize(("times", "cause"), [(3.0, "incast"), (1.0, "nic_loss")])
def test_probes_with_a_queue_of_their_own_are_lost_at_a_full_port(times: float, cause: str) -> None:
    """Switch ports with a queue for each flow pass probes at once and drop some of them while all else waits. That the
    cable is well is known by what it carries: more than ever before.
    """
    into = NicId("h5", "rail1")
    facts = with_flows(
        slow(all_to_all()),
        lambda f: f.target == into,
        **WAITS,
        sent=times * 3e9,
        retransmits=25.0,
    )
    facts = with_nic(facts, *into, loss_in=0.007, edges=5.0, lossy_edges=3.0)
    assert first(facts) == cause


@pytest.mark.parametrize(("edges", "cause"), [(1, ""), (2, ""), (4, "nic_loss")])
def test_loss_on_the_way_to_some_peers_is_not_the_senders(edges: int, cause: str) -> None:
    """Another job's NIC takes badly, or an uplink is full: of what a NIC sends there a part is lost, and the job sends
    packets again. Where most of its edges lose, the NIC does.
    """
    facts = with_flows(slow(healthy()), lambda f: f.source == ("h1", "rail0"), retransmits=30.0)
    facts = with_nic(facts, "h1", "rail0", loss_out=0.0125, edges=5.0, lossy_edges=float(edges))
    assert [found for found, _ in likely(facts)] == ([cause] if cause else [])


def test_loss_of_an_uplink_that_two_jobs_fill_is_no_bad_cable() -> None:
    """Probes that cross it wait, as the packets of both jobs, and more of them are lost than a queue usually loses."""
    crossed = {NicId("h1", "rail0"), NicId("h2", "rail0")}
    facts = with_flows(
        slow(all_to_all()),
        lambda f: f.source in crossed and not first_pod(f.target.host),
        **WAITS,
        retransmits=30.0,
        probe_s=200e-6,
    )
    for nic in crossed:
        facts = with_nic(facts, *nic, loss_out=0.035, edges=5.0, lossy_edges=3.0)
    other = Flow(NicId("h9", "rail0"), NicId("h5", "rail0"))
    facts = replace(facts, other_slow_flows={"other": (other,)})
    assert likely(facts)[0][0] == "contention_jobs"
    # The mesh has no edge beside the flows: two NICs lose, and each of them would be called broken.
    blind = with_flows(facts, lambda _: True, probe_s=None)
    assert likely(blind)[0][0] == "contention_jobs"
    assert "nic_loss" not in {cause for cause, _ in likely(blind)}
    # Seen in the lab: the flows of one of the two stay in the leaf, and do not wait.
    local = with_flows(
        blind, lambda f: f.source == ("h2", "rail0"), delay_s=None, probe_s=None, retransmits=6.0
    )
    assert "nic_loss" not in {cause for cause, _ in likely(local)}
    # Nor need it be another job that fills it.
    own = replace(blind, other_slow_flows={})
    assert [cause for cause, _ in likely(own)] == ["contention_self"]
    # One alone, or far more than a queue loses: a bad cable, whoever else waits.
    for end, loss in ((("h2", "rail0"), 0.0), (("h1", "rail0"), 0.2)):
        assert ("nic_loss", "rail0 of h1") in likely(
            with_nic(blind, *end, loss_out=loss, lossy_edges=3.0 * (loss > 0))
        )


def test_a_host_that_takes_too_little_is_neither_a_bad_cable_nor_a_slow_link() -> None:
    """Its switch port is paused, the queue before it grows and overflows; its own NIC says who is the reason."""
    nic = NicId("h2", "rail1")
    facts = with_flows(slow(healthy()), lambda f: f.target == nic, **WAITS, retransmits=900.0, probe_s=300e-6)
    facts = with_nic(facts, "h2", "rail1", loss_in=0.04, lossy_edges=3, pause_sent=0.4)
    assert likely(facts) == [("receiver_congestion", "rail1 of h2")]
    narrow = with_flows(slow(healthy()), lambda f: nic in (f.source, f.target), **WAITS, probe_s=300e-6)
    assert likely(narrow) == [("slow_link", "rail1 of h2")]
    assert likely(with_nic(narrow, "h2", "rail1", pcie_share=0.125)) == [
        ("receiver_congestion", "rail1 of h2")
    ]


def test_an_idle_nic_in_the_middle_of_a_tree() -> None:
    """Of four hosts h0 - h1, h0 - h2, h1 - h3: without a NIC of h0 three hosts have a NIC that carries little."""
    pairs = [("h0", "h1"), ("h0", "h2"), ("h1", "h3")]
    flows = tuple(
        Flow(
            *(NicId(a, rail), NicId(b, rail)),
            sent=0.0 if "h0" in pair and rail == "rail0" else 2e9 * (1 + ("h0" in pair)),
            sent_before=2e9,
            delay_s=20e-6,
            delay_before_s=20e-6,
            floor_s=12e-6,
            marked=0,
            retransmits=0,
        )
        for pair in pairs
        for a, b in (pair, pair[::-1])
        for rail in RAILS
    )
    assert likely(replace(healthy(), flows=flows)) == [("lane_imbalance", "rail0 of h0")]
    # The rail is off everywhere.
    off = tuple(replace(f, sent=0.0 if f.source.device == "rail0" else 4e9) for f in flows)
    assert likely(replace(healthy(), flows=off)) == [("uneven_rails", "rail0 of 4 hosts")]


def test_an_idle_nic_under_all_to_all() -> None:
    """All others send their share to that host over its other NIC."""
    nic = NicId("h3", "rail0")
    facts = with_flows(all_to_all(), lambda f: nic in (f.source, f.target), sent=0.0)
    facts = with_flows(
        facts, lambda f: "h3" in (f.source.host, f.target.host) and f.source.device == "rail1", sent=6e9
    )
    assert likely(facts) == [("lane_imbalance", "rail0 of h3")]


def test_queues_at_the_nic_that_stands_in_for_an_idle_one_are_its_effect() -> None:
    """A host that is kept off one of its NICs sends and receives everything over the other one, whose flows wait."""
    idle, other = NicId("h5", "rail0"), NicId("h5", "rail1")
    facts = with_flows(
        slow(all_to_all(), 0.85), lambda f: idle in (f.source, f.target), sent=0.0, delay_s=None
    )
    facts = with_flows(facts, lambda f: f.source == other, sent=5e9, retransmits=20.0, **WAITS)
    facts = with_flows(facts, lambda f: f.target == other, sent=5e9)
    assert likely(facts) == [("lane_imbalance", "rail0 of h5")]
    # Where others wait, too, they meet elsewhere.
    crossing = with_flows(facts, lambda f: f.source == ("h1", "rail1"), retransmits=20.0, **WAITS)
    assert likely(crossing)[0][0] == "contention_self"


def test_storage_traffic_of_a_host_that_no_job_says_is_its_own() -> None:
    """Checkpoints leave by the same NIC: it sends three times what the job sends over it, and did not before."""
    queued = with_flows(
        slow(healthy()), lambda f: f.source == ("h1", "rail0"), **WAITS, marked=900.0, sent=1e10
    )
    facts = with_nic(queued, "h1", "rail0", transmitted=4e10)
    assert likely(facts) == [("contention_jobs", "1 flows, with what else rail0 of h1 sends")]
    # As much beside the job as before, and acknowledgements only.
    assert first(with_nic(facts, "h1", "rail0", transmitted_before=5e10)) == "contention_self"
    assert first(with_nic(facts, "h1", "rail0", transmitted=1.2e10)) == "contention_self"


def test_a_dead_nic_makes_its_neighbours_in_a_ring_send_less_over_theirs() -> None:
    """The lane of who sends to it is an effect at another host, and must not stand before a second cause."""
    hosts = tuple(f"h{number}" for number in range(8))
    nic = NicId("h3", "rail1")
    facts = with_flows(healthy(hosts), lambda f: nic in (f.source, f.target), sent=0.0)
    facts = with_nic(late(slow(facts), 6), "h3", "rail1", connected=False, disconnects=1)
    assert sorted(likely(facts)) == [("nic_flap", "rail1 of h3"), ("straggler_rank", "rank 6 on h6")]


def test_a_lane_that_hardly_carries_anything_says_nothing_of_its_nics() -> None:
    """Beside a slow link lanes between other NICs stand in for lost ones, for some chunks: too few for any of them to
    be sent again, or to wait as long as all others of the link."""
    link = NicId("h1", "rail0")
    facts = with_flows(
        slow(all_to_all()),
        lambda f: link in (f.source, f.target),
        delay_s=400e-6,
        floor_s=200e-6,
        probe_s=None,
        sent=1e9,
        retransmits=30.0,
    )
    facts = with_nic(facts, *link, loss_in=0.006, loss_out=0.02, edges=5.0, lossy_edges=5.0)
    spare = Flow(link, NicId("h5", "rail1"), 1e7, 0.0, 900e-6, None, 20e-6, 4e-6, 0.0, 0.4)
    other = Flow(NicId("h6", "rail0"), link, 1e7, 0.0, 900e-6, None, 800e-6, 4e-6, 0.0, 0.4)
    facts = replace(facts, flows=(*facts.flows, spare, other))
    assert likely(facts) == [("slow_link", "rail0 of h1")]
    # As much as others carry: a way of its own.
    routed = tuple(replace(f, sent=3e9) if f == other else f for f in facts.flows)
    assert "misrouted_path" in {c for r in infer(replace(facts, flows=routed)).causes for c in _all(r)}


def _all(ranked: Ranked) -> list[str]:
    return [ranked.finding.cause, *(e.cause for e in ranked.explains)]
