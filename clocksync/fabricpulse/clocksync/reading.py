"""What `fabricpulse clocksync now`, `convert` and `wait` do: fleet time for shells. Clocks are passed in."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.clock_page import ClockStatus, FleetTime

_NS = 1_000_000_000
# As long as a page counts.
_CONVERTED_NS = 10 * _NS
# Stamps below are taken for seconds: as ns they would be of 1970.
_SECONDS_BELOW = 10**12


def usable(shown: FleetTime, what: str = "fleet time") -> FleetTime:
    """`shown`, if its bound holds. Raises UserError where it is unknown or disrupted."""
    if shown.status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        raise UserError(
            f"{what} is {shown.status.name.lower()} on this host; fabricpulse clocksync status says why"
        )
    return shown


def converted(shown: FleetTime, now: FleetTime, what: str) -> FleetTime:
    """`shown`, fleet time of a stamp of the host's clock, if that can be known `now`: the page says how the clock runs,
    not whether somebody set or steered it long before. Raises UserError.
    """
    if abs(usable(shown, what).fleet_ns - now.fleet_ns) > _CONVERTED_NS:
        raise UserError(
            f"{what} is not known: the stamp is not of the last {_CONVERTED_NS // _NS} s, and this host's clock may "
            "have been set or steered since"
        )
    return shown


def document(shown: FleetTime) -> dict[str, Any]:
    """For --output json: ns since 1970."""
    return {
        "fleet_ns": shown.fleet_ns,
        "earliest_ns": shown.earliest_ns,
        "latest_ns": shown.latest_ns,
        "bound_ns": shown.bound_ns,
        "estimated_error_ns": shown.estimated_error_ns or None,
        "status": shown.status.name.lower(),
    }


def line(shown: FleetTime) -> str:
    """For people: seconds since 1970, the bound, the status."""
    seconds, ns = divmod(shown.fleet_ns, _NS)
    return f"{seconds}.{ns:09d} +-{shown.bound_ns} ns {shown.status.name.lower()}"


def stamp_ns(text: str) -> int:
    """A stamp of CLOCK_REALTIME, exact: whole ns, or seconds as `date +%s.%N` prints them. Raises UserError."""
    try:
        value = Decimal(text)
        if not value.is_finite() or abs(value) >= 2**63:
            raise InvalidOperation
    except InvalidOperation:
        raise UserError(
            f"{text!r} is no stamp: give ns since 1970, or seconds as date +%s.%N prints them"
        ) from None
    return int(value * _NS) if abs(value) < _SECONDS_BELOW else int(value)


def wait_past(moment_ns: int, now: Callable[[], FleetTime], sleep: Callable[[float], None]) -> FleetTime:
    """Waits until fleet time is past `moment_ns` on every host that is within its bound; returns it then.

    With the latest that the time of an event can have been, this is the commit-wait of Spanner (Corbett et al., OSDI
    2012): an event after it, on any host, has a later stamp. Raises UserError as `usable`.
    """
    while (shown := usable(now())).earliest_ns <= moment_ns:
        # Fleet time is slewed by 500 ppm at most: the next reading is not late by more than that.
        sleep(max((moment_ns - shown.earliest_ns) / _NS, 1e-6))
    return shown
