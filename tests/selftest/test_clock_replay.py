"""Recordings of the wire: what is read back is what was written, and what the trains say is what a fit finds."""

from pathlib import Path

import numpy as np
import pytest
from tests.bench.clocksync.replay import Recording, replay, rows

from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND

S = 10**9
LOOKS, RATE = 200, 50
OFFSET, DRIFT = -3_000_000, 35e-6


def recording() -> Recording:
    """Ten seconds; clock b is DRIFT faster than clock a, delays are 2 us and up to 3 us of a queue."""
    rng = np.random.default_rng(1)
    start = 1_700_000_000 * S
    looks = start + np.arange(LOOKS) * (S // 20)
    samples = np.zeros(10 * RATE * 2, SAMPLE_DTYPE)
    samples["flags"], samples["tx_valid"], samples["rx_valid"] = MAIN_PATH, 7, 7
    sent = start + np.repeat(np.arange(10 * RATE) * (S // RATE), 2)[:, None] + np.array([0, 20_000, 40_000])
    came = sent + 2_000 + rng.integers(0, 3_000, sent.shape) * (rng.random(sent.shape) < 0.7)
    samples["direction"][0::2], samples["direction"][1::2] = OUTBOUND, INBOUND

    def peer(t: np.ndarray) -> np.ndarray:
        shown: np.ndarray = t + OFFSET + np.rint((t - start) * DRIFT).astype(np.int64)
        return shown

    samples["tx_ns"][0::2], samples["rx_ns"][0::2] = sent[0::2], peer(came[0::2])
    samples["tx_ns"][1::2], samples["rx_ns"][1::2] = peer(sent[1::2]), came[1::2]
    arrived = np.searchsorted(came[:, 2], looks)
    truth = np.stack([looks, looks, peer(looks)], axis=1)
    said = np.full(LOOKS, 50.0)
    said[:10] = np.nan
    return Recording(truth, {"chronyd": said}, {RATE: samples}, {RATE: arrived}, [("0/0", 100, LOOKS)])


def test_a_recording_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """All of it: a train that came back changed would be an error of the estimator's."""
    written = recording()
    written.save(tmp_path / "a.npz")
    read = Recording.load(tmp_path / "a.npz")
    assert np.array_equal(read.truth, written.truth)
    assert np.array_equal(read.said["chronyd"], written.said["chronyd"], equal_nan=True)
    for name in SAMPLE_DTYPE.names or ():
        assert np.array_equal(read.trains[RATE][name], written.trains[RATE][name])
    assert np.array_equal(read.arrived[RATE], written.arrived[RATE])
    assert read.loads == written.loads


def test_the_error_is_the_fit_less_the_truth() -> None:
    """Trains of which many meet no queue: the error is some ns, and as large as the truth is wrong, with its sign."""
    right = recording()
    errors = replay(right, RATE)
    assert np.isnan(errors[0])
    assert np.abs(errors[100:]).max() < 20
    wrong = Recording(
        right.truth + np.array([0, 0, 500]), right.said, right.trains, right.arrived, right.loads
    )
    assert replay(wrong, RATE) == pytest.approx(errors - 500, nan_ok=True)


def test_no_train_is_used_before_it_arrived() -> None:
    """A train tells of the other end's stamps only when those have come back."""
    late = recording()
    late.arrived[RATE][:150] = 0
    errors = replay(late, RATE)
    assert np.isnan(errors[:150]).all()
    assert not np.isnan(errors[170])


def test_a_row_has_each_recording_and_their_mean() -> None:
    """Per load and contestant, of the looks that belong to the load."""
    one, two = recording(), recording()
    two.said["chronyd"][:] = 100.0
    row = next(row for row in rows([one, two]) if row["contestant"] == "chronyd")
    assert row["case"] == "0/0"
    assert row["p95"] == 75.0
    assert row["each_p95"] == [50.0, 100.0]
