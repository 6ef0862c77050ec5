"""The clock of a peer is slewed: our end of the edge sees it in the trains alone."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

S = 10**9
T0_NS = 1_700_000_000 * S
STEP_S = 10.3


def peer_ns(t_ns: NDArray[np.int64], step_ppm: float) -> NDArray[np.int64]:
    """What the peer's clock shows when ours, which is right, shows t_ns."""
    since = np.maximum(t_ns - T0_NS - round(STEP_S * S), 0)
    shown: NDArray[np.int64] = t_ns + 5_000_000 + np.rint(since * step_ppm * 1e-6).astype(np.int64)
    return shown


def second_of(rng: np.random.Generator, begin_s: int, step_ppm: float) -> Samples:
    """50 trains each way, a third of which meet a queue; the way takes 1.5 us."""
    blocks = []
    for direction in (OUTBOUND, INBOUND):
        sent = (
            T0_NS + np.sort(rng.integers(begin_s * S, (begin_s + 1) * S, 50))[:, None] + np.arange(3) * 20_000
        )
        queued = np.where(rng.random((50, 1)) < 0.3, rng.exponential(50_000, (50, 3)), 0.0)
        arrived = sent + np.rint(1_500 + np.abs(rng.normal(0, 15, (50, 3))) + queued).astype(np.int64)
        block = np.zeros(50, SAMPLE_DTYPE)
        block["direction"], block["flags"] = direction, MAIN_PATH
        block["tx_valid"] = block["rx_valid"] = 7
        ours, theirs = (sent, arrived) if direction == OUTBOUND else (arrived, sent)
        theirs = peer_ns(theirs, step_ppm)
        block["tx_ns"], block["rx_ns"] = (ours, theirs) if direction == OUTBOUND else (theirs, ours)
        blocks.append(block)
    return np.concatenate(blocks)


@pytest.mark.simulation
@pytest.mark.parametrize("step_ppm", [-1_000.0, -200.0, -60.0, -15.0, 15.0, 60.0, 200.0, 1_000.0])
def test_a_frequency_step_is_followed(step_ppm: float) -> None:
    """The bound holds at each step, and two seconds later the offset is as good as before."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        window = EdgeWindow(EstimatorParameters())
        for second in range(17):
            window.add(second_of(rng, second, step_ppm))
            fit = window.advance(T0_NS + (second + 1) * S)
            if fit is None:
                assert second in (10, 11), "only a frequency step leaves too little to fit"
                continue
            at = np.array([fit.t_last_ns])
            error = fit.at(fit.t_last_ns) - float((peer_ns(at, step_ppm) - at)[0])
            assert abs(error) <= fit.bound_ns, (seed, second, error, fit.bound_ns)
            if second > 12:
                assert abs(error) < 100, (seed, second)
        # A small one is followed by the filter, without a cut.
        assert window.frequency_steps + window.steps > 0 or abs(step_ppm) < 20


def test_a_straight_window_is_not() -> None:
    """Two minutes of queues, and now and then a stamp that is wrong by some us."""
    rng = np.random.default_rng(1)
    window = EdgeWindow(EstimatorParameters())
    for second in range(120):
        samples = second_of(rng, second, 0.0)
        if second % 7 == 3:
            samples["tx_ns"][rng.integers(100)] += 6_000
        window.add(samples)
        assert window.advance(T0_NS + (second + 1) * S) is not None
    assert window.frequency_steps == window.steps == 0


@pytest.mark.parametrize("pause_ns", [-10_000, 10_000, 20_000, 1_000_000, 2 * S])
def test_a_pause_of_our_machine_cuts_the_window(pause_ns: int) -> None:
    """All our clocks lose 10 us to 2 s (a negative pause: the peer's did): packets then arrive before they were sent.

    The edge tells a step in that second, and by then its bound holds again.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        window = EdgeWindow(EstimatorParameters())
        for second in range(8):
            samples = second_of(rng, second, 0.0)
            lost = pause_ns if second >= 5 else 0
            # Our clocks stand still meanwhile, and so does everything that is stamped by them: the peer's go on.
            for theirs, direction in (("rx_ns", OUTBOUND), ("tx_ns", INBOUND)):
                samples[theirs][samples["direction"] == direction] += lost
            window.add(samples)
            fit = window.advance(T0_NS + (second + 1) * S)
            assert window.steps == (second >= 5)
            assert fit is not None
            assert abs(fit.at(fit.t_last_ns) - 5_000_000 - lost) <= fit.bound_ns


@pytest.mark.parametrize("longer_ns", [5_000, -1_000])
def test_a_longer_route_is_counted_and_a_change_of_rate_is_not(longer_ns: int) -> None:
    """One way takes 5 us more from the eighth second on: one change of route, and the window begins there."""
    rng = np.random.default_rng(1)
    window = EdgeWindow(EstimatorParameters())
    for second in range(16):
        samples = second_of(rng, second, 0.0)
        if second >= 8:
            samples["rx_ns"][samples["direction"] == OUTBOUND] += longer_ns
        window.add(samples)
        fit = window.advance(T0_NS + (second + 1) * S)
        assert fit is not None
        assert abs(fit.at(fit.t_last_ns) - 5_000_000) <= fit.bound_ns
    assert window.route_changes == (longer_ns > 0)
    assert window.steps == window.frequency_steps == 0


@pytest.mark.parametrize("missed", [range(8, 9), range(9, 10), range(9, 11), range(8, 12), range(6, 16)])
def test_a_longer_route_is_noticed_after_missed_rounds(missed: range) -> None:
    """A busy host fits nothing for some seconds around the change: four rounds later the offset is where the longer way
    puts it, and not a minute later.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        window = EdgeWindow(EstimatorParameters())
        for second in range(missed.stop + 4):
            samples = second_of(rng, second, 0.0)
            if second >= 8:
                samples["rx_ns"][samples["direction"] == OUTBOUND] += 20_000
            window.add(samples)
            if second not in missed:
                fit = window.advance(T0_NS + (second + 1) * S)
                assert fit is not None
                assert abs(fit.at(fit.t_last_ns) - 5_000_000) <= fit.bound_ns
        assert fit is not None
        # After a window without a fit all begins anew, and nothing that was shorter is left to compare with.
        assert window.route_changes == (len(missed) < 6)
        # What no measurement can see: half of what one way takes longer.
        assert abs(fit.at(fit.t_last_ns) - 5_010_000) < 200
