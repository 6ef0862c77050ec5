"""Fleet time in Python: reader and writer of core/include/fabricpulse/clock_page.h."""

import enum
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.core._atomic import fence
from fabricpulse.core.shm.mapping import MappedFile, create_mapping
from fabricpulse.core.shm.virtual_clock import VirtualClock, host_now_ns

MAGIC = 0x314B434F4C435046
VERSION = 1
PAGE = struct.Struct("<QIIII qqq qqq qqqqqQ")
SEQUENCE_OFFSET = 16
STATUS_OFFSET = 20
_BODY = struct.Struct("<I qqq qqq qqqqqQ")
# Longer than a writer can wait for its turn on a busy machine.
_READ_LIMIT_S = 0.1


class ClockStatus(enum.IntEnum):
    """enum fp_clock_status."""

    UNKNOWN = 0
    SYNCHRONIZED = 1
    HOLDOVER = 2
    DISRUPTED = 3


@dataclass(frozen=True)
class ClockLine:
    """fleet = ref_fleet_ns + (host - ref_host_ns) * (1 + rate_ppt / 10^12), all in ns."""

    ref_host_ns: int
    ref_fleet_ns: int
    rate_ppt: int

    def at(self, host_ns: int) -> int:
        """Fleet time in ns when the host clock showed `host_ns`."""
        elapsed = host_ns - self.ref_host_ns
        scaled = elapsed * self.rate_ppt
        whole = abs(scaled) // 10**12  # truncated towards zero, as in C
        return self.ref_fleet_ns + elapsed + (whole if scaled >= 0 else -whole)


@dataclass(frozen=True)
class FleetTime:
    """A stamp on fleet time: the truth lies in [earliest_ns, latest_ns]; ns since 1970."""

    fleet_ns: int
    bound_ns: int
    status: ClockStatus

    @property
    def earliest_ns(self) -> int:
        """The truth is not before this."""
        return self.fleet_ns - self.bound_ns

    @property
    def latest_ns(self) -> int:
        """The truth is not after this."""
        return self.fleet_ns + self.bound_ns


@dataclass(frozen=True)
class ClockPage:
    """One consistent copy of the page; fields as in struct fp_clock_page."""

    status: ClockStatus
    current: ClockLine
    previous: ClockLine
    bound_ref_host_ns: int
    bound_ns: int
    drift_ppb: int
    valid_until_host_ns: int
    ref_mono_raw_ns: int
    disruptions: int

    def convert(self, host_ns: int) -> FleetTime:
        """A stamp of the host clock (ns since 1970) on fleet time."""
        line = self.current if host_ns >= self.current.ref_host_ns else self.previous
        age = abs(host_ns - self.bound_ref_host_ns)
        status = ClockStatus.UNKNOWN if host_ns > self.valid_until_host_ns else self.status
        return FleetTime(line.at(host_ns), self.bound_ns + age * self.drift_ppb // 10**9, status)


class ClockPageReader:
    """Reads the clock page that a sidecar writes: `ClockPageReader(clock_page_path()).now()` is fleet time."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError before the first sidecar has started, LayoutError for another layout."""
        self._file = MappedFile(path, MAGIC, VERSION, PAGE.size)

    def stale(self) -> bool:
        """True when a new sidecar has put a new page in place; open it again."""
        return self._file.stale()

    def close(self) -> None:
        """Unmaps the page."""
        self._file.close()

    def now(self, virtual_clock: VirtualClock | None = None) -> FleetTime:
        """Fleet time now. Look at its status first: UNKNOWN means that there is none.

        virtual_clock : this host's in a lab. Raises TimeoutError as `read`.
        """
        page = self.read()
        return page.convert(host_now_ns(virtual_clock))

    def read(self) -> ClockPage:
        """One consistent copy. Raises TimeoutError if the writer died while writing."""
        page = self._file.map
        deadline = None
        while True:
            # Before and after the copy, never as part of it: a copy may take its bytes in any order.
            sequence = page[SEQUENCE_OFFSET : SEQUENCE_OFFSET + 4]
            fence()
            data = page[0 : PAGE.size]
            fence()
            if not sequence[0] & 1 and page[SEQUENCE_OFFSET : SEQUENCE_OFFSET + 4] == sequence:
                f = PAGE.unpack(data)
                return ClockPage(ClockStatus(f[4]), ClockLine(*f[5:8]), ClockLine(*f[8:11]), *f[11:17])
            # The writer is at work, for less than 10 us unless the scheduler took it off the processor.
            now = time.monotonic()
            deadline = deadline or now + _READ_LIMIT_S
            if now > deadline:
                raise TimeoutError(
                    f"{self._file.path}: the writer of the clock page stopped in the middle of an update"
                )
            time.sleep(0)


class ClockPageWriter:
    """Writes the clock page; one per host."""

    def __init__(self, path: Path) -> None:
        """A page that says "unknown" in place of whatever was there. Raises OSError."""
        self._sequence = 0
        self._map = create_mapping(path, PAGE.size, initial=struct.pack("<QII", MAGIC, VERSION, PAGE.size))

    def write(self, page: ClockPage) -> None:
        """Publishes `page`; readers see the old one or the new one, never a mixture."""
        body = _BODY.pack(
            page.status,
            *(page.current.ref_host_ns, page.current.ref_fleet_ns, page.current.rate_ppt),
            *(page.previous.ref_host_ns, page.previous.ref_fleet_ns, page.previous.rate_ppt),
            page.bound_ref_host_ns,
            page.bound_ns,
            page.drift_ppb,
            page.valid_until_host_ns,
            page.ref_mono_raw_ns,
            page.disruptions,
        )
        self._set_sequence(self._sequence + 1)
        self._map[STATUS_OFFSET : STATUS_OFFSET + _BODY.size] = body
        self._set_sequence(self._sequence + 1)

    def _set_sequence(self, value: int) -> None:
        self._sequence = value & 0xFFFFFFFF
        fence()
        self._map[SEQUENCE_OFFSET : SEQUENCE_OFFSET + 4] = self._sequence.to_bytes(4, "little")
        fence()
