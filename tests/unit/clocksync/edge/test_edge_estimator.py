"""Random truth through random queues: what the estimator says is within the bound that it gives, always."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.bench.clocksync.simulator import Clock, Edge, Path, Queue, loaded_path

from fabricpulse.clocksync._edge_fit import Trains
from fabricpulse.clocksync.edge.estimator import EstimatorParameters, Quality
from fabricpulse.clocksync.edge.filter import EdgeFilter
from fabricpulse.clocksync.edge.fit import fit_edge

PARAMETERS = EstimatorParameters()
S = 10**9


def make_edge(
    seed: int, load: tuple[float, float], *, rate: float = 50.0, loss: float = 0.0, skew_ns: float = 0.0
) -> tuple[np.random.Generator, Edge, Clock, Clock]:
    """Two clocks up to 5 s and 200 ppm apart; the forward path is longer by skew_ns."""
    rng = np.random.default_rng(seed)
    clocks = [
        Clock(
            rng,
            40,
            offset_ns=1_700_000_000 * S + int(rng.integers(-5 * S, 5 * S)),
            rate_ppb=float(rng.uniform(-100_000, 100_000)),
            wander_ppb=2.0,
        )
        for _ in range(2)
    ]
    library: dict[float, list[Queue]] = {}
    base = float(rng.uniform(200, 5_000))
    forward = loaded_path(rng, load[0], library, seconds=0.25, base_ns=base + skew_ns)
    backward = loaded_path(rng, load[1], library, seconds=0.25, base_ns=base)
    return rng, Edge(clocks[0], clocks[1], forward, backward, rate, loss), clocks[0], clocks[1]


def join(parts: list[Trains]) -> Trains:
    """Trains of several seconds as one."""
    fields = ("t_ns", "tx_ns", "rx_ns", "valid")
    return Trains(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


@pytest.mark.simulation
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    loads=st.tuples(st.sampled_from([0.0, 0.3, 0.6, 0.9]), st.sampled_from([0.0, 0.3, 0.6, 0.9])),
    rate=st.sampled_from([5.0, 16.0, 50.0]),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    skew_ns=st.sampled_from([0.0, 400.0, 4_000.0]),
)
@example(
    seed=4_294_967_294, loads=(0.6, 0.9), rate=5.0, loss=0.1, skew_ns=0.0
)  # a slope of 2,500 ppm fitted best
def test_offset_and_rate_are_within_the_bound(
    seed: int, loads: tuple[float, float], rate: float, loss: float, skew_ns: float
) -> None:
    """At every step, from the first: offset within its bound, rate within what causality leaves it."""
    rng, edge, a, b = make_edge(seed, loads, rate=rate, loss=loss, skew_ns=skew_ns)
    edge_filter = EdgeFilter(PARAMETERS)
    out: list[Trains] = []
    into: list[Trains] = []
    for second in range(1, 8):
        o, i = edge.window(rng, second, second + 1)
        out, into = [*out[-3:], o], [*into[-3:], i]
        outbound, inbound = join(out), join(into)
        if not len(outbound) or not len(inbound):
            continue
        fit = fit_edge(outbound, inbound, PARAMETERS, edge_filter.prior(int(outbound.t_ns.max())))
        if fit is None:
            continue
        filtered = edge_filter.update(fit)
        for result in (fit, filtered):
            error = result.at(result.t_last_ns) - edge.truth_ns(result.t_last_ns, second + 1.0)
            assert abs(error) <= result.bound_ns, (second, error, result)
        true_rate = b.rate_ppb(second) - a.rate_ppb(second)
        assert fit.rate_low_ppb - 50 <= true_rate <= fit.rate_high_ppb + 50


def errors_of(
    seed: int,
    load: tuple[float, float],
    rate: float = 50.0,
    seconds: int = 12,
    paths: Callable[[Path], Path] = lambda path: path,
) -> list[float]:
    """Of the filter's line at the end of each window from the sixth second on, ns."""
    rng, edge, _, _ = make_edge(seed, load, rate=rate)
    edge.forward, edge.backward = paths(edge.forward), paths(edge.backward)
    edge_filter = EdgeFilter(PARAMETERS)
    out: list[Trains] = []
    into: list[Trains] = []
    errors = []
    for second in range(1, seconds):
        o, i = edge.window(rng, second, second + 1)
        out, into = [*out[-3:], o], [*into[-3:], i]
        fit = fit_edge(join(out), join(into), PARAMETERS, edge_filter.prior(int(o.t_ns[-1])))
        assert fit is not None
        fit = edge_filter.update(fit)
        if second > 5:
            errors.append(abs(fit.at(fit.t_last_ns) - edge.truth_ns(fit.t_last_ns, second + 1.0)))
    return errors


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("load", "rate", "limit_ns"),
    [
        ((0.0, 0.0), 50.0, 25),
        ((0.4, 0.4), 50.0, 25),
        ((0.8, 0.2), 50.0, 40),
        ((0.9, 0.4), 50.0, 80),
        ((0.8, 0.2), 16.0, 60),
    ],
    ids=["idle", "40/40", "80/20", "90/40", "80/20 at 16 trains/s"],
)
def test_error_under_load(load: tuple[float, float], rate: float, limit_ns: float) -> None:
    """4 s windows: what asymmetric queues of 25 to 400 us leave is tens of ns, from 5 s after the start."""
    errors = [error for seed in range(3) for error in errors_of(seed, load, rate)]
    assert np.quantile(errors, 0.95) <= limit_ns


