"""Each cause is found where the facts show it, ranked first, and not where they do not."""

from dataclasses import replace

import pytest
from tests.fixtures.why.facts import EXPORTERS, HOSTS, RAILS, healthy, slow, with_flows, with_nic

from fabricpulse.core.web.prometheus import Sample
from fabricpulse.why.assemble import Gathered, assemble
from fabricpulse.why.catalogue import CAUSES
from fabricpulse.why.facts import Facts, Flow, Gpu, Host, NicId, Process, Rank, Wait
from fabricpulse.why.finding import LIKELY
from fabricpulse.why.infer import infer

QUEUED = {"delay_s": 400e-6, "marked": 500.0, "retransmits": 20.0}


def one_flow(f: Flow) -> bool:
    return f.source == ("h1", "rail0")


def into_h2(f: Flow) -> bool:
    return f.target == ("h2", "rail1")


def into_h3(count: int) -> tuple[Flow, ...]:
    """Flows of other hosts into one NIC."""
    return tuple(
        Flow(NicId(f"h{i}", f"rail{k}"), NicId("h3", "rail1"), 1e10, 1e10, 400e-6, 20e-6, 30e-6, None, 900, 5)
        for i in range(3)
        for k in range(2)
    )[:count]


def late_rank(facts: Facts) -> Facts:
    return replace(
        facts, ranks=tuple(replace(r, duration_s=0.02 if r.rank == 2 else 0.06) for r in facts.ranks)
    )


def hanging(facts: Facts, waits: tuple[Wait, ...]) -> Facts:
    return replace(facts, ranks=tuple(replace(r, rate=0.0) for r in facts.ranks), waits=waits)


def uneven(facts: Facts, hosts: tuple[str, ...]) -> Facts:
    return with_flows(facts, lambda f: f.source.host in hosts and f.source.device == "rail1", sent=2e9)


def without_plugin(facts: Facts, host: str) -> Facts:
    """Its flows and its ranks are unknown, and nothing there measures what arrives."""
    facts = with_flows(facts, lambda f: f.target.host == host, delay_s=None, floor_s=None)
    return replace(
        facts,
        flows=tuple(f for f in facts.flows if f.source.host != host),
        ranks=tuple(r for r in facts.ranks if r.host != host),
    )


PLAYED = {
    "nic_flap": (with_nic(healthy(), "h1", "rail0", disconnects=3, link_downs=3, failovers=2), "rail0 of h1"),
    "nic_loss": (
        slow(with_flows(with_nic(healthy(), "h2", "rail1", loss_in=0.02, lossy_edges=3), into_h2, retransmits=900.0)),
        "rail1 of h2",
    ),
    "slow_link": (slow(with_nic(healthy(), "h0", "rail1", speed=1.25e10)), "rail1 of h0"),
    "contention_jobs": (
        replace(
            slow(with_flows(healthy(), one_flow, **QUEUED)),
            other_slow_flows={"other": (Flow(NicId("h9", "rail0"), NicId("h8", "rail0")),)},
        ),
        "1 flows, with job other",
    ),
    "contention_self": (slow(with_flows(healthy(), one_flow, **QUEUED)), "1 flows"),
    "incast": (slow(replace(f := healthy(), flows=(*f.flows, *into_h3(4)))), "rail1 of h3"),
    "receiver_congestion": (
        slow(
            replace(
                f := with_nic(healthy(), "h3", "rail1", pause_sent=0.3, drops=500),
                flows=(*f.flows, *into_h3(4)),
            )
        ),
        "rail1 of h3",
    ),
    "misrouted_path": (
        slow(with_flows(healthy(), one_flow, delay_s=300e-6, floor_s=280e-6)),
        "rail0 of h1 to rail0 of h2",
    ),
    "lane_imbalance": (uneven(healthy(), ("h2",)), "rail1 of h2"),
    "uneven_rails": (uneven(healthy(), HOSTS), "rail1 of 4 hosts"),
    "straggler_rank": (slow(late_rank(healthy())), "rank 2 on h2"),
    "straggler_gpu": (
        slow(
            replace(
                late_rank(healthy()),
                gpus=tuple(Gpu(h, "0", 0.6 if h == "h2" else 1.0, h == "h2") for h in HOSTS),
            )
        ),
        "rank 2 on h2",
    ),
    "clock_error": (
        replace(f := healthy(), clocks=tuple(replace(c, disruptions=1) if c.host == "h3" else c for c in f.clocks)),
        "h3",
    ),
    "rank_dead": (
        with_nic(
            with_nic(
                replace(f := slow(healthy()), hosts=(Host("h0", 0, 2, EXPORTERS), *f.hosts[1:])),
                "h0",
                "rail0",
                transmitted=0.0,
            ),
            "h0",
            "rail1",
            transmitted=0.0,
        ),
        "h0",
    ),
    "hang": (
        hanging(healthy(), tuple(Wait(f"h{i + 1}", i + 1, f"h{i}", i, "peer_send", 30 - i) for i in range(3))),
        "rank 0 on h0",
    ),
    "plugin_off": (
        without_plugin(healthy(), "h1"),
        "h1",
    ),
    "compute": (
        replace(f := healthy(), collectives=(replace(f.collectives[0], rate=5.0),)),
        "all ranks",
    ),
}  # fmt: skip


