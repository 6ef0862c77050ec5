"""A ClockBound v2 segment, so that any client of it reads fleet time's bound unchanged.

ClockBound bounds the error of the host's CLOCK_REALTIME. So the bound that goes in is how far CLOCK_REALTIME is from
fleet time plus the bound of fleet time itself, and it grows by the difference of their rates. A host whose clock
follows fleet time (by the chrony outputs) has a small one.

Layout: 80 bytes, native endian, protocol version 2 of ClockBound's docs/PROTOCOL.md. The magic is two native 32-bit
words, as its clients compare them; the byte order that the page prints is the one of a big-endian machine.

Clock disruption support is for a daemon that reads the hypervisor's VMClock (/dev/vmclock0) and repeats its marker: a
client that sees the flag opens that device itself, fails where there is none, and trusts nothing while the two markers
differ. Nothing here reads the device, so the flag stays off. Steps of the clock show in the status.
"""

import struct
import time
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.core._atomic import fence
from fabricpulse.core.files import file_identity
from fabricpulse.core.shm.clock_page import ClockPage, ClockStatus
from fabricpulse.core.shm.mapping import create_mapping, reopen_mapping

MAGIC = (0x414D5A4E, 0x43420200)
VERSION = 2
SEGMENT = struct.Struct("=IIIHH qqqq qQ Ii B7x")
_HEAD = struct.pack("=IIIH", *MAGIC, SEGMENT.size, VERSION)
GENERATION_OFFSET = len(_HEAD)
_BODY = struct.Struct("=qqqq qQ Ii B7x")
_BODY_OFFSET = GENERATION_OFFSET + 2
# Past this age of a segment a client must not use its bound (as clockbound's own daemon has it), ns.
VOID_AFTER_NS = 1000 * 10**9
_NS = 10**9
_NO_DISRUPTION_SUPPORT = 0
# 0 would say that the segment has never been written.
_FIRST_GENERATION = 2
_CLOCK_MONOTONIC_COARSE = 6  # <linux/time.h>; Python has no name for it

# fabricpulse -> ClockBound: unknown, synchronized, free running, disrupted.
STATUS = {
    ClockStatus.UNKNOWN: 0,
    ClockStatus.SYNCHRONIZED: 1,
    ClockStatus.HOLDOVER: 2,
    ClockStatus.DISRUPTED: 3,
}


@dataclass(frozen=True)
class ClockBoundData:
    """What a segment says. Times are CLOCK_MONOTONIC_COARSE, ns. disruption_marker : of the VMClock; 0 = none read."""

    as_of_ns: int
    void_after_ns: int
    bound_ns: int
    disruption_marker: int
    max_drift_ppb: int
    status: int


def from_page(
    page: ClockPage, now: CrossTimestamp, monotonic_ns: int, holdover_drift_ppb: int
) -> ClockBoundData:
    """The segment for `now`, which was CLOCK_MONOTONIC_COARSE `monotonic_ns`."""
    fleet = page.at(now.raw_ns)
    # Unlike the page, the segment is used for 1,000 s after the death of its writer: its bound grows as in holdover
    # from the first.
    # The two rates are of 10^-5 at most, so that their product is nothing.
    apart_ppb = abs(page.host.rate_ppt + page.current.rate_ppt) // 1000 + 1
    drift = page.drift_ppb + holdover_drift_ppb + apart_ppb
    known = page.status != ClockStatus.UNKNOWN
    return ClockBoundData(
        as_of_ns=monotonic_ns,
        void_after_ns=monotonic_ns + VOID_AFTER_NS,
        bound_ns=abs(fleet.fleet_ns - now.host_ns) + fleet.bound_ns if known else 0,
        disruption_marker=0,
        max_drift_ppb=min(drift, _NS - 1),
        status=STATUS[fleet.status],
    )


class ClockBoundWriter:
    """Writes the segment at `path`; one writer a path."""

    def __init__(self, path: Path) -> None:
        """Goes on with the segment that a writer before us left: clients map it once, and never look again at what
        its path names. Raises OSError when the file cannot be made.
        """
        self.path = path
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # A new file is complete before it has its name: a client that opens it reads "unknown".
        first = _HEAD + _FIRST_GENERATION.to_bytes(2, "little") + bytes(_BODY.size)
        self._map = reopen_mapping(path, SEGMENT.size, _HEAD) or create_mapping(
            path, SEGMENT.size, initial=first
        )
        self._identity = file_identity(path)
        generation = self._map[GENERATION_OFFSET : GENERATION_OFFSET + 2]
        self._generation = int.from_bytes(generation, "little")

    def removed(self) -> bool:
        """True when the path no longer names our segment: it was removed, and new clients find none."""
        return file_identity(self.path) != self._identity

    def publish(self, page: ClockPage, now: CrossTimestamp, holdover_drift_ppb: int) -> None:
        """Publishes the state of `page` at `now`. holdover_drift_ppb : what the fleet clock may drift without us."""
        coarse_ns = time.clock_gettime_ns(_CLOCK_MONOTONIC_COARSE)
        self.write(from_page(page, now, coarse_ns, holdover_drift_ppb))

    def write(self, data: ClockBoundData) -> None:
        """A reader sees the old segment or the new one: the generation is odd in between, and never 0.

        Magic, size and version are never touched: a client may open the file at any moment. And nothing is packed into
        the mapping itself, as struct.pack_into fills its target with zeros before it packs.
        """
        body = _BODY.pack(
            *divmod(data.as_of_ns, _NS),
            *divmod(data.void_after_ns, _NS),
            data.bound_ns,
            data.disruption_marker,
            data.max_drift_ppb,
            data.status,
            _NO_DISRUPTION_SUPPORT,
        )
        # It is odd already where the writer before us died in the middle.
        odd = self._generation | 1
        self._map[GENERATION_OFFSET : GENERATION_OFFSET + 2] = odd.to_bytes(2, "little")
        fence()
        self._map[_BODY_OFFSET : _BODY_OFFSET + _BODY.size] = body
        self._generation = _FIRST_GENERATION if odd == 0xFFFF else odd + 1
        fence()
        self._map[GENERATION_OFFSET : GENERATION_OFFSET + 2] = self._generation.to_bytes(2, "little")
