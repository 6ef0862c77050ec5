"""Whether this host's clock carries UTC, and how well: `adjtimex`, as chronyd, ntpd and phc2sys maintain it."""

from dataclasses import dataclass

from fabricpulse.clocksync.sidecar.config import AnchorConfig
from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.clocksync.sidecar.kernel_clock import read_timex
from fabricpulse.clocksync.sidecar.phc_anchor import PhcAnchor
from fabricpulse.core.log import get_logger
from fabricpulse.core.shm.clock_page import STEP_NS

log = get_logger(__name__)

_TIME_ERROR = 5
# By how much the kernel lets the claimed error of its clock grow; and the worst oscillator.
_CLAIMED_PPB, _OSCILLATOR_PPB = 500_000, 100_000


@dataclass
class FastSlew:
    """What the kernel's claim of its error leaves out: it adds 500 ppm, however fast it goes on with a slew whose
    daemon has died. Pure.
    """

    _maxerror_ns: int = 0
    _read_ns: int = 0
    _more_ns: int = 0

    def take(self, maxerror_ns: int, rate_ppb: int, now_ns: int) -> int:
        """How much more than `maxerror_ns` the clock may be off at `now_ns` after the boot; at first since that.

        rate_ppb : what the kernel changes the oscillator's rate by; that is a slew, but for what the oscillator needs.
        """
        if maxerror_ns < self._maxerror_ns:
            self._more_ns = 0  # the daemon has set it
        else:
            faster_ppb = max(0, abs(rate_ppb) + _OSCILLATOR_PPB - _CLAIMED_PPB)
            self._more_ns += faster_ppb * max(0, now_ns - self._read_ns) // 10**9
        self._maxerror_ns, self._read_ns = maxerror_ns, now_ns
        return self._more_ns


def anchor_bound(config: AnchorConfig, slew: FastSlew, raw_ns: int) -> int | None:
    """How far this host's clock may be from UTC at `raw_ns`, ns, or None when it is no anchor now. config : of kind
    "reference" or "system".

    Raises OSError where this process may not ask the kernel.
    """
    if config.kind == "reference":
        return config.uncertainty_ns
    state, timex = read_timex()
    if state == _TIME_ERROR:
        return None  # the kernel says "not synchronised"
    maxerror_ns = int(timex.maxerror) * 1000
    # Parts per million times 2^16; and us a tick, of which the usual one has 10,000.
    rate_ppb = int(timex.freq) * 1000 // 2**16 + (int(timex.tick) - 10_000) * 100_000
    return max(config.uncertainty_ns, maxerror_ns + slew.take(maxerror_ns, rate_ppb, raw_ns))


class SystemAnchor:
    """This host as an anchor. bound_ns : how far from UTC its clock may be, None while it is no anchor. refused : why
    the clock of a NIC is none, "" = it is one, or is not asked."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock
        self._anchors: bool | None = None
        self._slew = FastSlew()
        self._phc = PhcAnchor(clock)
        self.bound_ns: int | None = None
        self.refused = ""

    def read(self, config: AnchorConfig, epoch_ns: int) -> tuple[int, int] | None:
        """UTC minus stamp clock by this host's clock, and how far that may be wrong; a change is logged.

        epoch_ns : stamp clock minus raw clock.
        """
        self.refused = ""
        if config.kind == "none":
            self._anchors = self.bound_ns = None
            return None
        if config.kind == "phc":
            by_phc = self._phc.read(config, epoch_ns)
            self.refused = self._phc.refused
            self.bound_ns = None if by_phc is None else by_phc[1]
            return by_phc
        bound_ns: int | None = None
        refused = ""
        before = self._clock.cross_timestamp()
        try:
            bound_ns = anchor_bound(config, self._slew, before.raw_ns)
        except OSError as error:
            refused = error.strerror or str(error)
        now = self._clock.cross_timestamp()
        utc_ns = now.host_ns - now.raw_ns - epoch_ns
        anchor = None if bound_ns is None else (utc_ns, bound_ns)
        if abs(now.host_ns - before.host_ns - (now.raw_ns - before.raw_ns)) > STEP_NS:
            anchor = None  # stepped between the two; the next round reads it again
        anchors = anchor is not None
        if config.kind == "system" and anchors != self._anchors:
            if anchor is not None:
                log.info("the host's clock is an anchor of fleet time", error_bound_ns=anchor[1])
            elif refused:
                log.warning(
                    "no anchor: adjtimex, which says how well the host's clock is synchronized, is forbidden; does the "
                    "unit's SystemCallFilter allow adjtimex and clock_adjtime, without ProtectClock?",
                    reason=refused,
                )
            elif bound_ns is not None:
                log.info("no anchor for now: the host's clock was stepped")
            else:
                log.warning(
                    "no anchor: the kernel says that the host's clock is not synchronized; does chronyd run, with a "
                    "source and with rtcsync in its configuration?"
                )
        self._anchors = anchors
        self.bound_ns = None if anchor is None else anchor[1]
        return anchor