def test_every_cause_is_played() -> None:
    """No cause is without a case below."""
    assert PLAYED.keys() == CAUSES.keys()


@pytest.mark.parametrize("cause", PLAYED)
def test_found_first(cause: str) -> None:
    """The cause is the first of the answer, at its place, and said with confidence."""
    facts, where = PLAYED[cause]
    answer = infer(facts)
    assert [(r.finding.cause, r.finding.where) for r in answer.causes[:1]] == [(cause, where)]
    assert answer.causes[0].finding.confidence >= 0.9
    assert CAUSES[cause].title in answer.headline


def test_nothing_wrong() -> None:
    """A healthy job has no cause at all."""
    answer = infer(healthy())
    assert (answer.state, answer.causes, answer.unknown) == ("healthy", (), ())
    assert "Nothing is wrong" in answer.headline


@pytest.mark.parametrize("cause", ["straggler_rank", "straggler_gpu", "compute", "receiver_congestion"])
def test_the_network_is_not_the_reason(cause: str) -> None:
    """A slow job whose reason is elsewhere is reported so in the first sentence."""
    assert "network is not the reason" in infer(PLAYED[cause][0]).headline


def test_an_effect_is_below_its_reason() -> None:
    """Congestion of the receiver explains the slow flows into it: no incast is ranked beside it."""
    answer = infer(PLAYED["receiver_congestion"][0])
    assert [r.finding.cause for r in answer.causes] == ["receiver_congestion"]


def test_two_at_once() -> None:
    """Two causes at different places are both ranked."""
    facts = with_nic(slow(late_rank(healthy())), "h0", "rail1", speed=1.25e10)
    assert {r.finding.cause for r in infer(facts).causes} == {"slow_link", "straggler_rank"}


def test_a_marked_flow_of_usual_delay_is_no_contention() -> None:
    """Some marks are how congestion control works."""
    assert infer(with_flows(healthy(), one_flow, marked=500.0)).causes == ()


@pytest.mark.parametrize("rails", [("rail1",), ("rail0", "rail1")])
def test_a_dead_nic_is_no_loss_of_its_peers(rails: tuple[str, ...]) -> None:
    """Peers lose all that they send to a NIC that is gone; without the NIC exporter it is named all the same, alone."""
    facts = healthy()
    for host in ("h0", "h1", "h2"):
        for rail in RAILS:
            facts = with_nic(facts, host, rail, loss_out=0.33, lossy_edges=len(rails))
    for rail in rails:
        facts = with_nic(facts, "h3", rail, connected=False, disconnects=1, loss_in=1.0, lossy_edges=3)
    hosts = tuple(replace(h, exporters=h.exporters - {"nic"}) for h in facts.hosts)
    causes = infer(replace(facts, hosts=hosts)).causes
    assert [(c.finding.cause, c.finding.where) for c in causes] == [("nic_flap", f"{r} of h3") for r in rails]
    assert all(c.finding.confidence > 0.9 for c in causes)


def test_loss_of_one_edge_is_a_hint() -> None:
    """One lossy edge of three may be the path, or a dead NIC of a host that is not in the job: nobody is accused."""
    facts = healthy()
    for host in HOSTS:
        facts = with_nic(facts, host, "rail0", loss_out=0.12, lossy_edges=1)
    assert all(c.finding.confidence < LIKELY for c in infer(facts).causes)


