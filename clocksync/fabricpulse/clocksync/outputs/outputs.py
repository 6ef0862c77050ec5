"""Who else on this host gets fleet time: a ClockBound segment, chronyd. The host clock is never steered from here."""

from pathlib import Path

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.outputs.chrony_refclock import ChronySock, NtpShm
from fabricpulse.clocksync.outputs.clockbound import ClockBoundWriter
from fabricpulse.clocksync.outputs.config import OutputsConfig
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.run_dir import clock_page_path
from fabricpulse.core.shm.clock_page import ClockPage

log = get_logger(__name__)


class Outputs:
    """The outputs that are switched on. refclocks : by the name that metrics give them."""

    def __init__(self, config: OutputsConfig) -> None:
        """Raises UserError for one that cannot be had."""
        self.clockbound: ClockBoundWriter | None = None
        self.refclocks: dict[str, ChronySock | NtpShm] = {}
        self._missing: set[str] = set()
        if config.clockbound != "off":
            path = Path(config.clockbound) if config.clockbound else clock_page_path().with_name("clockbound")
            try:
                self.clockbound = ClockBoundWriter(path)
            except OSError as error:
                raise UserError(
                    f"outputs.clockbound: cannot write {path}: {error.strerror}; choose another file, or off"
                ) from error
        if config.chrony_sock:
            self.refclocks["chrony_sock"] = ChronySock(Path(config.chrony_sock))
        if config.ntp_shm_unit >= 0:
            try:
                self.refclocks["ntp_shm"] = NtpShm(config.ntp_shm_unit)
            except OSError as error:
                raise UserError(
                    f"outputs.ntp_shm_unit: cannot use unit {config.ntp_shm_unit}: {error.strerror}; choose another, "
                    "or see who owns it with ipcs -m"
                ) from error

    def publish(self, page: ClockPage, now: CrossTimestamp, holdover_drift_ppb: int) -> None:
        """Restates the ClockBound segment. holdover_drift_ppb : of the fleet clock."""
        if self.clockbound is not None:
            if self.clockbound.removed():
                self._renew_segment(self.clockbound.path)
            self.clockbound.publish(page, now, holdover_drift_ppb)

    def _renew_segment(self, path: Path) -> None:
        """Makes the segment again that was removed; where that cannot be, the next call tries again."""
        try:
            self.clockbound = ClockBoundWriter(path)
        except OSError as error:
            if "clockbound" not in self._missing:
                self._missing.add("clockbound")
                log.error(
                    "ClockBound segment was deleted and cannot be recreated; recreate its directory, writable for this "
                    "user",
                    path=str(path),
                    reason=error.strerror or str(error),
                )
        else:
            self._missing.discard("clockbound")
            log.warning("ClockBound segment was deleted; recreated", path=str(path))

    def feed(self, page: ClockPage, kernel_ns: int, host_ns: int) -> None:
        """Gives reference clocks a sample of the moment when the kernel's CLOCK_REALTIME was `kernel_ns`, and the host
        clock, which differs from it in the lab only, `host_ns`.

        To be called only while synchronised: in holdover chronyd then falls back to its other sources.
        """
        fleet = page.convert(host_ns)
        for name, refclock in self.refclocks.items():
            failed = refclock.failed
            refclock.feed(kernel_ns, fleet.fleet_ns - host_ns, fleet.bound_ns)
            if refclock.failed == failed:
                self._missing.discard(name)
            elif name not in self._missing:
                self._missing.add(name)
                log.warning(
                    "chronyd does not take samples: is it running, with this refclock SOCK?",
                    output=name,
                    path=refclock.path,
                    reason=refclock.reason,
                )
