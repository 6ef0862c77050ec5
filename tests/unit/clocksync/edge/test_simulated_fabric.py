"""The simulated Clos fabric: are its queues, clocks and routes what they claim to be?"""

import numpy as np
import pytest
from tests.bench.clocksync.clos import ClosFleet
from tests.bench.clocksync.fabric import NO_LINK, Clos, Crystals, probe, traces_of
from tests.bench.clocksync.simulator import Queue

pytestmark = pytest.mark.simulation


@pytest.fixture(scope="module")
def clos() -> Clos:
    """Of three pods: 2,100 hosts."""
    return Clos(1, 2_100)


def test_a_trace_that_repeats_loses_no_work() -> None:
    """Played twice in a row it is one queue: what is left at the end is there at the begin."""
    queue = Queue(np.random.default_rng(1), 1e-4, 0.9)
    arrival, work = queue.trace()
    size = work[1:] - np.maximum(work[:-1] - np.diff(arrival), 0.0)
    again = np.concatenate([arrival[1:], arrival[1:] + 1e5])
    left, at = 0.0, 0.0
    for t, brings in zip(again, np.tile(size, 2), strict=True):
        left, at = max(left - (t - at), 0.0) + brings, t
    assert left == pytest.approx(work[-1])
    # The begin of the second round, from what the first one left.
    after_first = max(work[-1] - (1e5 - arrival[-1]), 0.0)
    assert work[0] == pytest.approx(after_first)
    assert queue.wait_ns(np.array([2e5]))[0] == pytest.approx(after_first)