def test_lossy_peers_of_a_lossy_nic_are_effects() -> None:
    """One bad NIC makes one lossy edge at each peer; only the NIC is named."""
    facts = with_nic(healthy(), "h1", "rail0", loss_in=0.05, lossy_edges=3)
    for host in ("h0", "h2", "h3"):
        facts = with_nic(facts, host, "rail0", loss_out=0.017, lossy_edges=1)
    assert [r.finding.where for r in infer(facts).causes] == ["rail0 of h1"]


def test_a_plugin_that_is_gone_after_a_restart() -> None:
    """The exporter keeps what the ended processes have sent, which stands still."""
    facts, _ = PLAYED["plugin_off"]
    gone = tuple(replace(h, processes=0.0) if h.name == "h1" else h for h in facts.hosts)
    kept = tuple(replace(f, sent=0.0) for f in healthy().flows if f.source.host == "h1")
    reported = infer(replace(facts, hosts=gone, flows=(*facts.flows, *kept))).causes
    assert [(r.finding.cause, r.finding.where) for r in reported] == [("plugin_off", "h1")]


def test_an_ended_job() -> None:
    """All processes gone everywhere is an end, not a death."""
    gone = tuple(Host(h, 0, 2, EXPORTERS) for h in HOSTS)
    facts = replace(healthy(), flows=(), ranks=(), collectives=(), hosts=gone)
    answer = infer(facts)
    assert (answer.state, answer.causes) == ("ended", ())


def test_a_stopped_process_is_the_head() -> None:
    """What is sent to a stopped process is not acknowledged: it is named, and not the network."""
    waits = (
        Wait("h0", 0, "h1", 1, "delivery", 20.0),
        Wait("h2", 2, "h1", 1, "peer_send", 20.0),
        Wait("h1", 1, "h0", 0, "peer_send", 20.0),
    )
    facts = replace(hanging(healthy(), waits), processes=(Process("h1", 1, 20.0), Process("h0", 0, 0.5)))
    first = infer(facts).causes[0].finding
    assert (first.cause, first.where) == ("hang", "rank 1 on h1")


def test_a_hang_without_requests() -> None:
    """With NCCL's own transports no request is seen: the rank that has not started the collective is named."""
    facts = hanging(healthy(), ())
    ranks = tuple(replace(r, in_progress=0) if r.rank == 3 else r for r in facts.ranks)
    assert infer(replace(facts, ranks=ranks)).causes[0].finding.where == "rank 3 on h3"


def test_a_dead_link_hangs_a_ring() -> None:
    """All ranks wait in a circle; data under way says where it begins."""
    waits = (
        *(Wait(f"h{(i + 1) % 4}", (i + 1) % 4, f"h{i}", i, "peer_send", 30.0) for i in range(4)),
        Wait("h1", 1, "h2", 2, "delivery", 31.0),
    )
    first = infer(hanging(healthy(), waits)).causes[0].finding
    assert (first.cause, first.where) == ("hang", "between rank 1 on h1 and rank 2 on h2")


@pytest.mark.parametrize("component", ["mesh", "nic", "qp", "clocksync"])
def test_a_missing_exporter_is_named(component: str) -> None:
    """Which exporter is missing, and on which host."""
    hosts = tuple(Host(h, 2, 2, EXPORTERS - {component} if h == "h2" else EXPORTERS) for h in HOSTS)
    answer = infer(replace(healthy(), hosts=hosts))
    assert answer.missing == {component: ("h2",)}
    assert any(line.startswith(f"{component} did not answer on 1 of 4 hosts (h2)") for line in answer.unknown)


def test_missing_data_lowers_confidence() -> None:
    """The same observations say less when an exporter that would contradict does not answer everywhere."""
    facts, _ = PLAYED["contention_self"]
    hosts = tuple(Host(h, 2, 2, EXPORTERS - {"qp"} if h == "h2" else EXPORTERS) for h in HOSTS)
    sure, less = (infer(f).causes[0].finding.confidence for f in (facts, replace(facts, hosts=hosts)))
    assert less < sure


def test_ranks_are_compared_within_a_communicator() -> None:
    """Short collectives of another communicator make nobody late."""
    facts = healthy()
    other = tuple(Rank("c2", i, h, 4, 500, 10, 10, 0.001, 0) for i, h in enumerate(HOSTS))
    assert infer(replace(facts, ranks=facts.ranks + other)).causes == ()