@pytest.mark.simulation
@pytest.mark.parametrize(("rate", "limit_ns"), [(16.0, 30), (100.0, 25)])
def test_stamps_that_are_late_by_chance(rate: float, limit_ns: float) -> None:
    """Stamps as a busy machine's: of packets as fast as each other to 100 ns some seem faster by up to 400. The more
    packets, the more of those; the line is better all the same.
    """

    def busy(path: Path) -> Path:
        return replace(path, noise_ns=150.0, late_stamp=0.03, late_ns=400.0)

    errors = [error for seed in range(3) for error in errors_of(seed, (0.0, 0.0), rate, 24, busy)]
    assert np.quantile(errors, 0.95) <= limit_ns


@pytest.mark.simulation
@pytest.mark.parametrize("ramp_ppb_s", [100.0, -300.0, 1_000.0])
def test_a_rate_that_drifts_is_followed(ramp_ppb_s: float) -> None:
    """A temperature ramp for 20 s: bounds hold, and from its seventh second on the line is good to 60 ns."""
    rng, edge, _, b = make_edge(7, (0.3, 0.1))
    for tenth in range(200):
        b.change_rate(10 + tenth / 10, ramp_ppb_s / 10)
    edge_filter = EdgeFilter(PARAMETERS)
    out: list[Trains] = []
    into: list[Trains] = []
    errors = []
    for second in range(1, 30):
        o, i = edge.window(rng, second, second + 1)
        out, into = [*out[-3:], o], [*into[-3:], i]
        fit = fit_edge(join(out), join(into), PARAMETERS, edge_filter.prior(int(o.t_ns[-1])))
        assert fit is not None
        fit = edge_filter.update(fit)
        error = abs(fit.at(fit.t_last_ns) - edge.truth_ns(fit.t_last_ns, second + 1.0))
        assert error <= fit.bound_ns
        if second >= 17:
            errors.append(error)
    assert max(errors) <= 60


