"""The clock of a lab host, in Python: reader and writer of core/include/fabricpulse/virtual_clock.h."""

import os
import struct
import time
from pathlib import Path

from fabricpulse.core._atomic import fence
from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.mapping import LayoutError, MappedFile, create_mapping

MAGIC = 0x314B4C4356505046
VERSION = 2
ENV = "FABRICPULSE_VIRTUAL_CLOCK"

HEADER = struct.Struct("<QIIII")
SEGMENT = struct.Struct("<qqq")
COUNT_OFFSET, RAW_COUNT_OFFSET, CAPACITY_OFFSET = 16, 20, 12


class VirtualClock:
    """Reads the page of this host: kernel stamps to what the host's clock showed."""

    def __init__(self, path: Path) -> None:
        """Raises LayoutError or OSError when `path` is no clock page."""
        self._file = MappedFile(path, MAGIC, VERSION, HEADER.size)
        capacity = int.from_bytes(self._file.map[CAPACITY_OFFSET : CAPACITY_OFFSET + 4], "little")
        self._raw_offset = HEADER.size + capacity * SEGMENT.size

    def from_kernel(self, kernel_ns: int) -> int:
        """Host clock in ns at the moment when the kernel's CLOCK_REALTIME was `kernel_ns`."""
        return self._at(kernel_ns, COUNT_OFFSET, HEADER.size)

    def raw_from_kernel(self, kernel_ns: int) -> int:
        """CLOCK_MONOTONIC_RAW of the host at the moment when the kernel's was `kernel_ns`."""
        return self._at(kernel_ns, RAW_COUNT_OFFSET, self._raw_offset)

    def _at(self, kernel_ns: int, count_offset: int, segments_offset: int) -> int:
        page = self._file.map
        index = int.from_bytes(page[count_offset : count_offset + 4], "little") - 1
        fence()
        while index >= 0:
            start, offset, rate = SEGMENT.unpack_from(page, segments_offset + index * SEGMENT.size)
            if start <= kernel_ns or index == 0:
                drift = (kernel_ns - start) * rate
                # C division truncates towards zero; so must this.
                whole = abs(drift) // 10**12
                return int(kernel_ns + offset + (whole if drift >= 0 else -whole))
            index -= 1
        return kernel_ns


class VirtualClockWriter:
    """Writes the page of a lab host. Append-only: past stamps keep their meaning."""

    def __init__(self, path: Path, capacity: int = 65_536) -> None:
        header = HEADER.pack(MAGIC, VERSION, capacity, 0, 0)
        self._map = create_mapping(path, HEADER.size + 2 * capacity * SEGMENT.size, initial=header)
        self._capacity = capacity
        self._counts = {COUNT_OFFSET: 0, RAW_COUNT_OFFSET: 0}

    def append(self, start_ns: int, offset_ns: int, rate_ppt: int) -> None:
        """From kernel time `start_ns` the host is `offset_ns` ahead and gains `rate_ppt` / 10^12.

        Raises ValueError when the page is full or the segment is not newer than the last.
        """
        self._append(COUNT_OFFSET, HEADER.size, (start_ns, offset_ns, rate_ppt))

    def append_raw(self, start_ns: int, offset_ns: int, rate_ppt: int) -> None:
        """The same for CLOCK_MONOTONIC_RAW; start_ns : of the kernel's. Raises as `append`."""
        segments = HEADER.size + self._capacity * SEGMENT.size
        self._append(RAW_COUNT_OFFSET, segments, (start_ns, offset_ns, rate_ppt))

    def _append(self, count_offset: int, segments_offset: int, segment: tuple[int, int, int]) -> None:
        count = self._counts[count_offset]
        if count == self._capacity:
            raise ValueError(f"virtual clock page is full ({self._capacity} segments)")
        at = segments_offset + count * SEGMENT.size
        if count and segment[0] < SEGMENT.unpack_from(self._map, at - SEGMENT.size)[0]:
            raise ValueError("virtual clock segments must be appended in the order of time")
        SEGMENT.pack_into(self._map, at, *segment)
        self._counts[count_offset] = count + 1
        fence()
        self._map[count_offset : count_offset + 4] = (count + 1).to_bytes(4, "little")


def open_virtual_clock() -> VirtualClock | None:
    """The page named by FABRICPULSE_VIRTUAL_CLOCK, or None outside a lab.

    Raises UserError when the variable names something that is not a clock page.
    """
    path = os.environ.get(ENV)
    if not path:
        return None
    try:
        return VirtualClock(Path(path))
    except (OSError, LayoutError) as error:
        raise UserError(f"{ENV}={path} is not a virtual clock: {error}") from error


def host_now_ns(clock: VirtualClock | None) -> int:
    """The host's system clock in ns since 1970."""
    now = time.time_ns()
    return now if clock is None else clock.from_kernel(now)
