"""How a host finds that its machine was paused."""

import struct
from pathlib import Path

import pytest

from fabricpulse.clocksync.sidecar.pause import PauseWatch, majority_stepped, pause_watch
from fabricpulse.core.pauses import VmClock

S = 10**9


def vmclock(path: Path, marker: int, magic: int = 0x4B4C4356, version: int = 1) -> None:
    """A page as the hypervisor offers it (struct vmclock_abi)."""
    head = struct.pack("<IIHBBIQ", magic, 104, version, 0, 0, 0, marker)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(head.ljust(4096, b"\0"))


@pytest.mark.parametrize(
    ("step_peers", "fitted_peers", "jumped"),
    [(0, 0, False), (0, 9, False), (1, 1, False), (1, 9, False), (2, 4, False), (2, 3, True), (9, 9, True)],
)
def test_most_peers_show_whose_clocks_jumped(step_peers: int, fitted_peers: int, jumped: bool) -> None:
    """One peer alone, or a half of them, may have jumped themselves."""
    assert majority_stepped(step_peers, fitted_peers) == jumped


def test_a_marker_that_changes_is_reported_once(tmp_path: Path) -> None:
    """A migration: the hypervisor changes the marker in the page that is mapped."""
    path = tmp_path / "vmclock0"
    vmclock(path, 7)
    watch = PauseWatch(VmClock(path), lambda: 0)
    assert watch.poll() == ""
    vmclock(path, 8)
    assert [watch.poll(), watch.poll()] == ["vmclock", ""]


@pytest.mark.parametrize("wrong", [{"magic": 1}, {"version": 2}])
def test_what_is_no_vmclock_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    """Another magic, or a version of which nothing is known."""
    vmclock(tmp_path / "vmclock0", 7, **wrong)
    with pytest.raises(ValueError, match="no VMClock of version 1"):
        VmClock(tmp_path / "vmclock0")


def test_a_suspend_is_reported_once_and_a_slow_reading_is_none() -> None:
    """CLOCK_BOOTTIME goes on while the machine sleeps, the raw clock does not."""
    readings = iter([100, 3_000_000, 150, 90, 5 * S, 5 * S - 3_000_000, 9 * S])
    watch = PauseWatch(None, lambda: next(readings))
    assert [watch.poll() for _ in range(6)] == ["", "", "", "suspend", "", "suspend"]


def test_this_machine_says_how_long_it_slept() -> None:
    """Not negative, and hardly another a moment later."""
    watch = pause_watch()
    assert watch.poll() == ""
    assert watch.suspended_ns >= 0
