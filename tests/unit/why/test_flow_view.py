"""Flows beside their siblings: the odd one first, whatever the others are, in text, JSON and picture."""

import json
import random
import time
from dataclasses import replace

from tests.fixtures.why.facts import healthy
from tests.unit.why.test_report import EVIL, Tags, report

from fabricpulse.why.facts import Flow, NicId
from fabricpulse.why.flow_plot import flow_plot
from fabricpulse.why.flow_view import SAME_HOSTS, SAME_JOB, SAME_NIC, line, seen_flows
from fabricpulse.why.html import html
from fabricpulse.why.text import text


def flow(a: str, b: str, rail: int, gbit: float | None, us: float | None) -> Flow:
    sent = None if gbit is None else gbit / 8e-9
    delay_s = None if us is None else us * 1e-6
    return Flow(NicId(a, f"rail{rail}"), NicId(b, f"rail{rail}"), sent=sent, delay_s=delay_s)


def test_the_odd_one_is_first() -> None:
    """94 us where the siblings have 4, 190 Gb/s where they have 360, and the numbers of both in one line."""
    flows = [flow("h0", "h1", rail, 360, 4) for rail in range(7)] + [flow("h0", "h1", 7, 190, 94)]
    flows += [flow("h1", "h0", rail, 100, 60) for rail in range(8)]  # slow, all alike
    worst = seen_flows(flows)[0]
    assert (worst.flow, worst.kind, worst.siblings) == (flows[7], SAME_HOSTS, 7)
    assert worst.worse is not None
    assert abs(worst.worse - 94 / 4) < 1e-9
    assert line(worst) == (
        "rail7 of h0 to rail7 of h1: 190.0 Gb/s, 94 us (7 of the same hosts: 360.0 Gb/s, 4 us)"
    )


def test_random_jobs() -> None:
    """Among random flows of one job the one that was made three times as slow, by delay or bandwidth, is first."""
    rng = random.Random(11)
    for _ in range(100):
        hosts, rails = rng.randint(2, 6), rng.randint(1, 4)
        flows = [
            flow(f"h{a}", f"h{b}", rail, rng.uniform(340, 380), rng.uniform(18, 24))
            for a in range(hosts)
            for b in range(hosts)
            for rail in range(rails)
            if a != b
        ]
        at = rng.randrange(len(flows))
        f = flows[at]
        assert f.sent is not None
        assert f.delay_s is not None
        odd = replace(f, delay_s=f.delay_s * 3) if rng.random() < 0.5 else replace(f, sent=f.sent / 3)
        flows[at] = odd
        found = seen_flows(flows)
        assert {s.flow for s in found} == set(flows)
        # Of two rails its sibling looks odd, too, but the wrong way round.
        assert found[0].flow == odd


def test_siblings_of_last_resort() -> None:
    """Without another NIC of the same hosts: flows of the same NIC, else all of the job; a flow alone has none."""
    star = seen_flows([flow("h0", f"h{n}", 0, 100, 10) for n in (1, 2, 3)])
    assert {s.kind for s in star} == {SAME_NIC}
    ring = seen_flows([flow(f"h{n}", f"h{n + 1}", 0, 100, 10) for n in range(3)])
    assert {s.kind for s in ring} == {SAME_JOB}
    (alone,) = seen_flows([flow("h0", "h1", 0, 100, 10)])
    assert (alone.kind, alone.worse) == ("", None)
    assert line(alone) == "rail0 of h0 to rail0 of h1: 100.0 Gb/s, 10 us"


def test_what_is_not_known_is_no_number() -> None:
    """No delay, no bandwidth, nothing sent: no ratio of it, last in the list, and no place in the picture."""
    flows = [
        flow("h0", "h1", rail, *known) for rail, known in enumerate([(None, None), (0, None), (100, 10)])
    ]
    found = seen_flows(flows)
    assert [s.worse for s in found] == [None, None, None]
    assert "? Gb/s, delay unknown" in line(next(s for s in found if s.flow is flows[0]))
    assert flow_plot(found) == ""


def test_a_large_job_costs_little() -> None:
    """80 hosts all to all: time that grows with the flows, not with their square; the picture keeps its size."""
    flows = [flow(f"h{a}", f"h{b}", 0, 100, 10 + b / 100) for a in range(80) for b in range(80) if a != b]
    begun = time.process_time()
    found = seen_flows(flows)
    assert time.process_time() - begun < 5
    assert len(flow_plot(found)) < 400_000


def test_all_forms_show_it() -> None:
    """Text, JSON and page have the worst flow and its siblings; the page draws it, and names make no tag."""
    facts = healthy((EVIL, "h1", "h2", "h3"))
    slow = replace(facts.flows[0], delay_s=5e-3)
    r = report(replace(facts, flows=(slow, *facts.flows[1:])))
    assert "Worst flows" in text(r)
    first = r.document()["flows"][0]
    assert first["delay_s"] == 5e-3
    assert first["siblings"]["delay_s"] < 1e-4
    assert first["worse"] > 10
    json.dumps(r.document(), allow_nan=False)
    page = html(r)
    tags = Tags()
    tags.feed(page)
    assert "circle" in tags.seen
    assert "img" not in tags.seen
    assert page.count("<svg") == 2
