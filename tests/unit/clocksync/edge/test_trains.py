"""The native trains of an edge: what they take of the ring's samples, in which order, and what they refuse."""

import copy
import gc

import numpy as np
import pytest

from fabricpulse.clocksync._edge_fit import Trains
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, Samples
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND, RX_HARDWARE, TX_HARDWARE


def samples(*sent_ns: int, flags: int = MAIN_PATH, direction: int = OUTBOUND) -> Samples:
    """Of trains that take 1,000 ns, all stamps there."""
    block = np.zeros(len(sent_ns), SAMPLE_DTYPE)
    block["flags"], block["direction"] = flags, direction
    block["tx_ns"] = np.array(sent_ns)[:, None] + np.arange(3)
    block["rx_ns"] = block["tx_ns"] + 1_000
    block["tx_valid"] = block["rx_valid"] = 7
    return block


def joined(*blocks: Samples, to: Trains | None = None, direction: int = OUTBOUND) -> Trains:
    """With those of `to`."""
    return (to or Trains()).joined([block.view(np.uint8) for block in blocks], direction)


def test_trains_are_in_the_order_of_time_however_they_come() -> None:
    """Within a block, over blocks, and a late one among those that were there."""
    trains = joined(samples(50), to=joined(samples(30, 10), samples(70)))
    assert trains.t_ns.tolist() == [10, 30, 50, 70]
    assert trains.after(30).t_ns.tolist() == [30, 50, 70]
    assert trains.without([30, 70]).t_ns.tolist() == [10, 50]


@pytest.mark.parametrize("flags", [0, MAIN_PATH | TX_HARDWARE, MAIN_PATH | RX_HARDWARE])
def test_other_paths_and_other_clocks_are_left_out(flags: int) -> None:
    """Path-sweep trains, and stamps of a NIC's clock."""
    assert len(joined(samples(10, flags=flags))) == 0


def test_a_direction_has_its_own() -> None:
    """An inbound train is identified by when it came."""
    both = samples(10), samples(20, direction=INBOUND)
    assert joined(*both).t_ns.tolist() == [10]
    assert joined(*both, direction=INBOUND).t_ns.tolist() == [1_020]


def test_packets_count_where_both_stamps_are_there() -> None:
    """A train without one is none; one whose first stamp is missing is identified by the next."""
    block = samples(10, 20)
    block["tx_valid"], block["rx_valid"] = [0b110, 0b001], [0b101, 0b010]
    trains = joined(block)
    assert trains.valid.tolist() == [[False, False, True]]
    assert trains.t_ns.tolist() == [11]


def test_arrays_outlive_the_trains_that_they_show() -> None:
    """They are views."""
    part = joined(samples(10, 20, 30)).part(1, 3)
    shown = part.rx_ns
    del part
    gc.collect()
    assert shown.tolist() == [[1_020, 1_021, 1_022], [1_030, 1_031, 1_032]]


def test_copies_are_of_the_same_trains() -> None:
    """A simulated fleet is copied for each test."""
    trains = joined(samples(10, 20, 30)).after(20)
    copied = copy.deepcopy(trains)
    trains.rx_ns[:] = 0
    assert copied.t_ns.tolist() == [20, 30]
    assert copied.rx_ns[0].tolist() == [1_020, 1_021, 1_022]


def test_what_are_no_trains_is_refused() -> None:
    """Parts of samples, rows that are missing, and what nothing can say."""
    with pytest.raises(ValueError, match="whole samples"):
        joined(samples(10)).joined([np.zeros(100, np.uint8)], OUTBOUND)
    stamps = np.zeros((2, 3), np.int64)
    with pytest.raises(ValueError, match="rows"):
        Trains(np.zeros(1, np.int64), stamps, stamps, np.ones((2, 3), np.bool_))
    with pytest.raises(ValueError, match="no trains"):
        _ = joined().begin_ns
