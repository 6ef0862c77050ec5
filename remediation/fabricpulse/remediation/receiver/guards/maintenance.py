"""Maintenance windows: while people work on a host or a rail, its alerts are expected and nothing is decided. Pure."""

from fnmatch import fnmatchcase

from fabricpulse.remediation.receiver.config import DAYS, MaintenanceConfig
from fabricpulse.remediation.receiver.state.model import Target
from fabricpulse.remediation.receiver.times import moment, time_of_day_s

_DAY_S = 86_400.0
# 1970-01-01 was a Thursday.
_FIRST_DAY = DAYS.index("thu")


def in_maintenance(windows: tuple[MaintenanceConfig, ...], target: Target, now: float) -> bool:
    """Whether one of the windows covers the target at `now` (seconds since 1970)."""
    return any(_covers(window, target) and _is_open(window, now) for window in windows)


def _covers(window: MaintenanceConfig, target: Target) -> bool:
    return any(fnmatchcase(target.host, pattern) for pattern in window.hosts) and any(
        fnmatchcase(target.device, pattern) for pattern in window.devices
    )


def _is_open(window: MaintenanceConfig, now: float) -> bool:
    if window.begin:
        return moment(window.begin) <= now < moment(window.end)
    today = now // _DAY_S
    # A window of up to a week may have begun up to seven days ago.
    for day in range(int(today) - 7, int(today) + 1):
        begin = day * _DAY_S + time_of_day_s(window.at)
        if DAYS[(day + _FIRST_DAY) % 7] in window.days and begin <= now < begin + window.for_s:
            return True
    return False
