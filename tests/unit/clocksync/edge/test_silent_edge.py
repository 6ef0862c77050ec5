"""An edge that was cut, and whose clocks changed their rates meanwhile: what was known of them is no prior any more."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

S = 10**9
T0_NS = 1_700_000_000 * S
# The peer's clock runs faster by so much from these moments on, ns: while the edge is silent.
CUT_S, BACK_S = 8, 20
TURNS = ((CUT_S * S, 200), ((CUT_S + 4) * S, 600))


def offset_ns(since_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """The peer's clock minus ours."""
    offset = np.full(since_ns.shape, 5e6)
    for begin, ppb in TURNS:
        offset += ppb * 1e-9 * np.maximum(since_ns - begin, 0)
    return offset


def trains(rng: np.random.Generator, begin_ns: int, end_ns: int) -> Samples:
    """20 a second each way, over an idle path."""
    blocks = []
    count = max(1, (end_ns - begin_ns) * 20 // S)
    for direction in (OUTBOUND, INBOUND):
        sent = np.sort(rng.integers(begin_ns, end_ns, count))[:, None] + np.arange(3) * 20_000
        arrived = sent + np.rint(1_500 + np.abs(rng.normal(0, 15, sent.shape))).astype(np.int64)
        block = np.zeros(count, SAMPLE_DTYPE)
        block["direction"], block["flags"] = direction, MAIN_PATH
        block["tx_valid"] = block["rx_valid"] = 7
        ours, theirs = (sent, arrived) if direction == OUTBOUND else (arrived, sent)
        theirs = theirs + np.rint(offset_ns(theirs)).astype(np.int64)
        block["tx_ns"], block["rx_ns"] = (
            (T0_NS + ours, T0_NS + theirs) if direction == OUTBOUND else (T0_NS + theirs, T0_NS + ours)
        )
        blocks.append(block)
    return np.concatenate(blocks)


def is_cut(second: int) -> bool:
    return CUT_S <= second < BACK_S


def error_ns(fit: EdgeFit, ahead_ns: int) -> float:
    """Beyond its bound, when it is used `ahead_ns` after its end; drift_ppb is the user's to add."""
    at_ns = fit.t_last_ns + ahead_ns
    error = abs(fit.at(at_ns) - offset_ns(np.array(at_ns - T0_NS)))
    return float(error - fit.bound_ns - EstimatorParameters().drift_ppb * 1e-9 * ahead_ns)


@pytest.mark.parametrize("phase_ns", range(0, S, S // 10))
def test_the_bound_holds_when_it_is_back(phase_ns: int) -> None:
    """From the first round on, whenever the edge comes back between two rounds."""
    rng = np.random.default_rng(phase_ns)
    window = EdgeWindow(EstimatorParameters())
    for second in range(BACK_S + 12):
        begin_ns, end_ns = second * S, (second + 1) * S
        if not is_cut(second):
            window.add(trains(rng, begin_ns + (phase_ns if second == BACK_S else 0), end_ns))
        fit = window.advance(T0_NS + end_ns)
        if fit is not None:
            assert max(error_ns(fit, 0), error_ns(fit, S)) <= 0, second


@pytest.mark.parametrize("silent_s", [1, 6])
def test_what_was_known_is_forgotten_after_seconds_of_silence(silent_s: int) -> None:
    """Not after a gap of one second, as of a machine that was late."""
    rng = np.random.default_rng(1)
    window = EdgeWindow(EstimatorParameters())
    for second in (*range(4), *range(4 + silent_s, 6 + silent_s)):
        window.add(trains(rng, second * S, (second + 1) * S))
        window.advance(T0_NS + (second + 1) * S)
    assert window.filter.windows == (2 if silent_s > 2 else 6)
