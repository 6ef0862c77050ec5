"""Fleet time in Python: reader and writer of core/include/fabricpulse/clock_page.h."""

import enum
import functools
import struct
import time
from pathlib import Path
from typing import NamedTuple

from fabricpulse.core._atomic import fence
from fabricpulse.core.files import file_identity
from fabricpulse.core.pauses import SUSPEND_NS, marker_of, open_vmclock, suspended_ns
from fabricpulse.core.shm.mapping import (
    LayoutError,
    MappedFile,
    create_mapping,
    reopen_mapping,
)
from fabricpulse.core.shm.virtual_clock import VirtualClock, host_now_ns, open_virtual_clock

MAGIC = 0x314B434F4C435046
VERSION = 6
PAGE = struct.Struct("<II qqq qqq qqqq qqq qqq qqQQ qqQ")
SEQUENCE_OFFSET = 16
WATCHED_OFFSET = 24
PAGES_OFFSET = 32
FILE_SIZE = PAGES_OFFSET + 2 * PAGE.size
_PLACES = slice(PAGES_OFFSET, PAGES_OFFSET + PAGE.size), slice(PAGES_OFFSET + PAGE.size, FILE_SIZE)
_HEAD = struct.pack("<QII", MAGIC, VERSION, FILE_SIZE)
_FROM_NS = _WATCHED_NS = struct.Struct("<q")
_FROM_OFFSET = 8  # of current.from_ns in a page
# A host clock this far from where the page has it was stepped.
STEP_NS = 20_000
WIDEST_NS = 2**60
_NEVER_NS = 2**63 - 1
_TRIES = 4
# Attempts at a copy, between which the writer may have the core: it decides in some us. All of them take some ms, and
# one of them succeeds however fast it writes.
_COPY_TRIES = 1000


class ClockStatus(enum.IntEnum):
    """enum fp_clock_status."""

    UNKNOWN = 0
    SYNCHRONIZED = 1
    HOLDOVER = 2
    DISRUPTED = 3

    @classmethod
    def _missing_(cls, value: object) -> "ClockStatus":
        """Any other value is UNKNOWN."""
        return cls.UNKNOWN


class ClockLine(NamedTuple):
    """One clock over another: to = to_ns + (from - from_ns) * (1 + rate_ppt / 10^12), all in ns."""

    from_ns: int
    to_ns: int
    rate_ppt: int

    def at(self, ns: int) -> int:
        """What the other clock showed when this one showed `ns`."""
        elapsed = ns - self.from_ns
        scaled = elapsed * self.rate_ppt
        # Truncated towards zero, as in C.
        gained_ns = scaled // 1_000_000_000_000 if scaled >= 0 else -(-scaled // 1_000_000_000_000)
        return self.to_ns + elapsed + gained_ns


class FleetTime(NamedTuple):
    """A stamp on fleet time: true time lies in [earliest_ns, latest_ns]; ns since 1970.

    estimated_error_ns : what fleet time is likely off by, which is no guarantee (clock_page.h), nor above bound_ns; 0 =
    not known.
    """

    fleet_ns: int
    bound_ns: int
    status: ClockStatus
    estimated_error_ns: int = 0

    @property
    def earliest_ns(self) -> int:
        """True time is not before this."""
        return self.fleet_ns - self.bound_ns

    @property
    def latest_ns(self) -> int:
        """True time is not after this."""
        return self.fleet_ns + self.bound_ns


