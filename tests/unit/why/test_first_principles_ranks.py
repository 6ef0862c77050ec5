"""As test_first_principles, of ranks, processes, GPUs and clocks: not the network, whatever it looks like."""

import math
from dataclasses import replace

from tests.fixtures.why.facts import EXPORTERS, HOSTS, healthy, slow, with_flows, with_nic
from tests.fixtures.why.findings import first, late, likely

from fabricpulse.why.facts import Clock, Collective, Facts, Gpu, Host, Process, Rank, Wait
from fabricpulse.why.infer import infer


def test_a_rank_that_was_as_late_before_has_not_made_the_job_slower() -> None:
    """The last stage of a pipeline is always late; what is new is a slow link."""
    facts = with_nic(late(slow(healthy()), 3, before_s=0.015), "h0", "rail1", speed=1.25e10)
    assert likely(facts) == [("slow_link", "rail1 of h0")]
    assert {c for c, _ in likely(with_nic(late(slow(healthy()), 3), "h0", "rail1", speed=1.25e10))} == {
        "slow_link",
        "straggler_rank",
    }
    # Of a job that is as slow as it was, nothing is new.
    assert first(late(healthy(), 3, before_s=0.015)) == "straggler_rank"


def test_a_late_rank_is_named_once_over_all_communicators() -> None:
    """GPU 5 of h2 holds up its tensor group, and so all eight of its host their data groups."""
    inner = tuple(
        Rank(f"tp-{h}", i, h, 8, 900, 90, 90, 0.001 if (h, i) == ("h2", 5) else 0.008, 0)
        for h in HOSTS
        for i in range(8)
    )
    outer = tuple(
        Rank(f"dp-{i}", n, h, 4, 100, 10, 10, 0.02 if h == "h2" else 0.06, 0)
        for i in range(8)
        for n, h in enumerate(HOSTS)
    )
    facts = with_nic(slow(healthy()), "h0", "rail1", speed=1.25e10)
    found = likely(replace(facts, ranks=(*inner, *outer)))
    assert sorted(found) == [("slow_link", "rail1 of h0"), ("straggler_rank", "rank 5 on h2")]


def test_of_two_ranks_the_one_whose_time_has_not_grown_is_late() -> None:
    pair = (
        Rank("c", 0, "h0", 2, 100, 5, 10, 0.08, 1, 0.03),
        Rank("c", 1, "h1", 2, 100, 5, 10, 0.03, 1, 0.03),
    )
    facts = replace(slow(healthy(("h0", "h1"))), ranks=pair)
    assert likely(facts)[0] == ("straggler_rank", "rank 1 on h1")
    always = tuple(replace(r, duration_before_s=r.duration_s) for r in pair)
    assert "straggler_rank" not in dict(likely(replace(facts, ranks=always)))


def test_a_slow_gpu_without_the_profiler() -> None:
    """Nothing is known of ranks, so that all of them seem to compute longer."""
    gpus = tuple(
        Gpu(h, str(i), 0.55 if (h, i) == ("h2", 3) else 1.0, (h, i) == ("h2", 3))
        for h in HOSTS
        for i in range(8)
    )
    pace = replace(healthy().collectives[0], rate=5.0)
    facts = replace(healthy(), ranks=(), collectives=(pace,), gpus=gpus)
    assert likely(facts)[0] == ("straggler_gpu", "GPU 3 of h2")
    capped = tuple(replace(g, throttled=True) for g in gpus)
    assert first(replace(facts, gpus=capped)) == "compute"


def test_slow_input_that_slows_the_collectives_a_little() -> None:
    """Busy hosts: three quarters of what a turn has grown by is between the collectives."""
    c = replace(healthy().collectives[0], rate=5.0, bandwidth=4e10 / 1.5)
    assert first(replace(healthy(), collectives=(c,))) == "compute"
    # Where the network is the reason, they grow by what the turn grows by.
    c = replace(c, bandwidth=4e10 / 3)
    assert likely(replace(healthy(), collectives=(c,))) == []


