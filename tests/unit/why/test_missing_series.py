"""Exporters answer and single series are missing: a relabel rule, a cap on samples. Nobody is blamed for what is not
known, and what is known is said all the same."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.bench.why.recorded import read
from tests.fixtures.why.facts import RAILS, healthy, slow, with_flows, with_nic
from tests.fixtures.why.findings import likely

from fabricpulse.why.facts import Facts, Flow, NicId
from fabricpulse.why.infer import infer

OF = ("flows", "nics", "ranks", "hosts", "collectives", "clocks")
SENT = 2e10


def job(hosts: int, pairs: Iterable[tuple[int, int]]) -> Facts:
    """Every host sends as much to each of its peers, on both rails; its NICs send that and nothing else."""
    facts = healthy(tuple(f"h{number}" for number in range(hosts)))
    ways = list(pairs)
    to = Counter(f"h{source}" for source, _ in ways)
    flows = tuple(
        Flow(
            *(NicId(f"h{source}", rail), NicId(f"h{target}", rail), SENT, SENT, 20e-6, 20e-6, 12e-6, 10e-6),
            marked=0,
            retransmits=0,
        )
        for source, target in ways
        for rail in RAILS
    )
    nics = tuple(
        replace(n, transmitted=SENT * to[n.id.host], transmitted_before=SENT * to[n.id.host])
        for n in facts.nics
    )
    return replace(facts, flows=flows, nics=nics)


def ring(hosts: int) -> Facts:
    return job(hosts, [(number, (number + 1) % hosts) for number in range(hosts)])


def tree(hosts: int) -> Facts:
    edges = [(number, (number - 1) // 2) for number in range(1, hosts)]
    return job(hosts, [*edges, *(edge[::-1] for edge in edges)])


def all_to_all(hosts: int) -> Facts:
    return job(hosts, [(a, b) for a in range(hosts) for b in range(hosts) if a != b])


SHAPES: list[Callable[[int], Facts]] = [ring, tree, all_to_all]


def may_be_unknown(thing: Any) -> list[str]:
    return [f.name for f in fields(thing) if f.default is None]


def at_random(facts: Facts, rng: random.Random) -> Facts:
    """Single fields of single things."""
    share = rng.choice([0.02, 0.1, 0.3])

    def holes(thing: Any) -> Any:
        return replace(thing, **{name: None for name in may_be_unknown(thing) if rng.random() < share})

    chosen: dict[str, Any] = {
        kind: tuple(map(holes, getattr(facts, kind))) for kind in OF if rng.random() < 0.6
    }
    return replace(facts, **chosen)


def host_of(thing: Any) -> str:
    if isinstance(thing, Flow):
        return thing.source.host
    return getattr(thing, "host", "") or getattr(
        getattr(thing, "id", None), "host", getattr(thing, "name", "")
    )


def relabelled(facts: Facts, rng: random.Random) -> Facts:
    """Some fields of all things of some hosts."""
    hosts = {h.name for h in facts.hosts if rng.random() < rng.choice([0.3, 1.0])}
    changed: dict[str, Any] = {}
    for kind in OF:
        things = getattr(facts, kind)
        lost = {name: None for name in may_be_unknown(things[0]) if rng.random() < 0.2}
        changed[kind] = tuple(replace(t, **lost) if host_of(t) in hosts else t for t in things)
    return replace(facts, **changed)


def capped(facts: Facts, rng: random.Random) -> Facts:
    """Whole flows that one host sends, or all of them."""
    host, share = rng.choice(facts.hosts).name, rng.choice([0.2, 0.5, 0.8, 1.0])
    kept = tuple(f for f in facts.flows if f.source.host != host or rng.random() >= share)
    return replace(facts, flows=kept)


def capped_and_more(facts: Facts, rng: random.Random) -> Facts:
    return at_random(capped(facts, rng), rng)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gap", [at_random, relabelled, capped, capped_and_more])
def test_nobody_is_blamed_for_a_series_that_is_missing(
    shape: Callable[[int], Facts], gap: Callable[[Facts, random.Random], Facts]
) -> None:
    """A healthy job with holes: no cause is named. Idle NICs, uneven rails and plugins that are off were."""
    blamed = {}
    for seed in range(100):
        rng = random.Random(seed)
        facts = gap(shape(rng.choice([3, 4, 6, 8])), rng)
        if named := likely(facts):
            blamed[seed] = named
    assert blamed == {}


def reasons(facts: Facts) -> list[str]:
    """Why what is seen is not decided."""
    return [e.text for r in infer(facts).causes for e in r.finding.evidence if "not enough data" in e.text]


def test_the_series_that_is_missing_is_named() -> None:
    """One hint, which says what to look for."""
    facts = all_to_all(8)
    gap = with_flows(facts, lambda f: f.source == ("h1", "rail0"), sent=None)
    assert reasons(gap) == [
        "not enough data: bytes sent (fabricpulse_qp_sent_bytes_total) of 7 flows of rail0 of h1 are not known"
    ]
    lost = replace(facts, flows=tuple(f for f in facts.flows if f.source != ("h1", "rail0")))
    assert reasons(lost) == [
        "not enough data: rail0 of h1 sends 1120.0 Gb/s that no known flow accounts for: series of its flows"
        " (fabricpulse_qp_sent_bytes_total) may be missing"
    ]
    assert "nor what it sends" in reasons(with_nic(lost, "h1", "rail0", transmitted=None))[0]
    plugin = replace(facts, flows=tuple(f for f in facts.flows if f.source.host != "h1"))
    assert reasons(plugin) == [
        "not enough data: chunks of the plugin arrive at h1: series of what it sends"
        " (fabricpulse_qp_sent_bytes_total) are missing"
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_nic_that_the_job_does_not_use_is_found_without_its_flows(shape: Callable[[int], Facts]) -> None:
    """Flows that carry nothing have no series, and a NIC that sends hardly anything hides none."""
    facts = with_nic(slow(shape(8)), "h2", "rail1", transmitted=0.02 * SENT)
    kept = tuple(f for f in facts.flows if NicId("h2", "rail1") not in (f.source, f.target))
    before = with_flows(facts, lambda f: f not in kept, sent=0.0)
    assert likely(before)[:1] == [("lane_imbalance", "rail1 of h2")]
    # Whether it was so before is not known either then: a hint, and no word of missing series.
    assert not reasons(replace(facts, flows=kept))


def test_what_others_send_over_an_idle_nic_hides_no_flow() -> None:
    """Storage that was there before: what the NIC sends is no news."""
    facts = slow(all_to_all(8))
    storage = {"transmitted": 9 * SENT, "transmitted_before": 16 * SENT}
    idle = with_nic(
        with_flows(facts, lambda f: f.source == ("h2", "rail1"), sent=0.0), "h2", "rail1", **storage
    )
    assert ("lane_imbalance", "rail1 of h2") in likely(idle)


def test_processes_that_are_not_counted_are_not_dead() -> None:
    """The exporter answers without the one series, and nothing is known of the NICs."""
    facts = slow(healthy())
    hosts = tuple(replace(h, processes=None) if h.name == "h1" else h for h in facts.hosts)
    nics = tuple(replace(n, transmitted=None) if n.id.host == "h1" else n for n in facts.nics)
    assert "rank_dead" not in {cause for cause, _ in likely(replace(facts, hosts=hosts, nics=nics))}


def test_what_the_job_sends_itself_is_no_other_job() -> None:
    """Of a NIC whose flows wait, what one of them sends is not known: that is not sent beside the job."""
    facts = with_flows(
        slow(all_to_all(8)),
        lambda f: f.source == ("h1", "rail0") and f.target.host in ("h2", "h3"),
        delay_s=400e-6,
        marked=500.0,
    )
    gap = with_flows(facts, lambda f: f.source == ("h1", "rail0") and f.target.host > "h3", sent=None)
    assert [cause for cause, _ in likely(gap)] == [cause for cause, _ in likely(facts)]


RECORDS = [record.facts for record in read() if not record.truth]


@pytest.mark.parametrize("gap", [at_random, relabelled, capped, capped_and_more])
def test_nobody_is_blamed_of_what_was_recorded(gap: Callable[[Facts, random.Random], Facts]) -> None:
    """Healthy live runs: probes that a NIC which was gone has lost, queues that were always there."""
    named = [likely(gap(facts, random.Random(seed))) for facts in RECORDS for seed in range(5)]
    assert [found for found in named if found] == []
