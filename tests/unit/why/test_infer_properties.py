"""What holds for all facts: an answer is always given, never without data, never certain."""

import dataclasses
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.why.facts import healthy

from fabricpulse.why import facts as model
from fabricpulse.why.catalogue import HARMLESS
from fabricpulse.why.facts import Facts
from fabricpulse.why.infer import STATES, change_point, infer

NAMES = st.sampled_from(["h0", "h1", "h2", "", "<b>", "h3"])
NUMBERS = st.one_of(st.none(), st.sampled_from([0.0, 1e-9, 1.0, 1e12]), st.floats(0, 1e6))


def values(hint: Any) -> Any:
    """Anything of a field's type."""
    special: dict[Any, Any] = {
        str: NAMES,
        int: st.integers(0, 9),
        float: st.floats(0, 1e9),
        model.NicId: st.builds(model.NicId, NAMES, st.sampled_from(["rail0", "rail1"])),
        frozenset[str]: st.frozensets(st.sampled_from(["mesh", "nic", "qp", "clocksync"])),
        float | None: NUMBERS,
        bool | None: st.one_of(st.none(), st.booleans()),
        int | None: st.one_of(st.none(), st.integers(0, 9)),
    }
    return special[hint]


IDS: dict[Any, Any] = {
    model.Nic: lambda nic: nic.id,
    model.Host: lambda host: host.name,
    model.Flow: lambda flow: (flow.source, flow.target),
    model.Clock: lambda clock: clock.host,
}


def things(kind: Any, most: int = 8) -> Any:
    hints = typing.get_type_hints(kind)
    return st.lists(
        st.builds(kind, **{f.name: values(hints[f.name]) for f in dataclasses.fields(kind)}),
        max_size=most,
        unique_by=IDS.get(kind),
    ).map(tuple)


ANY = st.builds(
    Facts,
    workload=st.text(max_size=5),
    at_s=st.just(1e9),
    hosts=things(model.Host),
    nics=things(model.Nic),
    flows=things(model.Flow),
    ranks=things(model.Rank),
    collectives=things(model.Collective, 3),
    clocks=things(model.Clock, 3),
    waits=things(model.Wait),
    processes=things(model.Process, 3),
    gpus=things(model.Gpu, 3),
    other_slow_flows=st.one_of(st.none(), st.just({}), st.just({"other": ()})),
)


@pytest.mark.thorough
@settings(max_examples=80, deadline=None)
@given(ANY)
def test_all_facts_give_a_state_and_causes_with_evidence(facts: Facts) -> None:
    """Whatever is known, however absurd: a state, confidences in [0, 0.99], each cause with evidence."""
    answer = infer(facts)
    assert answer.state in STATES
    for ranked in answer.causes:
        assert 0 <= ranked.finding.confidence <= 0.99
        assert ranked.finding.evidence
    confidences = [round(r.finding.confidence, 2) for r in answer.causes]
    # Of a slow job the first is what slows it.
    beside = any(r.finding.past or r.finding.cause in HARMLESS for r in answer.causes)
    moved = int(answer.state in ("slow", "stalled") and beside)
    assert confidences[moved:] == sorted(confidences[moved:], reverse=True)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(ANY)
def test_the_order_of_facts_does_not_matter(facts: Facts) -> None:
    """The same facts in another order give the same causes at the same places."""
    other: dict[str, Any] = {
        name: tuple(reversed(getattr(facts, name))) for name in ("hosts", "nics", "flows", "waits")
    }
    turned = dataclasses.replace(facts, **other)
    assert {(r.finding.cause, r.finding.where) for r in infer(facts).causes if r.finding.cause != "hang"} == {
        (r.finding.cause, r.finding.where) for r in infer(turned).causes if r.finding.cause != "hang"
    }


def test_without_data_the_state_is_unknown() -> None:
    """Nothing known: nothing said, and what to start is named."""
    answer = infer(Facts("train-7", 1e9))
    assert (answer.state, answer.causes) == ("unknown", ())
    assert any("qp (port 9612)" in line for line in answer.unknown)


@given(st.sampled_from(["nics", "flows", "ranks", "collectives", "clocks", "waits"]))
def test_less_data_blames_nobody(field: str) -> None:
    """A healthy job of which a part is unknown is not blamed for the gap."""
    gap: dict[str, Any] = {field: ()}
    answer = infer(dataclasses.replace(healthy(), **gap))
    assert [r for r in answer.causes if r.finding.cause != "plugin_off"] == []
    if field == "collectives":
        assert answer.state == "unknown"


def test_since() -> None:
    """The change is where the bandwidth fell for good, not where it dipped."""
    history = (
        [(float(t), 100.0) for t in range(10)]
        + [(10.0, 40.0)]
        + [(11.0, 99.0)]
        + [(float(t), 50.0) for t in range(12, 16)]
    )
    assert change_point(tuple(history)) == 12.0
    assert change_point(tuple(history[:12])) is None
    assert change_point(()) is None