def test_a_job_that_evaluates() -> None:
    """No rank is in a collective, for longer than the window."""
    facts = replace(
        healthy(),
        ranks=tuple(replace(r, rate=0.0, in_progress=0) for r in healthy().ranks),
        collectives=(Collective("AllReduce", 0.0, 10, None, 4e10, 1.0, None, 2e9),),
    )
    answer = infer(facts)
    assert (answer.state, first(facts)) == ("slow", "compute")
    assert first(replace(facts, ranks=tuple(replace(r, in_progress=1) for r in facts.ranks))) == "hang"
    ended = replace(facts, flows=(), hosts=tuple(replace(h, processes=0.0) for h in facts.hosts))
    assert (infer(ended).state, infer(ended).causes) == ("ended", ())


def test_a_clock_slows_no_job() -> None:
    """A stepped clock beside a late rank is said after it, and alone it is not the reason."""
    clocks = tuple(replace(c, disruptions=1, suspect=True) if c.host == "h3" else c for c in healthy().clocks)
    both = replace(late(slow(healthy()), 1), clocks=clocks)
    assert [c for c, _ in likely(both)] == ["straggler_rank", "clock_error"]
    alone = infer(replace(slow(healthy()), clocks=clocks))
    assert "does not say why" in alone.headline
    assert alone.causes[0].finding.cause == "clock_error"


def test_a_job_that_was_requeued_on_other_hosts_has_no_dead_rank() -> None:
    facts = healthy()
    left = tuple(Host(f"old{i}", 0.0, 2.0, EXPORTERS) for i in range(4))
    fresh = tuple(replace(h, processes_before=None) for h in facts.hosts)
    assert likely(replace(facts, hosts=(*fresh, *left))) == []


def test_a_job_that_goes_on_with_fewer_hosts_has_no_dead_rank() -> None:
    facts = replace(healthy(), hosts=(*healthy().hosts, Host("h9", 0.0, 2.0, EXPORTERS)))
    assert likely(facts) == []
    assert first(slow(facts, 0.1)) == "rank_dead"


def test_nobody_is_said_to_wait_for_nobody_who_does_not_report() -> None:
    """The exporter of h1 is down: that rank 1 has no waiting requests is not known."""
    waits = tuple(Wait(f"h{i}", i, f"h{i - 1}", i - 1, "peer_send", 30.0) for i in (2, 3))
    ranks = tuple(replace(r, rate=0.0) for r in healthy().ranks)
    everybody = tuple(Process(h, i, 0.5) for i, h in enumerate(HOSTS))
    facts = replace(healthy(), ranks=ranks, waits=waits, processes=everybody)
    sure = infer(facts).causes[0].finding
    assert (sure.where, "waits for nobody" in sure.evidence[1].text) == ("rank 1 on h1", True)
    deaf = replace(facts, processes=tuple(p for p in everybody if p.host != "h1"))
    reported = infer(deaf).causes[0].finding
    assert reported.where == "rank 1 on h1"
    assert reported.confidence < sure.confidence
    assert not any("waits for nobody" in e.text for e in reported.evidence)
    sent = replace(deaf, waits=(*waits, Wait("h0", 0, "h1", 1, "delivery", 31.0)))
    assert any(
        "nothing is received of the job on h1" in e.text for e in infer(sent).causes[0].finding.evidence
    )


def hangs_for(facts: Facts, number: int) -> Facts:
    """All others wait for this rank, which waits for nobody."""
    ring = [((number + i) % 4, (number + i - 1) % 4) for i in (1, 2, 3)]
    waits = tuple(Wait(f"h{one}", one, f"h{other}", other, "peer_send", 30.0) for one, other in ring)
    ranks = tuple(replace(r, rate=0.0) for r in facts.ranks)
    everybody = tuple(Process(h, i, 0.5) for i, h in enumerate(HOSTS))
    return replace(facts, ranks=ranks, waits=waits, processes=everybody)


