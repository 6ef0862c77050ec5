"""Which path is traced when, and what is believed of the answers."""

import pytest

from fabricpulse.core.fleet.membership import Nic
from fabricpulse.diagnosis.wire.messages import FlowPath
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.evidence import new_paths
from fabricpulse.mesh.fleet_view import FleetView, Peer
from fabricpulse.mesh.path_schedule import PathSchedule, merge, swept
from fabricpulse.mesh.path_tracing import PathTracing

AGAIN_S = 600.0


def run(schedule, seconds, answer, start=0):
    """One moment a second: what was traced when; `answer` gives the hops of an edge and port."""
    traced = []
    for second in range(start, start + seconds):
        if (due := schedule.due(second)) is not None:
            traced.append((second, *due))
            schedule.traced(due, answer(*due))
    return traced


def test_every_path_once_and_again_when_old():
    """Two peers with three ports: main paths first, one trace a pause; then each once in ten minutes, one after the
    other.
    """
    schedule = PathSchedule(swept((4, 7), 3), 1.0, AGAIN_S)

    def hops(edge, port):
        return "leaf", f"spine{port}", f"leaf{edge}"

    first = run(schedule, 100, hops)
    assert first == [(0, 4, 0), (1, 7, 0), (2, 4, 1), (3, 7, 1), (4, 4, 2), (5, 7, 2)]
    assert schedule.known()[7, 1] == ("leaf", "spine1", "leaf7")
    again = run(schedule, 1200, hops, start=100)
    assert [key for _, *key in again[:6]] == [[e, p] for _, e, p in first]
    assert [second for second, *_ in again] == list(range(105, 1300, 100))


def test_a_route_that_has_changed_is_traced_on_all_flows():
    """An uplink dies that half of forty flows take: it shows on one of them within a minute, on all within two; so it
    does when it comes back a minute and a half later.
    """
    schedule = PathSchedule(swept(tuple(range(5)), 8), 1.0, AGAIN_S)
    start = 300
    run(schedule, start, lambda _, port: ("leaf", f"spine{port % 2}"))
    for spines, seconds in ((("spine1",), 90), (("spine0", "spine1"), 120), (("spine1",), 90)):
        traced = run(schedule, seconds, lambda _, port, s=spines: ("leaf", s[port % len(s)]), start=start)
        start += seconds
        assert set(schedule.known().values()) == {("leaf", spine) for spine in spines}
        assert all(hops[1] == spines[port % len(spines)] for (_, port), hops in schedule.known().items())
    assert traced[-1][0] - traced[-2][0] == AGAIN_S / 40


def test_paths_that_differ_with_each_packet_are_not_traced_all_the_time():
    """Where switches spray there is a round of traces now and then, and not one after the other."""
    schedule = PathSchedule(swept(tuple(range(5)), 8), 1.0, AGAIN_S)
    sprayed = iter(range(10_000))
    run(schedule, 600, lambda *_: ("leaf", f"spine{next(sprayed)}"))
    traced = run(schedule, 600, lambda *_: ("leaf", f"spine{next(sprayed)}"), start=600)
    assert 40 < len(traced) <= 4 * 40 + 600 * 40 / AGAIN_S


def test_gaps_are_tried_again_some_times():
    """A switch that is silent, or a fabric that is, costs three traces and not one each second for ever."""
    schedule = PathSchedule(swept((0, 1), 1), 1.0, AGAIN_S)
    traced = run(schedule, 300, lambda edge, _: ("a", "", "c") if edge == 0 else ())
    assert len(traced) == 6
    assert schedule.known() == {(0, 0): ("a", "", "c")}


