"""Recorded runs with exporters that do not answer: less is known, and what is not known is not said."""

from collections.abc import Iterator

import pytest
from tests.bench.why.recorded import Record, read, without

from fabricpulse.why.infer import LIKELY, infer

RECORDS = read()


def gaps(record: Record) -> Iterator[frozenset[str]]:
    """Each host, and all of them."""
    names = frozenset(h.name for h in record.facts.hosts)
    yield from (frozenset({name}) for name in sorted(names))
    yield names


def wrong(record: Record, component: str, least: float) -> tuple[int, int]:
    """(answers whose first cause is said with so much confidence and is not one of what was broken, all)."""
    found = 0
    answers = [infer(without(record.facts, component, hosts)) for hosts in gaps(record)]
    for answer in answers:
        first = answer.causes[0].finding if answer.causes else None
        if first is not None and first.confidence >= least:
            known = [pair for truth in record.truth for pair in truth.any_of]
            found += not any(first.cause == cause and place in first.where for cause, place in known)
    return found, len(answers)


@pytest.mark.parametrize("component", ["mesh", "nic", "qp", "clocksync"])
def test_a_healthy_job_stays_healthy(component: str) -> None:
    """Whichever exporter is missing."""
    assert [wrong(r, component, LIKELY)[0] for r in RECORDS if not r.truth] == [0] * sum(
        not r.truth for r in RECORDS
    )


@pytest.mark.parametrize(
    ("component", "share"), [("mesh", 0.03), ("nic", 0.03), ("qp", 0.03), ("clocksync", 0)]
)
def test_what_is_said_for_sure_is_right(component: str, share: float) -> None:
    """Of all answers hardly any is wrong and said with 90 %. The others are queues of flows nobody sees."""
    counts = [wrong(r, component, 0.9) for r in RECORDS]
    assert sum(bad for bad, _ in counts) <= share * sum(count for _, count in counts), [
        (r.play, bad) for r, (bad, _) in zip(RECORDS, counts, strict=True) if bad
    ]


def test_no_host_is_dead_because_nobody_looks() -> None:
    """A host without any exporter, of a job whose collectives end."""
    for record in RECORDS:
        moving = any((r.rate or 0) > 0 for r in record.facts.ranks)
        if not moving or any(w.age_s > 60 for w in record.facts.waits):
            continue
        for hosts in gaps(record):
            facts = record.facts
            for component in ("mesh", "nic", "qp", "clocksync"):
                facts = without(facts, component, hosts)
            answer = infer(facts)
            likely = [c.finding for c in answer.causes if c.finding.confidence >= LIKELY]
            assert not [f for f in likely if f.cause == "rank_dead" and f.where in hosts], record.play
            assert answer.state != "ended" or len(hosts) < len(record.facts.hosts), record.play


def wrong_with(record: Record, first: str, second: str) -> tuple[int, int, int]:
    """(Wrong answers that are more than a hint, right ones, all) where two exporters do not answer."""
    known = [pair for truth in record.truth for pair in truth.any_of]
    bad = good = count = 0
    for hosts in gaps(record):
        answer = infer(without(without(record.facts, first, hosts), second, hosts))
        count += 1
        if answer.causes and (found := answer.causes[0].finding).confidence >= LIKELY:
            right = any(found.cause == cause and place in found.where for cause, place in known)
            good, bad = good + right, bad + (not right)
    return bad, good, count


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("mesh", "nic", 0.03),
        ("mesh", "qp", 0.022),
        ("mesh", "clocksync", 0.015),
        ("nic", "qp", 0.03),
        ("nic", "clocksync", 0.04),
        ("qp", "clocksync", 0.025),
    ],
)
def test_of_two_that_are_missing_little_is_said_wrongly(first: str, second: str, share: float) -> None:
    """It was up to 8 %: broken cables where two jobs fill an uplink, unequal lanes where a NIC loses."""
    counts = [wrong_with(r, first, second) for r in RECORDS]
    bad, good, answers = (sum(count[n] for count in counts) for n in range(3))
    assert bad <= share * answers, [
        (r.play, c[0]) for r, c in zip(RECORDS, counts, strict=True) if r.truth and c[0]
    ]
    assert good >= 0.5 * answers


def test_what_is_missing_is_named_where_no_cause_is() -> None:
    """The first sentence says which exporter would have to answer."""
    for record in RECORDS:
        for hosts in gaps(record):
            answer = infer(without(without(record.facts, "mesh", hosts), "nic", hosts))
            if answer.state in ("slow", "stalled") and not [
                c for c in answer.causes if c.finding.confidence >= LIKELY
            ]:
                assert "Not enough data to say why: no answer from mesh of " in answer.headline
                assert "nic of " in answer.headline