def test_queues_of_a_host_that_lost_a_nic_are_its_effect() -> None:
    """What the NIC carried goes over the host's other one, whose flows wait; another job's wait somewhere as well."""
    elsewhere: dict[str, tuple[Flow, ...]] = {"other": (Flow(NicId("h9", "rail0"), NicId("h8", "rail0")),)}
    queued = slow(with_flows(healthy(), one_flow, **QUEUED))
    lost = with_nic(
        replace(queued, other_slow_flows=elsewhere), "h1", "rail1", connected=False, disconnects=1
    )
    (reported,) = infer(lost).causes
    assert reported.finding.where == "rail1 of h1"
    assert [f.cause for f in reported.explains] == ["contention_jobs"]
    far = with_nic(replace(queued, other_slow_flows=elsewhere), "h3", "rail1", connected=False, disconnects=1)
    assert {r.finding.cause for r in infer(far).causes} == {"nic_flap", "contention_jobs"}


def test_edges_to_a_nic_of_another_job_that_is_gone_are_no_loss() -> None:
    """Each NIC of the job that probed it loses a fifth of its probes, those of one host of two rails even more."""
    labels = {"instance": "h1", "device": "rail0"}
    peers = [("h9", "rail0"), ("h9", "rail1"), ("h2", "rail0")]

    def reported(lossy: list[tuple[str, str]]) -> list[str]:
        now = {
            "processes": [Sample({"instance": h}, 1.0) for h in HOSTS],
            "connected": [Sample(labels | {"network": "rail0"}, 1.0)],
            "loss_in": [Sample(labels, 0.4)],
            "lossy_edges": [Sample(labels | {"peer": h, "peer_device": d}, 0.5) for h, d in lossy],
            "gone": [Sample({"instance": "h9", "device": d}, 1.0) for d in RAILS],
        }
        facts = assemble("train", 1e6, 30.0, Gathered(now, now))
        everything = frozenset({"mesh", "nic", "qp", "clocksync"})
        facts = replace(facts, hosts=tuple(replace(h, exporters=everything) for h in facts.hosts))
        return [r.finding.where for r in infer(facts).causes if r.finding.confidence >= LIKELY]

    assert reported(peers[:2]) == []
    assert reported([*peers, ("h3", "rail0")]) == ["rail0 of h1"]


def test_an_idle_nic_is_no_uneven_rail_in_a_small_ring() -> None:
    """Of four hosts two cannot send over the rail as usual: the one with the NIC, and the one that sends to it."""
    nic = NicId("h1", "rail0")
    idle = with_flows(healthy(), lambda f: nic in (f.source, f.target), sent=0.0)
    idle = with_flows(
        idle, lambda f: "h1" in (f.source.host, f.target.host) and f.source.device == "rail1", sent=4e10
    )
    (reported,) = infer(idle).causes
    assert (reported.finding.cause, reported.finding.where) == ("lane_imbalance", "rail0 of h1")


def test_a_flow_that_took_over_the_load_of_another_nic_is_not_misrouted() -> None:
    """Its quickest chunks are slow as well, behind twice as many others."""
    slower = {"floor_s": 400e-6, "delay_s": 900e-6, "probe_s": 4e-6}
    facts = with_flows(healthy(), one_flow, **slower)
    assert [r.finding.cause for r in infer(facts).causes] == ["misrouted_path"]
    facts = with_flows(facts, one_flow, sent=4e10)
    assert infer(facts).causes == ()


def test_little_that_a_nic_is_sent_is_lost_and_its_host_tells_nothing() -> None:
    """The host may not have taken it, as behind a narrow PCIe slot; what the NIC sends a host does not lose so."""
    resent = with_flows(healthy(), lambda f: "h1" in (f.source.host, f.target.host), retransmits=20.0)
    hosts = tuple(replace(h, exporters=h.exporters - {"nic"}) if h.name == "h1" else h for h in resent.hosts)
    unknown = {"drops": None, "pause_sent": None, "pcie_share": None}
    for blind, loss_in, loss_out, likely in (
        (False, 0.01, 0.0, True),
        (True, 0.01, 0.0, False),
        (True, 0.0, 0.01, True),
        (True, 0.05, 0.0, False),
        (True, 0.05, 0.05, True),
    ):
        facts = with_nic(resent, "h1", "rail0", loss_in=loss_in, loss_out=loss_out, lossy_edges=3)
        if blind:
            facts = replace(with_nic(facts, "h1", "rail0", **unknown), hosts=hosts)
        finding = next(r.finding for r in infer(facts).causes if r.finding.cause == "nic_loss")
        assert (finding.confidence >= LIKELY) is likely


