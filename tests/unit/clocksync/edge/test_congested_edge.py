"""An edge whose packets wait in a queue one way, nearly all of them: the few that do not are no clock that stepped."""

import numpy as np
import pytest

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

S = 10**9
T0_NS = 1_700_000_000 * S
OFFSET_NS = 5_000_000


def second_of(
    rng: np.random.Generator, begin_s: int, queue_ns: float, congested: int, step_ns: int
) -> Samples:
    """20 trains each way; of the congested direction all wait for most of queue_ns, and one in 30 trains does not."""
    blocks = []
    for direction in (OUTBOUND, INBOUND):
        sent = (
            T0_NS + np.sort(rng.integers(begin_s * S, (begin_s + 1) * S, 20))[:, None] + np.arange(3) * 20_000
        )
        queued = queue_ns * rng.uniform(0.7, 1.0, (20, 1)) * (rng.random((20, 1)) > 1 / 30)
        queued *= direction == congested
        arrived = sent + np.rint(1_500 + np.abs(rng.normal(0, 15, (20, 3))) + queued).astype(np.int64)
        block = np.zeros(20, SAMPLE_DTYPE)
        block["direction"], block["flags"] = direction, MAIN_PATH
        block["tx_valid"] = block["rx_valid"] = 7
        ours, theirs = (sent, arrived) if direction == OUTBOUND else (arrived, sent)
        theirs = theirs + OFFSET_NS + step_ns
        block["tx_ns"], block["rx_ns"] = (ours, theirs) if direction == OUTBOUND else (theirs, ours)
        blocks.append(block)
    return np.concatenate(blocks)


@pytest.mark.parametrize("congested", [OUTBOUND, INBOUND])
@pytest.mark.parametrize("queue_ns", [2e5, 2e6, 2e7])
def test_who_has_not_waited_is_no_step(congested: int, queue_ns: float) -> None:
    """Also of an edge that is new, or has been cut, and knows nothing but the congestion. The bound holds."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        window = EdgeWindow(EstimatorParameters())
        for second in range(30):
            window.add(second_of(rng, second, queue_ns, congested, 0))
            fit = window.advance(T0_NS + (second + 1) * S)
            if fit is not None:
                assert abs(fit.at(fit.t_last_ns) - OFFSET_NS) <= fit.bound_ns, (seed, second)
        assert window.steps == 0, seed


@pytest.mark.parametrize("step_ns", [-300_000_000, 300_000_000])
def test_a_step_beyond_what_the_queue_can_hide_is_seen(step_ns: int) -> None:
    """In the round in which it comes."""
    rng = np.random.default_rng(1)
    window = EdgeWindow(EstimatorParameters())
    for second in range(12):
        window.add(second_of(rng, second, 2e7, INBOUND, step_ns if second >= 10 else 0))
        window.advance(T0_NS + (second + 1) * S)
        assert window.steps == (second >= 10)