@pytest.mark.parametrize(
    ("before", "after", "merged"),
    [
        (("a", "b", "c"), ("a",), ("a", "b", "c")),
        (("a", "b", "c"), (), ("a", "b", "c")),
        (("a", "", "c"), ("a", "b", ""), ("a", "b", "c")),
        (("a", "b", "c"), ("a", "d", "c"), ("a", "d", "c")),
        (("a", "b", "c"), ("a", "d"), ("a", "d")),
        ((), ("a", "b"), ("a", "b")),
    ],
)
def test_a_faulty_path_is_not_forgotten(before, after, merged):
    """Answers that a fault swallowed take nothing from a path; another switch in one place is another path."""
    assert merge(before, after) == merged


def test_less_known_is_no_change():
    """While a spine is dead a trace ends at the leaf: nothing has changed, and nothing is reported."""
    schedule = PathSchedule(swept((0,), 1), 1.0, AGAIN_S)
    assert schedule.traced((0, 0), ("a", "b", "c"))
    assert not schedule.traced((0, 0), ("a",))
    assert schedule.traced((0, 0), ("a", "d", "c"))
    assert not schedule.traced((9, 9), ("a",))


class Engine:
    """Answers each trace at the next step. A source port is traced for one edge at a time."""

    def __init__(self):
        self.generation, self.asked, self.spine = 1, [], "spine"

    def trace(self, edge, path):
        if path in {port for _, port in self.asked}:
            return False
        self.asked.append((edge, path))
        return True

    def take_traces(self):
        asked, self.asked = self.asked, []
        return [(self.generation, edge, port, ["leaf", f"{self.spine}{port}"]) for edge, port in asked]


def view_of(*hosts):
    nic = Nic(device="eth1", address="10.0.0.1", network="rail0")
    peers = tuple(Peer(0, host, "eth1", "rail0", f"10.0.0.{ord(host)}") for host in hosts)
    return FleetView("a", (nic,), peers, len(hosts) + 1)


def test_paths_stay_known_when_the_membership_changes():
    """A host that joins is traced; the others' paths are kept under their new numbers, late answers are dropped."""
    tracing, engine = PathTracing(Probe(paths=2, trace_s=1)), Engine()
    tracing.configure(view_of("b", "c"))
    for second in range(6):
        tracing.tick(engine, 1, second)
    assert tracing.known == {(e, p): ("leaf", f"spine{p}") for e in (0, 1) for p in (0, 1)}
    tracing.configure(view_of("c", "d"))
    assert set(tracing.known) == {(0, 0), (0, 1)}
    tracing.tick(engine, 2, 10)
    assert engine.asked == [(1, 0)]
    tracing.tick(engine, 3, 10.5)  # the answer is of configuration 1
    assert set(tracing.known) == {(0, 0), (0, 1)}


def test_a_trace_that_the_engine_refuses_is_made_later():
    """Traces are asked for faster than one of a source port takes; when a route has changed, all are made."""
    tracing, engine = PathTracing(Probe(paths=2, trace_s=0.05)), Engine()
    tracing.configure(view_of("b", "c", "d"))

    class Busy:
        """The engine, whose answers are taken each fifth time."""

        def __init__(self):
            self.times = 0
            self.trace = engine.trace

        def take_traces(self):
            self.times += 1
            return engine.take_traces() if self.times % 5 == 0 else []

    busy = Busy()
    for tick in range(200):
        tracing.tick(busy, 1, 0.05 * tick)
    assert len(tracing.known) == 6
    engine.spine = "other"
    for tick in range(200, 200 + 20 * 120):
        tracing.tick(busy, 1, 0.05 * tick)
    assert {hops[1] for hops in tracing.known.values()} == {"other0", "other1"}


def test_only_what_is_new_is_reported():
    """A report has the paths that differ from what the coordinator knows."""
    reported = {(0, 0): ("a", "b"), (0, 1): ("a", "c")}
    known = {(0, 0): ("a", "b"), (0, 1): ("a", "d"), (2, 0): ("x",)}
    assert new_paths(reported, known) == (FlowPath(0, 1, ("a", "d")), FlowPath(2, 0, ("x",)))
    assert len(new_paths({}, {(edge, 0): ("a",) for edge in range(2000)})) == 500