def test_what_probes_did_not_pass_before_either_is_not_why() -> None:
    """Chunks of an all-to-all wait for one another, milliseconds beside probes of microseconds. Those of a
    late rank do beside quick ones, as the others are through by then. A path that is news is beyond its past.
    """
    waits = {
        "floor_s": 4e-3,
        "floor_before_s": 3e-3,
        "delay_s": 9e-3,
        "delay_before_s": 9e-3,
        "probe_s": 4e-6,
    }
    facts = slow(with_flows(healthy(), lambda _: True, **waits))
    assert infer(facts).causes == ()
    late = with_flows(facts, lambda f: f.source.host != "h1", floor_s=1e-3, delay_s=2e-3)
    late = with_flows(late, lambda f: f.source.host == "h1", floor_s=11e-3, delay_s=15e-3)
    hints = [r.finding for r in infer(late).causes if r.finding.cause == "misrouted_path"]
    assert all(found.confidence < LIKELY for found in hints)
    assert any("in the baseline as well" in e.text for found in hints for e in found.evidence)
    worse = with_flows(facts, one_flow, floor_s=30e-3, delay_s=40e-3)
    assert infer(worse).causes[0].finding.cause == "misrouted_path"
    # Of a job that was always as slow nothing is old.
    always = with_flows(
        healthy(), one_flow, floor_s=400e-6, floor_before_s=400e-6, delay_s=900e-6, probe_s=4e-6
    )
    assert infer(always).causes[0].finding.confidence >= LIKELY


def test_loss_both_ways_towards_a_nic_that_was_gone_is_none() -> None:
    facts = with_nic(healthy(), "h1", "rail0", loss_in=0.088, loss_out=0.081, lossy_edges=0)
    assert infer(facts).causes == ()
    facts = with_nic(healthy(), "h1", "rail0", loss_in=0.01, loss_out=0.081, lossy_edges=0)
    assert infer(facts).causes[0].finding.cause == "nic_loss"


def test_a_host_that_is_cut_off_has_no_wrong_clock() -> None:
    """No probe reaches it, so that nobody can tell it the time."""
    clocks = tuple(replace(c, synchronized=c.host != "h1") for c in healthy().clocks)
    facts = replace(healthy(), clocks=clocks)
    assert infer(facts).causes[0].finding.cause == "clock_error"
    for rail in RAILS:
        facts = with_nic(facts, "h1", rail, connected=False, disconnects=1)
    likely = {r.finding.cause for r in infer(facts).causes if r.finding.confidence >= LIKELY}
    assert likely == {"nic_flap"}
    blind = tuple(
        replace(h, exporters=EXPORTERS - {"mesh"}) if h.name == "h1" else h for h in healthy().hosts
    )
    assert infer(replace(healthy(), clocks=clocks, hosts=blind)).causes[0].finding.confidence < LIKELY


def test_who_was_killed_is_named_of_a_job_that_ended() -> None:
    """The others have ended as well, because of it, and closed what they had; it is the one that is counted longest."""
    gone = tuple(replace(h, processes=2.0 if h.name == "h2" else 0.0) for h in healthy().hosts)
    named = tuple(replace(h, dead=1.0 if h.name == "h2" else None) for h in gone)
    reported = infer(replace(healthy(), hosts=named, flows=())).causes
    assert [(r.finding.cause, r.finding.where) for r in reported] == [("rank_dead", "h2")]
    aborted = tuple(replace(h, dead=1.0) for h in gone)
    assert all(r.finding.confidence < LIKELY for r in infer(replace(healthy(), hosts=aborted)).causes)


def test_a_worse_path_without_probes_beside_it_is_known_by_its_own_past() -> None:
    slower = {"floor_s": 300e-6, "delay_s": 500e-6, "probe_s": None}
    reported = infer(with_flows(healthy(), one_flow, **slower)).causes
    assert reported[0].finding.cause == "misrouted_path"
    assert infer(with_flows(healthy(), one_flow, **slower | {"delay_before_s": 400e-6})).causes == ()


