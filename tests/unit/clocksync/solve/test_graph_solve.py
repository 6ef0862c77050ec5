"""The solve: exact on exact data, robust against edges and hosts that lie, bounds by the shortest way."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.clocksync.election import undisputed

from fabricpulse.clocksync.solve.graph_solve import Edges, SolveParameters, solve
from fabricpulse.clocksync.solve.hosts import Hosts

S = 10**9
PARAMETERS = SolveParameters()


def fleet(
    seed: int, n: int = 20, k: int = 4, noise_ns: float = 0.0
) -> tuple[np.random.Generator, np.ndarray, np.ndarray, Edges]:
    """Clocks seconds and 100 ppm apart, and the fits of a connected random graph. Bounds are 2 us."""
    rng = np.random.default_rng(seed)
    clock, rate = rng.integers(-5 * S, 5 * S, n), rng.uniform(-50_000, 50_000, n)
    i = np.concatenate([np.arange(n), rng.integers(0, n, n * (k - 1))])
    j = np.concatenate([(np.arange(n) + 1) % n, rng.integers(0, n, n * (k - 1))])
    i, j = i[i != j], j[i != j]
    count = len(i)
    age = rng.uniform(0.1, 1.0, count)
    offset = (
        clock[j] - clock[i] + np.rint(rng.normal(0, noise_ns, count) - (rate[j] - rate[i]) * age).astype(int)
    )
    ones = np.ones(count)
    edges = Edges(i, j, offset, rate[j] - rate[i], 20 * ones, 5 * ones, 2_000 * ones, age, age)
    return rng, clock, rate, edges


def unknown(n: int, anchors: dict[int, tuple[float, float]] | None = None) -> Hosts:
    """Hosts that know nothing yet; anchors : host -> (correction, bound)."""
    anchor, bound = np.full(n, np.nan), np.full(n, np.inf)
    for host, (value, uncertainty) in (anchors or {}).items():
        anchor[host], bound[host] = value, uncertainty
    zeros = np.zeros(n)
    return Hosts(zeros.astype(np.int64), zeros, np.zeros(n, np.bool_), np.full(n, np.inf), anchor, bound)


def known(correction: np.ndarray, rate: np.ndarray, bound_ns: float = 1_000.0) -> Hosts:
    """Hosts that keep these lines."""
    n = len(correction)
    nothing = np.full(n, np.nan)
    return Hosts(
        correction.astype(np.int64),
        rate,
        np.ones(n, np.bool_),
        np.full(n, bound_ns),
        nothing,
        np.full(n, np.inf),
    )


def spread(correction: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Error of each host's fleet time against the median host."""
    error: np.ndarray = (correction + clock).astype(np.float64)
    return error - float(np.median(error))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 60))
def test_exact_data_give_the_exact_answer(seed: int, n: int) -> None:
    """From nothing, clocks seconds apart: within 2 ns and 0.1 ppb everywhere, everybody reached."""
    _, clock, rate, edges = fleet(seed, n)
    solution = solve(unknown(n), edges, undisputed(n), PARAMETERS)
    assert np.abs(spread(solution.correction_ns, clock)).max() <= 2
    assert np.ptp(solution.rate_ppb + rate) < 0.1
    assert solution.reached.all()
    assert np.isfinite(solution.bound_ns).all()


def test_the_mesh_is_better_than_its_edges() -> None:
    """20 ns of noise an edge: with 10 edges a host the error of a host is less than half of that."""
    errors = []
    for seed in range(5):
        _, clock, _, edges = fleet(seed, 60, 10, noise_ns=20)
        errors.append(spread(solve(unknown(60), edges, undisputed(60), PARAMETERS).correction_ns, clock))
    assert float(np.std(np.concatenate(errors))) < 10