@pytest.mark.simulation
@pytest.mark.parametrize("change_ppb", [0.0, 200.0, -900.0])
def test_a_rate_that_changes_is_followed(change_ppb: float) -> None:
    """The rate of a clock changes at once, as chronyd does it: bounds hold, 5 s later so does the old accuracy."""
    rng, edge, _, b = make_edge(9, (0.3, 0.1))
    at_s, late = 20, []
    b.change_rate(at_s, change_ppb)
    edge_filter = EdgeFilter(PARAMETERS)
    out: list[Trains] = []
    into: list[Trains] = []
    for second in range(1, 36):
        o, i = edge.window(rng, second, second + 1)
        out, into = [*out[-3:], o], [*into[-3:], i]
        fit = fit_edge(join(out), join(into), PARAMETERS, edge_filter.prior(int(o.t_ns[-1])))
        assert fit is not None
        fit = edge_filter.update(fit)
        error = abs(fit.at(fit.t_last_ns) - edge.truth_ns(fit.t_last_ns, second + 1.0))
        assert error <= fit.bound_ns
        if second > at_s + 5:
            late.append(error)
    assert max(late) <= 50


def test_a_second_of_slow_packets_one_way_counts_little() -> None:
    """All packets of one direction 300 ns late for a second: the gap tells, and the offset moves by less than 40 ns."""
    rng, edge, _, _ = make_edge(5, (0.0, 0.0))
    edge_filter = EdgeFilter(PARAMETERS)
    out: list[Trains] = []
    into: list[Trains] = []
    for second in range(1, 20):
        o, i = edge.window(rng, second, second + 1)
        if second == 15:
            o.rx_ns[:] += 300
        out, into = [*out[-3:], o], [*into[-3:], i]
        fit = fit_edge(join(out), join(into), PARAMETERS, edge_filter.prior(int(o.t_ns[-1])))
        assert fit is not None
        fit = edge_filter.update(fit)
        if second >= 15:
            assert abs(fit.at(fit.t_last_ns) - edge.truth_ns(fit.t_last_ns, second + 1.0)) < 40


def test_it_says_what_the_fit_rests_on() -> None:
    """A first window: itself. Later ones: those before, too. A handful of packets: only with windows before."""
    rng, edge, _, _ = make_edge(3, (0.0, 0.0))
    out, into = edge.window(rng, 1, 5)
    full = fit_edge(out, into, PARAMETERS)
    assert full is not None
    assert full.quality == Quality.WINDOW
    handful = [Trains(t.t_ns[:1], t.tx_ns[:1], t.rx_ns[:1], t.valid[:1]) for t in (out, into)]
    assert fit_edge(handful[0], handful[1], PARAMETERS) is None
    edge_filter = EdgeFilter(PARAMETERS)
    edge_filter.update(full)
    prior = edge_filter.prior(int(out.t_ns[-1]))
    for trains, quality in ((handful, Quality.MINIMUM), ([out, into], Quality.FILTERED)):
        fit = fit_edge(trains[0], trains[1], PARAMETERS, prior)
        assert fit is not None
        assert fit.quality == quality


def test_one_direction_alone_says_nothing() -> None:
    """Without a packet back there is no offset, and none is made up."""
    rng, edge, _, _ = make_edge(4, (0.0, 0.0))
    out, into = edge.window(rng, 1, 3)
    deaf = Trains(into.t_ns, into.tx_ns, into.rx_ns, np.zeros_like(into.valid))
    assert fit_edge(out, deaf, PARAMETERS) is None


def test_late_transmit_stamps_do_not_pull_the_line() -> None:
    """2 % of transmit stamps late by up to 100 ns: the error stays below 40 ns and within the bound."""
    for seed in range(5):
        rng, edge, _, _ = make_edge(seed, (0.0, 0.0))
        edge.forward.late_stamp = edge.backward.late_stamp = 0.02
        out, into = edge.window(rng, 1, 5)
        fit = fit_edge(out, into, PARAMETERS)
        assert fit is not None
        error = abs(fit.at(fit.t_last_ns) - edge.truth_ns(fit.t_last_ns, 5.0))
        assert error <= min(40.0, fit.bound_ns)