class ClockPage(NamedTuple):
    """One consistent copy of the page; fields as in struct fp_clock_page."""

    status: ClockStatus
    current: ClockLine
    previous: ClockLine
    bound_ref_raw_ns: int
    bound_ns: int
    drift_ppb: int
    valid_until_raw_ns: int
    host: ClockLine
    host_previous: ClockLine
    host_since_ns: int
    host_bound_ns: int
    disruptions: int
    time_namespace: int = 0
    estimated_error_ns: int = 0
    synchronized_until_raw_ns: int = _NEVER_NS
    suspended_ns: int = -1
    vmclock_marker: int = 0

    @property
    def likely_ns(self) -> int:
        """estimated_error_ns, which older writers left above the bound of the host that all follow."""
        return min(self.estimated_error_ns, self.bound_ns)

    def at(self, raw_ns: int) -> FleetTime:
        """Fleet time when CLOCK_MONOTONIC_RAW showed `raw_ns`."""
        line = self.current if raw_ns >= self.current.from_ns else self.previous
        status = self.status
        if status == ClockStatus.SYNCHRONIZED and raw_ns > self.synchronized_until_raw_ns:
            status = ClockStatus.HOLDOVER
        if raw_ns > self.valid_until_raw_ns:
            status = ClockStatus.UNKNOWN
        bound_ns = self.bound_ns + abs(raw_ns - self.bound_ref_raw_ns) * self.drift_ppb // 1_000_000_000
        likely_ns = self.likely_ns if status == ClockStatus.SYNCHRONIZED else 0
        return FleetTime(line.at(raw_ns), bound_ns, status, likely_ns)

    def raw_ns(self, host_ns: int) -> int:
        """What CLOCK_MONOTONIC_RAW showed when the host clock showed `host_ns`."""
        return (self.host if host_ns >= self.host_since_ns else self.host_previous).at(host_ns)

    def convert(self, host_ns: int) -> FleetTime:
        """A stamp of the host clock (ns since 1970) on fleet time.

        Holds for a page that has been `checked` after the stamp was taken: what the host clock did since the sidecar
        sampled it, the page does not know. For the time now ask `at`, which neither a step nor a slew of the host clock
        can mislead.
        """
        time_then = self.at(self.raw_ns(host_ns))
        return time_then._replace(bound_ns=time_then.bound_ns + self.host_bound_ns)

    def paused(self, suspended_ns: int, vmclock_marker: int) -> bool:
        """Whether the machine was paused since fleet time was set, by what it reports of that now (core.pauses).

        vmclock_marker : plus one, 0 where there is no VMClock.
        """
        if 0 <= self.suspended_ns < suspended_ns - SUSPEND_NS:
            return True
        return 0 not in (vmclock_marker, self.vmclock_marker) and vmclock_marker != self.vmclock_marker

    def disrupted(self) -> "ClockPage":
        """The page, which something contradicts."""
        valid = self.status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)
        return self._replace(status=ClockStatus.DISRUPTED) if valid else self

    def checked(self, raw_before_ns: int, host_ns: int, raw_after_ns: int) -> "ClockPage":
        """The page with what the host clock has done since the sidecar sampled it, by a later reading of both clocks.

        host_ns : the host clock, read between both readings of the raw clock. Stamps taken before then convert within
        the bound as long as the host clock went one way; after a step the status is DISRUPTED.
        """
        expected_ns = self.raw_ns(host_ns)
        apart = abs(expected_ns - raw_before_ns), abs(expected_ns - raw_after_ns)
        stepped = not raw_before_ns <= expected_ns <= raw_after_ns and min(apart) > STEP_NS
        page = self.disrupted() if stepped else self
        return page._replace(host_bound_ns=min(self.host_bound_ns + max(apart), WIDEST_NS))


_virtual_clock_of_process = functools.cache(open_virtual_clock)


_NO_LINE = ClockLine(0, 0, 0)
_NO_PAGE = ClockPage(ClockStatus.UNKNOWN, _NO_LINE, _NO_LINE, 0, 0, 0, 0, _NO_LINE, _NO_LINE, 0, 0, 0)
_SEQUENCE_END = SEQUENCE_OFFSET + 4
# What `now` needs of a page: its line, bound_ref_raw_ns, bound_ns, drift_ppb, until when that holds, status,
# estimated_error_ns; the most that the machine may have been suspended.
_Plain = tuple[int, int, int, int, int, int, int, ClockStatus, int, int]
_fleet_time = tuple.__new__


