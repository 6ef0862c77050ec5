"""How this host learns that the machine was paused, and its raw clock has lost time that its peers did not lose.

A virtual machine that is paused, migrated or restored from a snapshot goes on with all its clocks behind; a suspended
one with CLOCK_MONOTONIC_RAW behind. Nothing on the host contradicts the other then, so fleet time would be wrong by the
pause while it says synchronized.
"""

from collections.abc import Callable

from fabricpulse.core.pauses import SUSPEND_NS, VmClock, marker_of, open_vmclock, suspended_ns


def majority_stepped(step_peers: int, fitted_peers: int) -> bool:
    """Whether edges show that it is this host's clocks that jumped, and not a peer's.

    More than half of the peers, two at least: with one peer it is unknown whose clocks it were.
    """
    return step_peers >= 2 and 2 * step_peers > fitted_peers


class PauseWatch:
    """Reads what the host itself records of pauses, and up to which of them `poll` has reported: suspended_ns and
    vmclock_marker, as the clock page has them. vmclock : None where the hypervisor offers none.
    """

    def __init__(self, vmclock: VmClock | None, suspended_ns: Callable[[], int]) -> None:
        """suspended_ns : time spent suspended since the boot, at most."""
        self._vmclock, self._read_suspended_ns = vmclock, suspended_ns
        self.vmclock_marker = marker_of(vmclock)
        self.suspended_ns = suspended_ns()

    def poll(self) -> str:
        """ "suspend" or "vmclock" when the machine was paused since the last call, else ""."""
        suspended = self._read_suspended_ns()
        if suspended - self.suspended_ns > SUSPEND_NS:
            self.suspended_ns = suspended
            return "suspend"
        self.suspended_ns = max(suspended, self.suspended_ns)
        if (marker := marker_of(self._vmclock)) != self.vmclock_marker:
            self.vmclock_marker = marker
            return "vmclock"
        return ""


def pause_watch() -> PauseWatch:
    """Of this machine."""
    # Of several readings the one amid which the least was lost to the scheduler; negative by that where it never slept.
    return PauseWatch(open_vmclock(), lambda: max(0, *(suspended_ns() for _ in range(4))))
