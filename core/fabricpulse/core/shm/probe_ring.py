"""Probe samples in Python: reader of core/include/fabricpulse/probe_ring.h. The writer is the native probe engine."""

import struct
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.core._atomic import fence
from fabricpulse.core.shm.mapping import MappedFile

MAGIC = 0x31474E5242505046
VERSION = 3
TRAIN = 3

HEADER = struct.Struct("<QIIIIIIQQ96sIIQQQqQ")
EDGE = struct.Struct("<II32s32s96s32s32s")
SAMPLE = struct.Struct("<QIIIHBBBB6x3q3qqq32x")

INBOUND, OUTBOUND = 0, 1
TX_HARDWARE, RX_HARDWARE, MAIN_PATH, FLEET_VALID = 1, 2, 4, 8
EDGE_FREE, EDGE_ACTIVE, EDGE_RETIRED = 0, 1, 2

EDGES_SEQUENCE_OFFSET = HEADER.size - 40
NEXT_OFFSET = HEADER.size - 32
_READ_TRIES = 1000


@dataclass(frozen=True)
class ProbeEdge:
    """A pair (local NIC, remote NIC). index : the `edge` field of its samples."""

    index: int
    state: int
    generation: int
    device: str
    network: str
    peer: str
    peer_device: str
    peer_network: str


@dataclass(frozen=True)
class ProbeSample:
    """One train of one direction; stamps in ns of the stamp clocks that took them, fields as in fp_probe_sample."""

    edge: int
    train: int
    epoch: int
    path: int
    direction: int
    flags: int
    tx_valid: int
    rx_valid: int
    tx_ns: tuple[int, int, int]
    rx_ns: tuple[int, int, int]
    owd_ns: int
    owd_bound_ns: int


class ProbeRingReader:
    """Follows the ring from now on; each reader has its own position."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError before the engine has started, LayoutError for another layout."""
        self._file = MappedFile(path, MAGIC, VERSION, HEADER.size)
        header = HEADER.unpack_from(self._file.map)
        self._edge_capacity, self._capacity = header[4], header[6]
        self._edges_offset, self._samples_offset = header[7], header[8]
        self.host = _text(header[9])
        self.epoch = header[11]
        self.stamp_epoch_ns = header[15]
        self.lost = 0
        self._position = self._next()

    def stale(self) -> bool:
        """True when a new engine has put a new ring in place; open it again."""
        return self._file.stale()

    def close(self) -> None:
        """Unmaps the ring."""
        self._file.close()

    def _u64(self, offset: int) -> int:
        return int.from_bytes(self._file.map[offset : offset + 8], "little")

    def _next(self) -> int:
        return self._u64(NEXT_OFFSET)

    def edges(self) -> dict[int, ProbeEdge]:
        """The active edges by index. Raises TimeoutError if the engine died while changing the table."""
        page = self._file.map
        for _ in range(_READ_TRIES):
            before = self._u64(EDGES_SEQUENCE_OFFSET)
            if before & 1:
                continue
            fence()
            table = page[self._edges_offset : self._edges_offset + self._edge_capacity * EDGE.size]
            fence()
            if self._u64(EDGES_SEQUENCE_OFFSET) == before:
                return {
                    index: ProbeEdge(index, state, generation, *map(_text, names))
                    for index, (state, generation, *names) in enumerate(EDGE.iter_unpack(table))
                    if state == EDGE_ACTIVE
                }
        raise TimeoutError(f"{self._file.path}: the probe engine stopped in the middle of an update")

    def read(self, limit: int = 1 << 20) -> list[ProbeSample]:
        """The samples since the last call, oldest first; `lost` counts those that were overwritten before."""
        newest = self._next()
        fence()
        start = max(self._position, newest - self._capacity)
        self.lost += start - self._position
        end = min(newest, start + limit)
        samples = []
        for index in range(start, end):
            offset = self._samples_offset + (index % self._capacity) * SAMPLE.size
            data = self._file.map[offset : offset + SAMPLE.size]
            fence()
            if self._u64(offset) != 2 * index + 2 or int.from_bytes(data[0:8], "little") != 2 * index + 2:
                self.lost += 1
                continue
            _, edge, train, epoch, path, direction, flags, tx_valid, rx_valid, *ns = SAMPLE.unpack(data)
            tx_ns, rx_ns = (ns[0], ns[1], ns[2]), (ns[3], ns[4], ns[5])
            samples.append(
                ProbeSample(
                    *(edge, train, epoch, path, direction, flags, tx_valid, rx_valid),
                    tx_ns,
                    rx_ns,
                    ns[6],
                    ns[7],
                )
            )
        self._position = end
        return samples


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