def test_edges_wrong_by_microseconds_do_not_move_hosts() -> None:
    """One edge in ten is wrong by microseconds: hosts stay within 30 ns, and what is wrong shows."""
    rng, clock, _, edges = fleet(7, 60, 10, noise_ns=20)
    wrong = rng.random(len(edges.i)) < 0.1
    edges.offset_ns[wrong] += rng.integers(1_500, 6_000, wrong.sum()) * rng.choice([-1, 1], wrong.sum())
    solution = solve(unknown(60), edges, undisputed(60), PARAMETERS)
    assert np.abs(spread(solution.correction_ns, clock)).max() < 30
    size = np.abs(solution.residual_ns)
    assert size[wrong].min() > 1_000
    assert np.median(size[~wrong]) < 40


def test_the_timeline_goes_on_when_hosts_join_leave_and_step() -> None:
    """The others' corrections do not move by more than 20 ns when one host's clock is stepped by 1 ms."""
    _, clock, _, edges = fleet(3, 12, 6, noise_ns=10)
    first = solve(unknown(12), edges, undisputed(12), PARAMETERS)
    hosts = known(first.correction_ns, first.rate_ppb)
    clock[5] += 1_000_000
    edges.offset_ns[edges.j == 5] += 1_000_000
    edges.offset_ns[edges.i == 5] -= 1_000_000
    second = solve(hosts, edges, undisputed(len(hosts), first.root), PARAMETERS)
    moved = second.correction_ns - first.correction_ns
    assert np.abs(np.delete(moved, 5)).max() <= 20
    assert moved[5] == pytest.approx(-1_000_000, abs=50)
    assert second.root == first.root


def test_anchors_set_the_timeline_and_its_bounds() -> None:
    """Two hosts that carry UTC within 300 ns and 5 us: fleet time is the better one's, bounds grow with the way."""
    _, clock, _, edges = fleet(9, 20, 4)
    utc = 7 * S
    anchors = {2: (float(utc - clock[2]), 300.0), 11: (float(utc - clock[11]) + 3_000, 5_000.0)}
    solution = solve(unknown(20, anchors), edges, undisputed(20), PARAMETERS)
    assert np.abs(solution.correction_ns + clock - utc).max() <= 4
    assert solution.bound_ns[2] == pytest.approx(300, abs=5)
    assert solution.bound_ns.min() == solution.bound_ns[2]
    assert (np.abs(solution.correction_ns + clock - utc) <= solution.bound_ns).all()


def test_hosts_without_edges_keep_what_they_know() -> None:
    """A host that no edge reaches is not reached; its neighbours are none the worse."""
    _, clock, _, edges = fleet(5, 10, 4)
    alone = (edges.i != 4) & (edges.j != 4)
    fields = [
        np.broadcast_to(getattr(edges, name), alone.shape)[alone] for name in edges.__dataclass_fields__
    ]
    solution = solve(unknown(10), Edges(*fields), undisputed(10), PARAMETERS)
    assert not solution.reached[4]
    assert np.abs(np.delete(spread(solution.correction_ns, clock), 4)).max() <= 2


def test_a_partition_gives_two_timelines_that_both_go_on() -> None:
    """Both halves keep their corrections; the half without the root ages instead of trusting itself."""
    _, _, _, edges = fleet(8, 20, 6)
    whole = solve(unknown(20), edges, undisputed(20), PARAMETERS)
    side = np.arange(20) < 12
    inside = side[edges.i] == side[edges.j]
    fields = [
        np.broadcast_to(getattr(edges, name), inside.shape)[inside] for name in edges.__dataclass_fields__
    ]
    hosts = known(whole.correction_ns, whole.rate_ppb, 2_500)
    root = whole.root
    parted = solve(hosts, Edges(*fields), undisputed(len(hosts), root), PARAMETERS)
    assert np.abs(parted.correction_ns - whole.correction_ns).max() <= 4
    assert parted.bound_ns[~side if side[root] else side].min() >= 2_500


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), asymmetry=st.integers(0, 1_900))
def test_bounds_hold_whatever_asymmetry_the_edges_hide(seed: int, asymmetry: int) -> None:
    """Every edge is wrong by anything within its own bound: no host is outside of its bound to the root."""
    rng, clock, _, edges = fleet(seed, 15, 4)
    edges.offset_ns[:] += rng.integers(-asymmetry, asymmetry + 1, len(edges.i))
    solution = solve(unknown(15), edges, undisputed(15), PARAMETERS)
    fleet_time = solution.correction_ns + clock
    assert (np.abs(fleet_time - fleet_time[solution.root]) <= solution.bound_ns + 2).all()


