"""Stamps of NICs in the fit of an edge: the bound has in it how far they may be off."""

import numpy as np
import pytest

from fabricpulse.clocksync.edge.estimator import EdgeFit, EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND, RX_HARDWARE, TX_HARDWARE

S = 10**9
T0_NS = 1_700_000_000 * S


def trains(second: int, tx_error_ns: int, rx_error_ns: int) -> Samples:
    """20 a second each way, 1,500 ns on the way; one in each direction with stamps of NICs."""
    blocks = []
    for direction in (OUTBOUND, INBOUND):
        sent = (
            T0_NS
            + second * S
            + np.arange(20)[:, None] * (S // 20)
            + np.arange(3) * 20_000
            + direction * 7_000
        )
        block = np.zeros(20, SAMPLE_DTYPE)
        block["direction"], block["flags"] = direction, MAIN_PATH
        block["tx_valid"] = block["rx_valid"] = 7
        block["tx_ns"], block["rx_ns"] = sent, sent + 1_500
        if tx_error_ns or rx_error_ns:
            block["flags"][10] |= (tx_error_ns and TX_HARDWARE) | (rx_error_ns and RX_HARDWARE)
            block["tx_error_ns"][10], block["rx_error_ns"][10] = tx_error_ns, rx_error_ns
        blocks.append(block)
    return np.concatenate(blocks)


def fit(tx_error_ns: int, rx_error_ns: int) -> EdgeFit:
    window = EdgeWindow(EstimatorParameters())
    for second in range(4):
        window.add(trains(second, tx_error_ns, rx_error_ns))
        found = window.advance(T0_NS + (second + 1) * S)
    assert found is not None
    return found


def test_the_bound_grows_by_the_error_of_both_stamps() -> None:
    by_kernel, by_nics = fit(0, 0), fit(640, 1_280)
    assert by_nics.trains == by_kernel.trains
    assert by_nics.offset_ns == by_kernel.offset_ns
    assert by_nics.bound_ns == pytest.approx(by_kernel.bound_ns + 640 + 1_280)