def test_a_nic_that_is_back_holds_no_job_that_waits_for_a_rank() -> None:
    """It flapped ten minutes ago; now a rank does not enter the collective."""
    flapped = with_nic(healthy(), "h3", "rail0", disconnects=2, link_downs=2)
    assert likely(hangs_for(flapped, 1)) == [("hang", "rank 1 on h1")]
    # A NIC that is gone now does not explain a rank of another host that offers nothing.
    gone = with_nic(healthy(), "h3", "rail0", connected=False, disconnects=1)
    assert {c for c, _ in likely(hangs_for(gone, 1))} == {"hang", "nic_flap"}


def test_a_flap_that_is_over_comes_after_what_slows_the_job_now() -> None:
    """The NIC is back and carries its half of what its host sends."""
    flapped = with_nic(late(slow(healthy()), 1), "h3", "rail0", disconnects=2, link_downs=2)
    assert [c for c, _ in likely(flapped)] == ["straggler_rank", "nic_flap"]
    # Lanes that are damped keep it from its share.
    damped = with_flows(flapped, lambda f: f.source == ("h3", "rail0"), sent=8e9)
    assert first(damped) == "nic_flap"
    # Alone it is what is said.
    assert first(slow(with_nic(healthy(), "h3", "rail0", disconnects=2))) == "nic_flap"


def text_of_hang(facts: Facts) -> str:
    return infer(facts).causes[0].finding.evidence[0].text


def test_how_long_nothing_has_ended_is_what_is_known() -> None:
    """Not the window that was asked about, where a request, a dump or the age of the job says less."""
    still = hangs_for(healthy(), 1)
    assert "no collective has ended for 120 s" in text_of_hang(still)
    assert "has ended for 20 s" in text_of_hang(replace(still, started_s=still.at_s - 20))
    dumped = tuple(replace(r, still_s=3.0 + r.rank) for r in still.ranks)
    assert "has ended for 3 s" in text_of_hang(replace(still, ranks=dumped))
    unknown = tuple(replace(r, still_s=0.0) for r in still.ranks)
    assert "no collective ends" in text_of_hang(replace(still, ranks=unknown))
    moving = replace(
        healthy(), waits=tuple(replace(w, age_s=6.0) for w in still.waits), processes=still.processes
    )
    assert "has ended for 6 s" in text_of_hang(moving)


def test_more_than_before_is_no_share() -> None:
    """253 % of the collectives is nothing that anybody says."""

    def said(rate: float) -> str:
        facts = healthy()
        return " ".join(
            infer(replace(facts, collectives=(replace(facts.collectives[0], rate=rate),))).comparisons
        )

    assert "with itself before: 2.53 times the collectives a second" in said(25.3)
    assert "with itself before: 50% of the collectives a second" in said(5)
    assert "with itself before: 100% of the collectives a second" in said(10)


def hang_of(facts: Facts) -> list[tuple[str, float]]:
    return [(r.finding.where, r.finding.confidence) for r in infer(facts).causes if r.finding.cause == "hang"]


def ring_of_waits(ages_s: dict[int, float]) -> tuple[Wait, ...]:
    """Of a ring of four whose rank 2 does not enter: who of the others was scraped when."""
    after = {0: 3, 1: 0, 3: 2}
    return tuple(
        Wait(f"h{n}", n, f"h{after[n]}", after[n], "peer_send", age_s) for n, age_s in ages_s.items()
    )


