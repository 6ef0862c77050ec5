"""The clock of a NIC or of the hypervisor (PHC, /dev/ptpN) as UTC."""

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.sidecar.config import AnchorConfig
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.clocksync.sidecar.kernel_clock import tai_minus_utc_s
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

_S = 10**9
# <linux/ptp_clock.h>: PTP_SYS_OFFSET_PRECISE, PTP_SYS_OFFSET_EXTENDED and PTP_SYS_OFFSET; struct ptp_clock_time is 16
# bytes.
_PRECISE, _PRECISE_SIZE = 0xC0403D08, 64
_EXTENDED, _EXTENDED_SIZE = 0xC4C03D09, 16 + 25 * 3 * 16
_BASIC, _BASIC_SIZE = 0x43403D05, 16 + (2 * 25 + 1) * 16
_TIME = struct.Struct("=qII")
_SAMPLES = 5
# Of what hardware latches at one moment.
_RESOLUTION_NS = 8
# Hardware can slow or speed a PHC by this part of time, and oscillators differ by less.
_RATE = 500
# Closer to TAI - UTC than this a setting that differs from it is of another year; GPS time is 19 s away.
_LEAP_SECONDS = 10
# Readings that must go on like a clock before it is an anchor: at first, after a step, after many steps at most.
_AT_FIRST, _AFTER_STEP, _MOST_AFTER_STEPS = 1, 16, 4_096
# After so many a step is the first one again.
_LONG_GOOD = 1_024
_YEAR_2020_S = 1_577_836_800
_STEPPED = "it was stepped, or does not run like a clock"
# What drivers write who know no bound.
_NO_BOUND = 2**32 - 1


@dataclass(frozen=True)
class PhcReading:
    """When the kernel's CLOCK_REALTIME was in [low_ns, high_ns] the PHC showed phc_ns."""

    phc_ns: int
    low_ns: int
    high_ns: int


@dataclass(frozen=True)
class PhcUtc:
    """UTC minus the raw clock by a PHC, and how far that may be off, ns. raw_ns : when."""

    raw_ns: int
    ahead_ns: int
    error_ns: int


class PhcRefusedError(Exception):
    """Why a PHC is no anchor now."""


def read_phc(device: str) -> PhcReading:
    """One reading, as exact as the driver can. Raises OSError.

    Whatever is wrong with a better way the next is tried: that of KVM says ENODEV for the best one where the guest's
    clock is not the host's, and it and that of Hyper-V have but the plainest.
    """
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for way in (_read_precise, _read_extended):
            with suppress(OSError):
                return way(fd)
        return _read_basic(fd)
    finally:
        os.close(fd)


def _read_precise(fd: int) -> PhcReading:
    both = bytearray(_PRECISE_SIZE)
    fcntl.ioctl(fd, _PRECISE, both)
    real_ns = _time(both, 1)
    return PhcReading(_time(both, 0), real_ns - _RESOLUTION_NS, real_ns + _RESOLUTION_NS)


def _read_extended(fd: int) -> PhcReading:
    """By the host's clock right before and after each reading of the device's register."""
    return _narrowest(fd, _EXTENDED, _EXTENDED_SIZE, 3)


def _read_basic(fd: int) -> PhcReading:
    """By the host's clock before and after each call of the driver, which is that after the one before."""
    return _narrowest(fd, _BASIC, _BASIC_SIZE, 2)


def _narrowest(fd: int, request: int, size: int, stride: int) -> PhcReading:
    """stride : times from one sample to the next."""
    samples = bytearray(size)
    samples[:4] = _SAMPLES.to_bytes(4, "little")
    fcntl.ioctl(fd, request, samples)
    # After 16 bytes of header, which are as long as one time.
    found = [[_time(samples, 1 + stride * sample + k) for k in range(3)] for sample in range(_SAMPLES)]
    low_ns, phc_ns, high_ns = min(found, key=lambda one: one[2] - one[0])
    return PhcReading(phc_ns, low_ns, high_ns)


def utc_by_phc(
    config: AnchorConfig, reading: PhcReading, before: CrossTimestamp, after: CrossTimestamp, error_ns: int
) -> PhcUtc:
    """before, after : the host's clocks around the reading, which is of that host clock. error_ns : of the PHC.

    Pure. Raises PhcRefusedError.
    """
    utc_ns = reading.phc_ns - (config.phc_minus_utc_s or 0) * _S
    if utc_ns < _YEAR_2020_S * _S:
        raise PhcRefusedError("it has not been set")
    # Host clock minus raw clock: what a daemon does to the host clock meanwhile shows in the second.
    first, second = before.host_ns - before.raw_ns, after.host_ns - after.raw_ns
    width_ns = reading.high_ns - reading.low_ns
    steered_ns = abs(second - first)
    if reading.low_ns < before.host_ns or reading.high_ns > after.host_ns or steered_ns > _S // 1000:
        raise PhcRefusedError("the host's clock was stepped while it was read")
    host_ns = reading.low_ns + width_ns // 2
    return PhcUtc(
        host_ns - (first + second) // 2,
        utc_ns - host_ns + (first + second) // 2,
        error_ns + (width_ns + 1) // 2 + steered_ns + max(before.error_ns, after.error_ns),
    )


