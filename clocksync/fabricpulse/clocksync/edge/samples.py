"""Reader of the probe ring (core/include/fabricpulse/probe_ring.h), in blocks: numpy arrays.

One Python object a sample would cost more than the estimator at 1,000 trains a second. So a block of slots is copied
at once and checked by its commit words before and after.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fabricpulse.core._atomic import fence, wait_changed, wake
from fabricpulse.core.shm.mapping import MappedFile
from fabricpulse.core.shm.probe_ring import (
    EDGE,
    EDGE_ACTIVE,
    EDGES_SEQUENCE_OFFSET,
    HEADER,
    MAGIC,
    OUTBOUND,
    SAMPLE,
    TRAIN,
    VERSION,
    ProbeEdge,
)

SAMPLE_DTYPE = np.dtype(
    {
        "names": [
            *("commit", "edge", "train", "epoch", "path", "direction", "flags", "tx_valid", "rx_valid"),
            *("tx_error_ns", "rx_error_ns", "tx_ns", "rx_ns", "owd_ns", "owd_bound_ns"),
        ],
        "formats": [
            *("<u8", "<u4", "<u4", "<u4", "<u2", "u1", "u1", "u1", "u1"),
            *("<u2", "<u2"),
            *(("<i8", (TRAIN,)), ("<i8", (TRAIN,)), "<i8", "<i8"),
        ],
        "offsets": [0, 8, 12, 16, 20, 22, 23, 24, 25, 26, 28, 32, 56, 80, 88],
        "itemsize": SAMPLE.size,
    }
)
Samples = NDArray[np.void]  # of SAMPLE_DTYPE
# As plain bytes samples are copied in a twentieth of the time; numpy goes through their fields otherwise.
RAW = np.dtype((np.void, SAMPLE_DTYPE.itemsize))

# Of so many trains one arrives, where numbers of trains are believed.
_MOST_LOST = 100
# Attempts at the edge table, which a configuration changes edge by edge.
_READ_TRIES = 100


class SampleReader:
    """Follows a probe ring; `read` returns what is new."""

    def __init__(self, path: Path, *, backlog: int = 0) -> None:
        """Starts at most `backlog` samples back. Raises FileNotFoundError, LayoutError."""
        self._file = MappedFile(path, MAGIC, VERSION, HEADER.size)
        header = HEADER.unpack_from(self._file.map)
        self._edge_capacity, self._capacity = header[4], header[6]
        self._edges_offset, samples_offset = header[7], header[8]
        self.host: str = header[9].split(b"\0", 1)[0].decode("utf-8", "replace")
        self.epoch: int = header[11]
        # Stamp clock minus CLOCK_MONOTONIC_RAW.
        self.stamp_epoch_ns: int = header[15]
        self.lost = 0
        self._words = np.frombuffer(self._file.map, np.uint64, 6, EDGES_SEQUENCE_OFFSET)
        self._notices = self._words[2:5:2]  # contradictions, hidden_jump_ns
        # Samples that were ever written, contradictions, a clock, a jump, doubts: memory that the engine counts up in.
        self.counts = self._words[1:6]
        self._noticed = np.zeros(2, np.uint64)
        self._slots = np.frombuffer(self._file.map, RAW, self._capacity, samples_offset)
        newest = int(self._words[1])
        fence()
        self._position = max(0, newest - min(backlog, self._capacity))

    def stale(self) -> bool:
        """True when a new engine has put a new ring in place; open it again."""
        return self._file.stale()

    def close(self) -> None:
        """Drops the mapping. Not while a thread is in `wait_notice`."""
        del (
            self._words,
            self._notices,
            self.counts,
            self._slots,
        )  # numpy holds the buffer; the map cannot be closed under it
        self._file.close()

    @property
    def edges_sequence(self) -> int:
        """Changes whenever the edge table does."""
        return int(self._words[0])

    @property
    def contradictions(self) -> int:
        """How often delays have contradicted this host's clock page since the engine started."""
        return int(self._words[2])

    @property
    def hidden_jump_ns(self) -> int:
        """By how much this host's clock may have jumped in the last seconds unseen, beyond its bound; 0: by no more."""
        return int(self._words[4])

    def wait_notice(self, seconds: float) -> bool:
        """Waits until `contradictions` or `hidden_jump_ns` are others than when this last returned, at first 0: True,
        or False after `seconds`. For one thread.
        """
        return wait_changed(self._notices, self._noticed, seconds)

    def wake(self) -> None:
        """Ends a wait under way."""
        wake(self._notices)

    def edges(self) -> dict[int, ProbeEdge] | None:
        """The active edges by index. None while the engine changes them all the time: ask again in the next round."""
        size = self._edge_capacity * EDGE.size
        for _ in range(_READ_TRIES):
            sequence = self.edges_sequence
            fence()
            begin = self._edges_offset + (sequence & 1) * size
            table = self._file.map[begin : begin + size]
            fence()
            if self.edges_sequence == sequence:
                return {
                    index: ProbeEdge(index, state, generation, *(_text(name) for name in names))
                    for index, (state, generation, *names) in enumerate(EDGE.iter_unpack(table))
                    if state == EDGE_ACTIVE
                }
        return None

    def read(self) -> Samples:
        """Copies the samples since the last call, oldest first; `lost` counts those overwritten before."""
        newest = int(self._words[1])
        fence()
        start = max(self._position, newest - self._capacity)
        self.lost += start - self._position
        self._position = newest
        if newest <= start:
            return np.empty(0, SAMPLE_DTYPE)
        index = np.arange(start, newest, dtype=np.uint64)
        slots = (index % np.uint64(self._capacity)).astype(np.intp)
        block = self._slots[slots].view(SAMPLE_DTYPE)
        fence()
        expected = index * np.uint64(2) + np.uint64(2)
        good = (block["commit"] == expected) & (self._slots.view(SAMPLE_DTYPE)["commit"][slots] == expected)
        if not good.all():
            self.lost += int(len(good) - good.sum())
            block = block[good]
        return block


def train_interval_ns(samples: Samples) -> int:
    """How far apart the engine that wrote `samples` sends two trains on one edge, ns; 0 where they do not show it."""
    own = samples[samples["direction"] == OUTBOUND]
    own = own[own["edge"] == own["edge"][:1]] if len(own) else own
    own = own[(own["tx_valid"] & 2 != 0) & (own["epoch"] == own["epoch"][-1:])] if len(own) else own
    if len(own) < 2:
        return 0
    trains = (int(own["train"][-1]) - int(own["train"][0])) & 0xFFFFFFFF
    passed_ns = int(own["tx_ns"][-1, 1]) - int(own["tx_ns"][0, 1])
    return passed_ns // trains if 0 < trains < len(own) * _MOST_LOST and passed_ns > 0 else 0


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