def raw_now_ns(virtual_clock: VirtualClock | None = None) -> int:
    """CLOCK_MONOTONIC_RAW of this host, ns; in the lab that of the host of `virtual_clock`, or of this process."""
    kernel_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    virtual_clock = virtual_clock or _virtual_clock_of_process()
    return kernel_ns if virtual_clock is None else virtual_clock.raw_from_kernel(kernel_ns)


def time_namespace() -> int:
    """The time namespace of this process, as an inode; 0 where the kernel has none, or /proc is not mounted."""
    try:
        return Path("/proc/self/ns/time").stat().st_ino
    except OSError:
        return 0


class TimeNamespaceError(LayoutError):
    """The page is of another time namespace, in which CLOCK_MONOTONIC_RAW is another clock."""


class ClockPageReader:
    """Reads the clock page that a sidecar writes: `ClockPageReader(clock_page_path()).now()` is fleet time."""

    def __init__(self, path: Path, virtual_clock: VirtualClock | None = None) -> None:
        """virtual_clock : of a lab host, where this process is outside of it.

        Raises FileNotFoundError before the first sidecar has started, LayoutError for another layout,
        TimeNamespaceError where the sidecar is in another time namespace.
        """
        self._virtual_clock = virtual_clock or _virtual_clock_of_process()
        self._file = MappedFile(path, MAGIC, VERSION, FILE_SIZE)
        self._time_namespace = time_namespace()
        self._vmclock = open_vmclock()
        self._copied, self._copy, self._decided_ns = b"", _NO_PAGE, _NEVER_NS
        self._plain: _Plain = self._plain_of(_NO_PAGE)
        if not self._same_namespace(self.read()):
            self._file.close()
            raise TimeNamespaceError(
                f"{path}: the sidecar is in another time namespace than this process, whose CLOCK_MONOTONIC_RAW is "
                "another clock; run both in the same one"
            )

    def _same_namespace(self, page: ClockPage) -> bool:
        return _same_clock(page.time_namespace, self._time_namespace)

    def stale(self) -> bool:
        """True when a new sidecar has put a new page in place; open it again."""
        return self._file.stale()

    def close(self) -> None:
        """Unmaps the page."""
        self._file.close()

    def now(self) -> FleetTime:
        """Fleet time now. Check its status first: UNKNOWN means that there is none."""
        raw_ns = self._follow()
        from_ns, to_ns, rate_ppt, ref_ns, bound_ns, drift_ppb, until_ns, status, likely_ns, slept_ns = (
            self._plain
        )
        if (
            from_ns <= raw_ns <= until_ns
            and ref_ns <= raw_ns <= self._watched_until_ns()
            and suspended_ns() <= slept_ns
            and not self._vmclock
        ):
            # As `at`, for a quarter of its cost: this is called in loops.
            elapsed = raw_ns - from_ns
            scaled = elapsed * rate_ppt
            gained_ns = scaled // 1_000_000_000_000 if scaled >= 0 else -(-scaled // 1_000_000_000_000)
            bound_ns += (raw_ns - ref_ns) * drift_ppb // 1_000_000_000
            return _fleet_time(FleetTime, (to_ns + elapsed + gained_ns, bound_ns, status, likely_ns))
        shown = self._as_seen(self._copy).at(raw_ns)
        # Timestamp in the future: the page is from a previous boot.
        invalid = raw_ns < ref_ns or status == ClockStatus.UNKNOWN
        return shown._replace(status=ClockStatus.UNKNOWN, estimated_error_ns=0) if invalid else shown

    def _follow(self) -> int:
        """Makes `_copy` the page in force, and returns what the raw clock showed while it was.

        A reader preempted between the copy and the clock would follow a line that has been replaced, and then see
        time run backward. Without a page, see clock_page.h, the copy is UNKNOWN.
        """
        memory, virtual_clock = self._file.map, self._virtual_clock
        raw_ns = 0
        for _ in range(_COPY_TRIES):
            sequence = memory[SEQUENCE_OFFSET:_SEQUENCE_END]
            fence()
            # Between two updates, which are some a second, the last copy is the page.
            if sequence != self._copied and not self._copy_page(sequence):
                continue
            raw_ns = raw_now_ns(virtual_clock)
            fence()
            if memory[SEQUENCE_OFFSET:_SEQUENCE_END] == sequence and raw_ns < self._decided_ns:
                return raw_ns
            time.sleep(0)
        self._copied, self._copy = b"", self._copy._replace(status=ClockStatus.UNKNOWN)
        self._plain = self._plain_of(self._copy)
        return raw_ns

    def _copy_page(self, sequence: bytes) -> bool:
        """Copies the page that is in force. False when it was replaced meanwhile."""
        memory = self._file.map
        in_force = sequence[0] >> 1 & 1
        data = memory[_PLACES[in_force]]
        (next_from_ns,) = _FROM_NS.unpack_from(memory, _PLACES[1 - in_force].start + _FROM_OFFSET)
        fence()
        if memory[SEQUENCE_OFFSET:_SEQUENCE_END] != sequence:
            return False
        self._copied, self._copy = sequence, _unpacked(data)
        self._decided_ns = next_from_ns if sequence[0] & 1 else _NEVER_NS
        self._plain = self._plain_of(self._copy)
        return True

    def _plain_of(self, page: ClockPage) -> _Plain:
        line = page.current
        status = page.status if self._same_namespace(page) else ClockStatus.UNKNOWN
        until_ns = page.valid_until_raw_ns
        if status == ClockStatus.SYNCHRONIZED:
            until_ns = min(until_ns, page.synchronized_until_raw_ns)
        likely_ns = page.likely_ns if status == ClockStatus.SYNCHRONIZED else 0
        return (
            *(line.from_ns, line.to_ns, line.rate_ppt),
            *(page.bound_ref_raw_ns, page.bound_ns, page.drift_ppb),
            *(until_ns, status, likely_ns),
            page.suspended_ns + SUSPEND_NS if page.suspended_ns >= 0 else _NEVER_NS,
        )

    def _watched_until_ns(self) -> int:
        (until_ns,) = _WATCHED_NS.unpack_from(self._file.map, WATCHED_OFFSET)
        return until_ns or _NEVER_NS

    def _as_seen(self, page: ClockPage) -> ClockPage:
        """The page with what its writer cannot have entered: that it is gone, that the machine was paused."""
        until_ns = min(page.synchronized_until_raw_ns, self._watched_until_ns())
        page = page._replace(synchronized_until_raw_ns=until_ns)
        return page.disrupted() if page.paused(suspended_ns(), marker_of(self._vmclock)) else page

    def convert(self, host_ns: int) -> FleetTime:
        """A stamp of the host clock that was taken before this call, on fleet time.

        The host clock is compared with the page first: after a step that the sidecar has not seen the status is
        DISRUPTED.
        """
        virtual_clock = self._virtual_clock
        page = self.read()
        before = after = host = 0
        for number in range(_TRIES):
            reading = raw_now_ns(virtual_clock), host_now_ns(virtual_clock), raw_now_ns(virtual_clock)
            if not number or reading[2] - reading[0] < after - before:
                before, host, after = reading
        shown = page.checked(before, host, after).convert(host_ns)
        invalid = after < page.bound_ref_raw_ns or not self._same_namespace(page)
        return shown._replace(status=ClockStatus.UNKNOWN, estimated_error_ns=0) if invalid else shown

    def read(self) -> ClockPage:
        """The page that is in force; UNKNOWN while its writer is stopped where no page is."""
        self._follow()
        return self._as_seen(self._copy)