def test_the_rate_of_the_fleet_turns_too_slowly_to_break_a_holdover() -> None:
    """The median clock is 20 ppm away: turning to it may take a tenth of what a holdover of 1,000 s allows for."""
    _, clock, rate, edges = fleet(5)
    hosts = known(-clock, -rate + 20_000.0)
    solution = solve(hosts, edges, undisputed(len(hosts)), PARAMETERS)
    turned = float(np.median(solution.rate_ppb - hosts.rate_ppb))
    assert -0.06 < turned < 0
    # Four solves a second for 1,000 s: half of turn * t^2 against the 1,000 ppb that a holdover allows for.
    assert 4 * abs(turned) * 1_000**2 / 2 <= 0.11 * 1_000 * 1_000


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), changed_ppb=st.floats(3_000, 500_000), age_s=st.floats(2.1, 4.9))
def test_dead_neighbours_do_not_outvote_those_that_measure_now(
    seed: int, changed_ppb: float, age_s: float
) -> None:
    """The oscillator of host 0 changes 2 s ago, and half of its neighbours die. Their last fits are precise and say
    that nothing has happened; those of the others are not yet, and say that it has: they are followed, and its bound
    covers what is left.
    """
    rng, clock, rate, edges = fleet(seed)
    n = len(clock)
    of_changed = np.flatnonzero((edges.i == 0) | (edges.j == 0))
    half = len(of_changed) // 2
    stale, fresh = of_changed[:half], of_changed[half:]
    before = known(-clock, -rate)
    moved_ns = round(changed_ppb * 2)
    offset_ns, rate_ppb = edges.offset_ns.copy(), edges.rate_ppb.copy()
    sign = np.where(edges.j == 0, 1, -1)
    rate_ppb[fresh] += sign[fresh] * changed_ppb
    offset_ns[fresh] += np.rint(sign[fresh] * (moved_ns - changed_ppb * edges.age_s[fresh])).astype(np.int64)
    offset_ns[stale] -= np.rint((edges.rate_ppb * (age_s - edges.age_s))[stale]).astype(np.int64)
    offset_ns[fresh] += np.rint(rng.normal(0, 300, len(fresh))).astype(np.int64)
    sigma_ns, rate_sigma_ppb, aged_s = edges.sigma_ns.copy(), edges.rate_sigma_ppb.copy(), edges.age_s.copy()
    sigma_ns[fresh], rate_sigma_ppb[fresh], aged_s[stale] = 400.0, 60.0, age_s
    clock[0] += moved_ns
    edges = replace(
        edges,
        offset_ns=offset_ns,
        rate_ppb=rate_ppb,
        sigma_ns=sigma_ns,
        rate_sigma_ppb=rate_sigma_ppb,
        age_s=aged_s,
        bound_age_s=aged_s,
    )
    solution = solve(before, edges, undisputed(n), PARAMETERS)
    error = spread(solution.correction_ns, clock)
    assert abs(error[0]) < 1_500
    assert (np.abs(error - error[0]) <= solution.bound_ns + solution.bound_ns[0]).all()
    assert abs(solution.rate_ppb[0] + rate[0] + changed_ppb) < 0.1 * changed_ppb


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), longer_ns=st.floats(20_000, 500_000), outbound=st.booleans())
def test_most_paths_of_a_host_become_longer_one_way(seed: int, longer_ns: float, outbound: bool) -> None:
    """All but two of its edges agree on what is wrong; two shorter ones, which cannot be so wrong, are followed."""
    _, clock, rate, edges = fleet(seed)
    longer = np.flatnonzero((edges.i == 0) | (edges.j == 0))[2:]
    sign = np.where(edges.i == 0, 1, -1) * (1 if outbound else -1)
    offset_ns, bound_ns = edges.offset_ns.copy(), edges.bound_ns.copy()
    offset_ns[longer] += np.rint(sign[longer] * longer_ns / 2).astype(np.int64)
    bound_ns[longer] += longer_ns / 2
    edges = replace(edges, offset_ns=offset_ns, bound_ns=bound_ns)
    solution = solve(known(-clock, -rate), edges, undisputed(len(clock)), PARAMETERS)
    assert np.abs(spread(solution.correction_ns, clock)).max() < 100


