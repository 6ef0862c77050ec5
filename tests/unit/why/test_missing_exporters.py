"""Recorded runs with exporters that do not answer: less is known, and what is not known is not said."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from tests.bench.why.recorded import Record, read, without
from tests.fixtures.why.facts import healthy, slow
from tests.fixtures.why.truth import Truth

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.catalogue import CAUSES
from fabricpulse.why.finding import LIKELY, Evidence, Finding, as_undecided, finding
from fabricpulse.why.infer import infer

RECORDS = read()


def gaps(record: Record) -> Iterator[frozenset[str]]:
    """Each host, and all of them."""
    names = frozenset(h.name for h in record.facts.hosts)
    yield from (frozenset({name}) for name in sorted(names))
    yield names


def is_right(record: Record, first: Finding) -> bool:
    """A GPU without its rank, of which nobody tells, is that of the rank's host: one each."""
    known = [pair for truth in record.truth for pair in truth.any_of]
    gpu = re.fullmatch("GPU 0 of (.+)", first.where)
    return any(
        first.cause == cause
        and (place in first.where or (gpu is not None and place.endswith(f" on {gpu[1]}")))
        for cause, place in known
    )


def test_which_answer_is_right() -> None:
    """The cause and its place: one that says no place is right only where none was asked for."""
    record = replace(RECORDS[0], truth=[Truth((("straggler_gpu", "rank 1 on h3"),))])
    for where, right in (("rank 1 on h3", True), ("GPU 0 of h3", True), ("GPU 0 of h1", False), ("", False)):
        assert is_right(record, finding("straggler_gpu", where, [], [])) == right, where
    assert not is_right(record, finding("straggler_rank", "rank 1 on h3", [], []))
    assert is_right(
        replace(record, truth=[Truth((("compute", ""),))]), finding("compute", "all ranks", [], [])
    )


def wrong(record: Record, component: str, least: float) -> tuple[int, int]:
    """(answers whose first cause is said with so much confidence and is not one of what was broken, all)."""
    found = 0
    answers = [infer(without(record.facts, component, hosts)) for hosts in gaps(record)]
    for answer in answers:
        first = answer.causes[0].finding if answer.causes else None
        if first is not None and first.confidence >= least:
            found += not is_right(record, first)
    return found, len(answers)


@pytest.mark.parametrize("component", ["mesh", "nic", "qp", "clocksync"])
def test_a_healthy_job_stays_healthy(component: str) -> None:
    """Whichever exporter is missing."""
    assert [wrong(r, component, LIKELY)[0] for r in RECORDS if not r.truth] == [0] * sum(
        not r.truth for r in RECORDS
    )


@pytest.mark.parametrize("component", ["mesh", "nic", "qp", "clocksync"])
def test_no_cause_that_is_named_is_wrong(component: str) -> None:
    """What the missing exporter would tell apart is not named."""
    counts = [wrong(r, component, LIKELY) for r in RECORDS]
    assert [(r.play, bad) for r, (bad, _) in zip(RECORDS, counts, strict=True) if bad] == []


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
    bad = good = count = 0
    for hosts in gaps(record):
        answer = infer(without(without(record.facts, first, hosts), second, hosts))
        count += 1
        if answer.causes and (found := answer.causes[0].finding).confidence >= LIKELY:
            right = is_right(record, found)
            good, bad = good + right, bad + (not right)
    return bad, good, count


@pytest.mark.parametrize(
    ("first", "second"), list(combinations(["mesh", "nic", "qp", "clocksync"], 2)), ids="-".join
)
def test_of_two_that_are_missing_nothing_is_said_wrongly(first: str, second: str) -> None:
    """It was 55 of 2,280: incasts of a host that pauses, loss at the other end. More than half are still right."""
    counts = [wrong_with(r, first, second) for r in RECORDS]
    good, answers = (sum(count[n] for count in counts) for n in (1, 2))
    assert [(r.play, c[0]) for r, c in zip(RECORDS, counts, strict=True) if c[0]] == []
    assert good >= 0.5 * answers


def test_an_effect_of_what_is_not_decided_is_no_cause() -> None:
    """Flows before a link that may be slow, or of a host that takes too little, do not wait for one another."""
    explained = 0
    links = [r for r in RECORDS if r.play == "slow_link"]
    for record in links:
        [where] = {place for truth in record.truth for _, place in truth.any_of}
        host = where.rpartition(" ")[2]
        answer = infer(without(record.facts, "nic", frozenset({host})))
        first = answer.causes[0].finding
        assert (first.cause, first.where, first.undecided) == ("slow_link", where, True)
        assert any(e.text.startswith("not enough data: ") for e in first.evidence)
        assert [c for c in answer.causes if c.finding.confidence >= LIKELY] == []
        assert f"no answer from nic of {host}" in answer.headline
        explained += any(f.confidence >= LIKELY for f in answer.causes[0].explains)
    assert links and explained


def test_what_is_missing_is_named_where_no_cause_is() -> None:
    """The first sentence says which exporter would have to answer."""
    unnamed = 0
    for record in RECORDS:
        for hosts in gaps(record):
            answer = infer(without(without(record.facts, "mesh", hosts), "nic", hosts))
            if answer.state in ("slow", "stalled") and not [
                c for c in answer.causes if c.finding.confidence >= LIKELY
            ]:
                assert "Not enough data to say why: no answer from mesh of " in answer.headline
                assert "nic of " in answer.headline
                unnamed += 1
    assert unnamed


def always(found: Finding) -> Callable[[Analysis], Iterator[Finding]]:
    return lambda _: iter([found])


def test_what_would_be_a_hint_with_all_data_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Want of data makes no weak finding a reason of a sure one; a likely one may be its reason still."""
    nic = ("nic", "h1", "rail0")
    effect = finding("nic_loss", "rail0 of h1", [Evidence("it loses", 0.95)], [nic])
    for strength, hidden in ((LIKELY - 0.01, False), (LIKELY, True)):
        weak = as_undecided(
            finding("slow_link", "rail0 of h1", [Evidence("?", strength)], [nic]), "nobody looks"
        )
        found = {"slow_link": weak, "nic_loss": effect}
        causes = {name: replace(CAUSES[name], find=always(one)) for name, one in found.items()}
        monkeypatch.setattr("fabricpulse.why.infer.CAUSES", causes)
        named = [c.finding.cause for c in infer(slow(healthy())).causes if c.finding.confidence >= LIKELY]
        assert named == ([] if hidden else ["nic_loss"])