class ClockPageWriter:
    """Writes the clock page; one per host."""

    def __init__(self, path: Path) -> None:
        """Goes on with the page that a writer before us left, so that its readers need not open another.

        In place of anything else comes a new page, which says "unknown". Raises OSError.
        """
        self._path = path
        self._map = reopen_mapping(path, FILE_SIZE, _HEAD) or create_mapping(path, FILE_SIZE, initial=_HEAD)
        self._identity = file_identity(path)
        self._time_namespace = time_namespace()
        self._sequence = int.from_bytes(self._map[SEQUENCE_OFFSET:_SEQUENCE_END], "little")
        if self._sequence & 1:
            # The writer before us died while it decided. Readers have followed the page in force, or have found
            # that there is none; where its successor's line has begun is not ours to say.
            self._set_sequence(self._sequence + 3)

    @property
    def in_force(self) -> ClockPage:
        """The page that readers have; UNKNOWN where its raw clock is another than ours, or the machine was paused since
        it was set.
        """
        page = _unpacked(self._map[_PLACES[self._sequence >> 1 & 1]])
        paused = page.paused(suspended_ns(), marker_of(open_vmclock()))
        if not paused and _same_clock(page.time_namespace, self._time_namespace):
            return page
        return page._replace(status=ClockStatus.UNKNOWN)

    @property
    def watched_until_ns(self) -> memoryview:
        """The word that says how long the page may be taken as synchronized: CLOCK_MONOTONIC_RAW, 0 = for ever."""
        return memoryview(self._map)[WATCHED_OFFSET:PAGES_OFFSET].cast("q")

    def removed(self) -> bool:
        """True when the path no longer names our page: it was removed, and new readers find none."""
        return file_identity(self._path) != self._identity

    def write(self, page: ClockPage, begins_ns: int | None = None) -> bool:
        """Publishes `page`; readers see the old one or the new one, never a mixture.

        begins_ns : of its line, where that must not have begun. False, and readers keep the old page, where
        CLOCK_MONOTONIC_RAW is past it: they may have followed the old line beyond it, and would see time run backward.
        """
        body = PAGE.pack(
            page.status,
            page.estimated_error_ns,
            *_line_fields(page.current),
            *_line_fields(page.previous),
            page.bound_ref_raw_ns,
            page.bound_ns,
            page.drift_ppb,
            page.valid_until_raw_ns,
            *_line_fields(page.host),
            *_line_fields(page.host_previous),
            page.host_since_ns,
            page.host_bound_ns,
            page.disruptions,
            self._time_namespace,
            *(page.synchronized_until_raw_ns, page.suspended_ns, page.vmclock_marker),
        )
        # No reader uses this one: a copy begun while it was in force ends with another sequence.
        self._map[_PLACES[~self._sequence >> 1 & 1]] = body
        if begins_ns is not None:
            self._set_sequence(self._sequence + 1)
            # From here on readers wait, so the clock does not pass the begin of the line before they see it.
            if raw_now_ns() >= begins_ns:
                # Not the sequence before, with which a reader that has slept long would take this page's begin for
                # that of the next.
                self._set_sequence(self._sequence + 3)
                return False
        self._set_sequence((self._sequence | 1) + 1)
        return True

    def _set_sequence(self, value: int) -> None:
        self._sequence = value & 0xFFFFFFFF
        fence()
        self._map[SEQUENCE_OFFSET:_SEQUENCE_END] = self._sequence.to_bytes(4, "little")
        fence()


def _unpacked(data: bytes) -> ClockPage:
    f = PAGE.unpack(data)
    return ClockPage(
        ClockStatus(f[0]),
        *(ClockLine(*f[2:5]), ClockLine(*f[5:8])),
        *(f[8], f[9], f[10], f[11]),
        *(ClockLine(*f[12:15]), ClockLine(*f[15:18])),
        *(f[18], f[19], f[20], f[21]),
        f[1],
        *(f[22], f[23], f[24]),
    )


def _same_clock(writer: int, reader: int) -> bool:
    """Whether two time namespaces have the same CLOCK_MONOTONIC_RAW, as far as is known."""
    return 0 in (writer, reader) or writer == reader


def _line_fields(line: ClockLine) -> tuple[int, int, int]:
    return line.from_ns, line.to_ns, line.rate_ppt
