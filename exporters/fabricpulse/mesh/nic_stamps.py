"""Whose stamps are used of a NIC, the kernel's or its own, and why."""

import os

from fabricpulse.core.log import get_logger
from fabricpulse.mesh.snapshot import NicState

log = get_logger(__name__)

_LOST = 3


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
    """Says each time that the stamps of a NIC are taken by somebody else than before."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[bool, int, bool]] = {}

    def check(self, states: dict[str, NicState]) -> None:
        """states : by device."""
        for device, state in states.items():
            good = bool(state.phc_good)
            # One that is only being learned has not been lost so often.
            now = good, state.phc_errno, not good and state.phc_lost > _LOST
            if now == self._last.get(device, (False, 0, False)):
                continue
            if state.phc_good:
                log.info("the NIC's own time stamps are used", device=device, clock=f"/dev/ptp{state.phc}")
            elif state.phc_errno:
                log.warning(
                    "the NIC's own time stamps cannot be had: the kernel's are used",
                    device=device,
                    error=os.strerror(state.phc_errno),
                )
            elif state.phc_lost > 0:
                log.warning(
                    "the NIC's clock was stepped or does not run like one: the kernel's time stamps are used",
                    device=device,
                    clock=f"/dev/ptp{state.phc}" if state.phc >= 0 else None,
                    lost=state.phc_lost,
                )
            self._last[device] = now