def test_waits_from_the_table_are_those_of_the_queues() -> None:
    """At any time, at bursts themselves, at both ends of a trace, and when it has been played for hours."""
    traces = traces_of(1)
    rng, made = np.random.default_rng(7), np.random.default_rng([1, 0])
    for number in range(traces.count):
        queue = Queue(made, 0.25, traces.loads[number // 4])
        bursts = queue.trace()[0]
        ends = [0.0, 0.25e9, np.nextafter(0.25e9, 0.0), 1e13 + 0.125e9]
        at, before = rng.choice(bursts, 500), rng.choice(bursts[1:] if len(bursts) > 1 else [1.0], 500) - 1e-3
        t = np.concatenate([rng.uniform(0, 1e9, 2_000), at, before, ends])
        got = traces.work_ns(np.full(len(t), number), t)
        # 28 traces behind each other cost two digits.
        np.testing.assert_allclose(got, queue.wait_ns(t), atol=2e-5)


def test_a_faster_link_drains_faster(clos: Clos) -> None:
    """The same bursts in bytes: at the same load, waits are to each other as the rates."""
    mean = {}
    for rate in (25.0, 400.0):
        links = np.flatnonzero((clos.gbit_s == rate) & (clos.load == 0.8))[:50]
        sent = np.tile(np.arange(0, 1e9, 1e6), (len(links), 1))
        routes = Clos.routes(clos, np.random.default_rng(0), links % clos.n, links % clos.n)
        routes.links[:] = NO_LINK
        routes.links[:, 0] = links
        mean[rate] = float((clos.arrival_ns(routes, sent) - sent - routes.base_ns[:, None]).mean())
    assert mean[25.0] / mean[400.0] == pytest.approx(16, rel=0.3)


@pytest.mark.parametrize(
    ("a", "b", "queues"), [(0, 31, 2), (0, 32, 4), (0, 1_023, 4), (0, 1_024, 6), (2_099, 5, 6)]
)
def test_ways_go_as_far_up_as_they_must(clos: Clos, a: int, b: int, queues: int) -> None:
    """2 links under a leaf, 4 in a pod, 6 between pods; they begin at a and end at b."""
    routes = clos.routes(np.random.default_rng(1), np.full(100, a), np.full(100, b))
    assert ((routes.links != NO_LINK).sum(axis=1) == queues).all()
    assert (routes.links[:, 0] == a).all()
    assert (routes.links[:, -1] == clos.n + b).all()
    assert routes.links.max() < len(clos.load)
    used = [len(np.unique(hop)) for hop in routes.links.T]
    # A hundred flows take many of 16 spines, and of 256 cores, but each link once only.
    assert used[1] == (16 if queues > 2 else 1)
    assert used[2] > 60 if queues == 6 else used[2] == 1
    for links in routes.links:
        named = links[links != NO_LINK]
        assert len(np.unique(named)) == len(named)


def test_the_two_ways_differ_by_no_more_than_the_bound_allows(clos: Clos) -> None:
    """Cables of other spines and cores: up to 2 * 100 ns, and not always the same."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, clos.n, (2, 5_000))
    a, b = a[a != b], b[a != b]
    apart = clos.routes(rng, a, b).base_ns - clos.routes(rng, b, a).base_ns
    assert 50 < np.abs(apart).max() <= 200
    assert abs(apart.mean()) < 5


def test_loads_are_of_all_sizes(clos: Clos) -> None:
    """Each direction of a link has its own."""
    assert set(clos.load) == {0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9}
    up, down = clos.load[: clos.n], clos.load[clos.n : 2 * clos.n]
    assert (up != down).mean() > 0.5
    assert set(clos.gbit_s) == {25.0, 100.0, 200.0, 400.0}


def test_probes_arrive_in_order_and_later_under_load(clos: Clos) -> None:
    """FIFO: no packet of a train overtakes another, whatever its queues; none is faster than an empty fabric."""
    rng = np.random.default_rng(2)
    a, b = np.arange(300), np.arange(300) + 1_500
    routes = clos.routes(rng, a, b)
    tx, rx = probe(rng, clos, routes, 1.0, 2.0, 50.0, noise_ns=0.0, cold_ns=0.0)
    assert tx.shape == (300, 50, 3)
    assert (np.diff(rx, axis=2) >= -1e-3).all()
    delay = rx - tx - routes.base_ns[:, None, None]
    assert delay.min() >= -1e-3
    empty = (clos.load[routes.links] == 0).all(axis=1)
    assert (delay[empty] < 1e-3).all()
    assert np.median(delay[~empty]) > 100


def test_crystals_wander_as_they_should() -> None:
    """Rates within 50 ppm, that change by 2 ppb in a second; a clock and its inverse agree to the nanosecond."""
    crystals = Crystals(1, 400, 60.0)
    hosts = np.arange(400)

    def gained(begin: float, end: float) -> np.ndarray:
        shown = [crystals.at(hosts, np.full(400, t * 1e9)) for t in (begin, end)]
        return (shown[1] - shown[0] - round((end - begin) * 1e9)) / (end - begin)

    early, late = gained(1, 2), gained(51, 52)
    assert 30_000 < np.abs(early).max() < 50_100
    assert (late - early).std() == pytest.approx(2 * np.sqrt(50), rel=0.15)
    t = np.random.default_rng(1).uniform(1e9, 59e9, 400)
    np.testing.assert_allclose(crystals.when(hosts, crystals.at(hosts, t)), t, atol=0.6)


@pytest.fixture(scope="module")
def fleet() -> ClosFleet:
    """Forty hosts on two leaves, whose sidecars begin with full windows, all edges fitted by two processes."""
    made = ClosFleet(40, 5, 3, processes=2)
    made.measure()
    return made


def test_how_many_processes_there_are_changes_nothing(fleet: ClosFleet) -> None:
    """To the last bit."""
    alone = ClosFleet(40, 5, 3, processes=1)
    alone.measure()
    assert alone.fits.records.tobytes() == fleet.fits.records.tobytes()
    np.testing.assert_array_equal(alone.fits.error_ns, fleet.fits.error_ns)


def test_a_fleet_on_the_fabric_agrees_within_its_bounds(fleet: ClosFleet) -> None:
    """Every edge is measured, its error is within its bound, and all hosts agree to some ten ns."""
    assert len(fleet.mesh.a) == 200
    assert fleet.fits.fitted.all()
    error = np.abs(fleet.fits.error_ns)
    assert (error <= fleet.fits.records["bound_ns"]).all()
    assert np.median(error[2:]) < 30
    for step in range(5):
        fleet.play_round()
        if step >= 2:
            assert np.abs(fleet.errors()).max() < 60
            assert len(fleet.bounds()) == 40
        assert fleet.violations() == 0
    assert fleet.backward_jumps == 0
