"""Whose stamps are used of a NIC, the kernel's or its own, and why."""

import os

from fabricpulse.core.log import get_logger
from fabricpulse.mesh.snapshot import NicState

log = get_logger(__name__)

# Checks, some seconds apart, by which a clock that is only being learned is known.
_PATIENCE = 5


def stamps_of(state: NicState) -> dict[str, object]:
    """`by` : "nic" or "kernel". `phc` : N of /dev/ptpN that is asked for, or None. `error` : why it is not there."""
    return {
        "by": "nic" if state.phc_good else "kernel",
        "phc": state.phc if state.phc >= 0 else None,
        "clock_error_bound_ns": state.phc_error_ns if state.phc_good else None,
        "clock_lost": state.phc_lost,
        "error": os.strerror(state.phc_errno) if state.phc_errno else None,
    }


class StampLog:
    """Says each time that the stamps of a NIC are taken by somebody else than before, and once that it has none."""

    def __init__(self, timestamps: str = "software") -> None:
        """timestamps : as set, `probe.timestamps`."""
        self._timestamps = timestamps
        self._without: set[str] = set()
        self._last: dict[str, tuple[bool, int, bool]] = {}
        self._waited: dict[str, int] = {}

    def check(self, states: dict[str, NicState]) -> None:
        """states : by device."""
        for device, state in states.items():
            self._say_none(device, state)
            waiting = state.phc >= 0 and not state.phc_good
            self._waited[device] = waited = self._waited.get(device, 0) + 1 if waiting else 0
            last = self._last.get(device, (False, 0, False))
            late = waited > 0 and (waited > _PATIENCE or last[0] or last[2])
            now = bool(state.phc_good), state.phc_errno, late
            if now == last:
                continue
            if state.phc_good:
                log.info("the NIC's own time stamps are used", device=device, clock=f"/dev/ptp{state.phc}")
            elif state.phc_errno:
                log.warning(
                    "the NIC's own time stamps cannot be had: the kernel's are used",
                    device=device,
                    error=os.strerror(state.phc_errno),
                )
            elif late:
                log.warning(
                    "the NIC's own time stamps do not come, or its clock cannot be followed: the kernel's are used",
                    device=device,
                    clock=f"/dev/ptp{state.phc}",
                    lost=state.phc_lost,
                )
            self._last[device] = now

    def _say_none(self, device: str, state: NicState) -> None:
        if self._timestamps == "software" or state.phc >= 0 or state.phc_errno or device in self._without:
            return
        self._without.add(device)
        if self._timestamps == "auto":
            why = "it cannot, or nobody (ptp4l, hwstamp_ctl) has set it up to; probe.timestamps: hardware does so"
        else:
            why = "it cannot (ethtool -T)"
        log.info("the NIC stamps no packets itself: the kernel's stamps are used", device=device, reason=why)