def test_a_link_that_is_slower_than_it_says_is_not_called_lossy() -> None:
    """As seen live: its queue overflows, in which all flows and probes from and to it wait."""
    nic = NicId("h1", "rail0")
    facts = with_flows(
        slow(healthy()), lambda f: nic in (f.source, f.target), delay_s=18e-3, probe_s=2e-3, retransmits=5.0
    )
    facts = with_nic(facts, "h1", "rail0", loss_in=0.4, lossy_edges=3)
    first, *_ = infer(facts).causes
    assert (first.finding.cause, first.finding.where) == ("slow_link", "rail0 of h1")
    assert "nic_loss" in {f.cause for f in first.explains}
    # The mesh need not have an edge to each peer of the job.
    unprobed = with_flows(facts, lambda f: f.source == nic, probe_s=None)
    assert infer(unprobed).causes[0].finding.cause == "slow_link"
    blind = with_flows(facts, lambda f: nic in (f.source, f.target), probe_s=None)
    assert "slow_link" not in {r.finding.cause for r in infer(blind).causes}


def test_a_full_queue_of_two_jobs_loses_a_little() -> None:
    queued = replace(
        slow(with_flows(healthy(), one_flow, **QUEUED)),
        other_slow_flows={"other": (Flow(NicId("h9", "rail0"), NicId("h8", "rail0")),)},
    )
    facts = with_nic(with_nic(queued, "h0", "rail0", loss_out=0.013), "h1", "rail0", loss_out=0.006)
    assert infer(facts).causes[0].finding.cause == "contention_jobs"
    resent = with_flows(queued, lambda f: f.source == ("h0", "rail0"), retransmits=900.0)
    more = infer(with_nic(resent, "h0", "rail0", loss_out=0.06)).causes
    assert {r.finding.cause for r in more if r.finding.confidence > 0.9} >= {"nic_loss"}


def test_of_flows_that_are_as_slow_always_the_same_is_named() -> None:
    """Whatever order the names of NICs have in a set, which is another one in each process."""
    hosts = tuple(f"h{number:02d}" for number in range(12))
    facts = slow(healthy(hosts))
    chosen = [f for f in facts.flows if f.source.host in ("h00", "h03", "h06", "h09")]
    facts = with_flows(facts, lambda f: f in chosen, delay_s=900e-6, floor_s=800e-6)
    (reported,) = [r.finding.where for r in infer(facts).causes if r.finding.cause == "misrouted_path"]
    assert reported == str(max(chosen, key=lambda f: (f.source, f.target)))


def test_a_rank_that_is_late_in_slow_collectives() -> None:
    """A sixth of what they take now, which is nothing of the spread: named beside why they are slow, if it is news."""
    late = {"h0": 0.3649, "h1": 0.3662, "h2": 0.3637, "h3": 0.3011}
    for before, likely in ((0.1395, True), (0.1300, False), (None, False)):
        usual = {"h0": 0.1406, "h1": 0.1417, "h2": 0.1408, "h3": before}
        ranks = tuple(
            replace(r, duration_s=late[r.host], duration_before_s=usual[r.host]) for r in healthy().ranks
        )
        causes = infer(replace(slow(healthy()), ranks=ranks)).causes
        named = [r.finding.where for r in causes if r.finding.cause == "straggler_rank"]
        assert named == (["rank 3 on h3"] if likely else [])


def test_a_rank_that_is_a_little_late_hides_nothing() -> None:
    """Not one that is late by more, of six of whom one may be late, and not what ranks do between collectives."""

    def late(facts: Facts, shares: dict[str, float]) -> Facts:
        each = (replace(r, duration_before_s=r.duration_s) for r in facts.ranks)
        ranks = (replace(r, duration_s=(r.duration_s or 0) * (1 - shares.get(r.host, 0))) for r in each)
        return replace(facts, ranks=tuple(ranks))

    six = slow(healthy(tuple(f"h{n}" for n in range(6))))
    both = infer(late(six, {"h1": 0.30, "h3": 0.12}))
    assert [r.finding.where for r in both.causes if r.finding.cause == "straggler_rank"] == ["rank 1 on h1"]
    between = PLAYED["compute"][0]
    for gpus in ((), (Gpu("h3", "0", clock=0.7),)):
        first = infer(late(replace(between, gpus=gpus), {"h3": 0.12})).causes[0].finding
        assert first.cause == "compute" and first.confidence >= LIKELY
        assert first.confidence == infer(between).causes[0].finding.confidence