def check_leap_seconds(phc_minus_utc_s: int, kernel_tai_s: int) -> None:
    """kernel_tai_s : TAI minus UTC by the kernel, 0 = it does not know. Raises PhcRefusedError where a leap second lies
    between that and the setting: a second wrong, within a bound of some ns.
    """
    if kernel_tai_s != 0 and 0 < abs(phc_minus_utc_s - kernel_tai_s) < _LEAP_SECONDS:
        raise PhcRefusedError(
            f"phc_minus_utc_s is {phc_minus_utc_s}, but by the kernel TAI is {kernel_tai_s} s ahead of UTC"
        )


def check_rate(last: PhcUtc, now: PhcUtc) -> None:
    """Raises PhcRefusedError where the PHC has not gone on like a clock since the reading before."""
    gone_ns = now.raw_ns - last.raw_ns
    if abs(now.ahead_ns - last.ahead_ns) > gone_ns // _RATE + last.error_ns + now.error_ns:
        raise PhcRefusedError(_STEPPED)


class PhcAnchor:
    """The PHC of the configuration, read once a round. read : of a device, raises OSError.

    A step says nothing of which of the two times is right. After one it is no anchor for some rounds, and four times as
    many after each further one: enough for a person, or a daemon that steps it back, and for ever where it is stepped
    again and again.
    """

    def __init__(
        self,
        clock: HostClock,
        read: Callable[[str], PhcReading] = read_phc,
        kernel_tai_s: Callable[[], int] = tai_minus_utc_s,
    ) -> None:
        self._clock = clock
        self._read = read
        self._kernel_tai_s = kernel_tai_s
        self._of: tuple[str, int | None] | None = None  # which clock by the settings
        self._last: PhcUtc | None = None
        # Readings that went on like a clock since the last that did not; so many make it an anchor.
        self._agreed, self._needed = 0, _AT_FIRST
        self._said: str | None = None  # why it is no anchor, "" = it is one

    @property
    def refused(self) -> str:
        """Why it is no anchor; "" while it is, or nothing is known."""
        return self._said or ""

    def read(self, config: AnchorConfig, epoch_ns: int) -> tuple[int, int] | None:
        """UTC minus stamp clock, and how far that may be wrong; None while it is no anchor. A change is logged.

        config : of kind "phc". epoch_ns : stamp clock minus raw clock.
        """
        try:
            now, reason = self._now(config), ""
            if now is None:
                return None
        except PhcRefusedError as error:
            now, reason = None, str(error)
        except (OSError, ValueError) as error:
            # What comes then may be another time: the last one is kept for that, but two must go on from each other.
            self._agreed, now = min(self._agreed, self._needed - 2), None
            reason = getattr(error, "strerror", None) or str(error)
        if reason != self._said:
            self._said = reason
            if now is None:
                log.warning("no anchor: the clock of the NIC cannot be used", phc=config.phc, reason=reason)
            else:
                log.info(
                    "the clock of a NIC is an anchor of fleet time",
                    phc=config.phc,
                    error_bound_ns=now.error_ns,
                )
        return None if now is None else (now.ahead_ns - epoch_ns, now.error_ns)

    def _now(self, config: AnchorConfig) -> PhcUtc | None:
        check_leap_seconds(config.phc_minus_utc_s or 0, self._kernel_tai_s())
        error_ns = config.uncertainty_ns
        if config.phc_error_file:
            bound_ns = int(Path(config.phc_error_file).read_text(encoding="ascii"))
            if not 0 <= bound_ns < _NO_BOUND:
                raise PhcRefusedError("its driver does not know how far it is off")
            error_ns += bound_ns
        before = self._clock.cross_timestamp()
        reading = self._read(config.phc)
        after = self._clock.cross_timestamp()
        on_host = PhcReading(
            reading.phc_ns, self._clock.from_kernel(reading.low_ns), self._clock.from_kernel(reading.high_ns)
        )
        now = utc_by_phc(config, on_host, before, after, error_ns)
        if self._of != (config.phc, config.phc_minus_utc_s):
            self._of = config.phc, config.phc_minus_utc_s
            self._last, self._agreed, self._needed = None, 0, _AT_FIRST
        last, self._last = self._last, now
        if last is None:
            return None  # one reading does not say how it runs
        try:
            check_rate(last, now)
            self._agreed += 1
        except PhcRefusedError:
            self._restart()
        if self._agreed >= self._needed:
            return now
        if self._needed == _AT_FIRST:
            return None
        raise PhcRefusedError(
            f"{_STEPPED}; it is one again when {self._needed} rounds on end show that it runs like a clock"
        )

    def _restart(self) -> None:
        """One that is stepped again and again is trusted after ever more readings."""
        if self._agreed > max(_LONG_GOOD, 8 * self._needed):
            self._needed = _AFTER_STEP
        else:
            self._needed = min(max(4 * self._needed, _AFTER_STEP), _MOST_AFTER_STEPS)
        self._agreed = 0


def _time(data: bytearray, index: int) -> int:
    seconds, ns, _ = _TIME.unpack_from(data, index * _TIME.size)
    return int(seconds * _S + ns)