def test_hosts_that_are_scraped_at_moments_of_their_own() -> None:
    """Who was scraped first has waited for less: it waits all the same. Who was scraped before it began is not known to
    wait for nobody."""
    facts = replace(healthy(), processes=tuple(Process(h, i, 0.4) for i, h in enumerate(HOSTS)))
    now_s = facts.at_s
    young = replace(
        facts,
        waits=ring_of_waits({0: 6.0, 1: 6.0, 3: 2.0}),
        scraped={"h0": now_s, "h1": now_s, "h2": now_s, "h3": now_s - 4},
    )
    assert [where for where, _ in hang_of(young)] == ["rank 2 on h2"]
    before = replace(facts, waits=ring_of_waits({0: 6.0, 1: 6.0}), scraped={**young.scraped, "h3": now_s - 9})
    ((where, confidence),) = hang_of(before)
    assert (where, confidence < 0.9) == ("rank 3 on h3", True)
    evidence = infer(before).causes[0].finding.evidence
    assert any("h3 was last scraped before this began" in e.text for e in evidence)
    # A stopped rank that was scraped before: what was sent to it is not acknowledged, and it is not the network.
    sent = Wait("h1", 1, "h2", 2, "delivery", 6.0)
    stopped = replace(facts, waits=(sent,), scraped={**young.scraped, "h2": now_s - 10})
    stalled = replace(stopped, ranks=tuple(replace(r, rate=0.0) for r in facts.ranks))
    assert [confidence < 0.9 for _, confidence in hang_of(stalled)] == [True]
    known = replace(stalled, scraped=dict.fromkeys(HOSTS, now_s))
    assert [confidence > 0.9 for _, confidence in hang_of(known)] == [True]


def test_a_host_that_nobody_knows_of_may_wait_itself() -> None:
    """The store that has it is away: it is no host of the job then."""
    facts = healthy(HOSTS[:3])
    processes = tuple(Process(h, i, 0.4) for i, h in enumerate(HOSTS[:3]))
    waits = ring_of_waits({0: 9.0, 1: 9.0})
    ranks = tuple(replace(r, rate=0.0) for r in facts.ranks)
    ((where, confidence),) = hang_of(replace(facts, waits=waits, processes=processes, ranks=ranks))
    assert (where, confidence < 0.9) == ("rank 3 on h3", True)


def test_who_waits_in_one_communicator_is_not_late_in_another() -> None:
    """Rank 3 does not enter a collective of its pair; its partner waits there, and all others for the partner. A person
    attaches to the rank that the launcher knows."""
    whole = [Rank("dp", n, f"h{n}", 4, 1000, 0, 10, 0.05, float(n < 2)) for n in range(4)]
    first = [Rank("tpa", n, f"h{n}", 2, 5000, 0, 50, 0.01, 0) for n in (0, 1)]
    second = [Rank("tpb", n - 2, f"h{n}", 2, 4990, 0, 50, 0.01, float(n == 2)) for n in (2, 3)]
    facts = replace(healthy(), flows=(), ranks=(*whole, *first, *second))
    assert [where for where, _ in hang_of(facts)] == ["rank 3 on h3"]


def test_a_rank_that_was_started_again_is_a_hint() -> None:
    """What a crash has left is counted for a while."""
    hosts = tuple(replace(h, dead=2) if h.name == "h1" else h for h in healthy().hosts)
    assert likely(replace(healthy(), hosts=hosts)) == []
    gone = tuple(replace(h, processes=1) if h.name == "h1" else h for h in hosts)
    assert likely(replace(healthy(), hosts=gone)) == [("rank_dead", "h1")]
    # Seen in the lab: the others have ended for it. Its host shows the previous count, as nothing says 0 there.
    over = tuple(h if h.name == "h1" else replace(h, processes=0.0) for h in hosts)
    assert ("rank_dead", "h1") in likely(replace(healthy(), hosts=over))


def test_a_fleet_without_time_is_nobodys_clock() -> None:
    """The coordinator is down; a clock that was stepped beside that is named."""
    lost = tuple(Clock(h, False, math.inf, 0, False) for h in HOSTS)
    assert likely(replace(healthy(), clocks=lost)) == []
    stepped = tuple(replace(c, disruptions=1) if c.host == "h2" else c for c in lost)
    assert likely(replace(healthy(), clocks=stepped)) == [("clock_error", "h2")]