@pytest.mark.parametrize("root", [0, 1])
def test_two_halves_that_meet_do_not_meet_in_the_middle(root: int) -> None:
    """Two hosts of four come back with lines that are wrong in time and rate. Those that have not received the solve
    yet are where they were, the root among them, whose bound is next to nothing.
    """
    clock, rate = np.array([0, 7_000, -30_000, 500]), np.array([100.0, -2_000.0, 900.0, 0.0])
    i, j = np.triu_indices(4, 1)
    ones = np.ones(len(i))
    edges = Edges(
        i, j, clock[j] - clock[i], rate[j] - rate[i], 20 * ones, 5 * ones, 800 * ones, 0 * ones, 0 * ones
    )
    back = np.array([False, False, True, True])
    hosts = replace(
        known(-clock + np.where(back, 5_000, 0), -rate + np.where(back, 3_600.0, 0.0)),
        bound_ns=np.where(back, 30_000.0, 1_000.0),
    )
    solution = solve(hosts, edges, undisputed(4, root), PARAMETERS)
    assert solution.root_moved_ns <= 1
    assert np.abs(solution.correction_ns + clock).max() <= 1
    assert np.abs(solution.rate_ppb + rate).max() < 0.1


def test_where_the_root_moves_the_others_bounds_follow() -> None:
    """All edges of the root agree on what is wrong, by more than others knew of it: no pair is outside its bounds."""
    _, clock, rate, edges = fleet(5)
    n = len(clock)
    degree = np.bincount(edges.i, minlength=n) + np.bincount(edges.j, minlength=n)
    root = int(degree.argmax())
    at_root = (edges.i == root) | (edges.j == root)
    wrong_ns = np.where(at_root, np.where(edges.i == root, 20_000, -20_000), 0)
    edges = replace(edges, offset_ns=edges.offset_ns + wrong_ns, bound_ns=edges.bound_ns + np.abs(wrong_ns))
    solution = solve(known(-clock, -rate), edges, undisputed(n, root), PARAMETERS)
    error = spread(solution.correction_ns, clock)
    assert solution.root == root
    assert abs(error[root]) > 10_000
    allowed = solution.bound_ns + solution.bound_ns[root]
    assert (np.abs(error - error[root]) <= allowed).all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    wrong_ns=st.sampled_from([20_000, -60_000, 300_000]),
    missing=st.integers(1, 19),
)
def test_a_host_that_missed_the_round_in_which_the_root_moved(seed: int, wrong_ns: int, missing: int) -> None:
    """What it knows is of the root as it was: nobody's bound, in the next round, rests on that as if it were of now."""
    _, clock, rate, edges = fleet(seed)
    n, root = len(clock), 0
    at_root = (edges.i == root) | (edges.j == root)
    lie = np.where(at_root, np.where(edges.i == root, wrong_ns, -wrong_ns), 0)
    edges = replace(edges, offset_ns=edges.offset_ns + lie, bound_ns=edges.bound_ns + np.abs(lie))
    before = known(-clock, -rate)
    first = solve(before, edges, undisputed(n, root), PARAMETERS)
    assert first.root_moved_ns > abs(wrong_ns) / 2
    replied = np.arange(n) != missing
    hosts = replace(
        before,
        correction_ns=np.where(replied, first.correction_ns, before.correction_ns),
        rate_ppb=np.where(replied, first.rate_ppb, before.rate_ppb),
        bound_ns=np.where(replied, first.bound_ns, before.bound_ns),
        missed_ns=np.where(replied, 0.0, first.root_moved_ns),
    )
    second = solve(hosts, edges, undisputed(n, root), PARAMETERS)
    error = spread(second.correction_ns, clock)
    assert (np.abs(error - error[root]) <= second.bound_ns + second.bound_ns[root]).all()
