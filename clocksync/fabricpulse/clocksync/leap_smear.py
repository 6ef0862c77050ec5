"""UTC without a leap second: from noon to noon UTC around it, clocks run slower or faster by 11.6 ppm, evenly.

What public time servers that smear do, too (RFC 8633, section 3.7). A conversion of what has been read, so that nothing
of fleet time depends on it: fleet time follows its anchors, and is on UTC again 33 minutes after their clocks were
stepped. Until then its bound is so wide, and that of what comes out here; earliest and latest are converted, each as
early, or late, as it can be. Pure.
"""

from dataclasses import dataclass

from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.clock_page import FleetTime

_NS = 1_000_000_000
_DAY_NS = 86_400 * _NS
# Seconds of leap-seconds.list are since 1900.
_NTP_S = 2_208_988_800
_MOST_DIGITS = 20
# So long after a leap second fleet time may not have taken it up: a page ends then.
_TAKEN_UP_NS = 10 * _NS


@dataclass(frozen=True)
class LeapSeconds:
    """leaps : when each is over (a midnight, ns since 1970), and by how many ns UTC's day is longer. expires_ns :
    later ones are not known.
    """

    leaps: tuple[tuple[int, int], ...]
    expires_ns: int


def parse(text: str) -> LeapSeconds:
    """A leap-seconds.list, as IERS publishes it. Raises ValueError for anything else."""
    leaps, tai_s, expires_s = [], None, None
    for line in text.splitlines():
        if line.startswith("#@"):
            expires_s = int(line[2:])
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() and len(word) < _MOST_DIGITS for word in words):
            raise ValueError("a line of it is not two numbers")
        at_s, then_s = map(int, words)
        if tai_s is not None:
            leaps.append(((at_s - _NTP_S) * _NS, (then_s - tai_s) * _NS))
        tai_s = then_s
    if expires_s is None or tai_s is None:
        raise ValueError(
            "no leap-seconds.list: it has no line #@ that says when it expires, or no leap seconds"
        )
    return LeapSeconds(tuple(leaps), (expires_s - _NTP_S) * _NS)


def smeared(shown: FleetTime, leap_seconds: LeapSeconds) -> FleetTime:
    """Fleet time of a fleet whose anchors step at a leap second, as smeared UTC. Raises UserError where the list has
    expired by then.
    """
    if shown.latest_ns + _DAY_NS > leap_seconds.expires_ns:
        raise UserError("the list of leap seconds has expired; a newer one comes with the package tzdata")
    earliest_ns, _ = _between(shown.earliest_ns, leap_seconds)
    _, latest_ns = _between(shown.latest_ns, leap_seconds)
    fleet_ns = (earliest_ns + latest_ns) // 2
    return shown._replace(fleet_ns=fleet_ns, bound_ns=latest_ns - fleet_ns)


def _between(utc_ns: int, leap_seconds: LeapSeconds) -> tuple[int, int]:
    """The first and the last that smeared UTC can be. During an inserted second, and until fleet time has taken one up,
    it is not known whether `utc_ns` counts it.
    """
    for over_ns, longer_ns in leap_seconds.leaps:
        half_ns = _DAY_NS // 2
        begin_ns, length_ns = over_ns - half_ns, _DAY_NS + longer_ns
        since_ns = utc_ns - begin_ns
        if not 0 <= since_ns < _DAY_NS:
            continue
        # Elapsed since noon, by a clock that has not taken the leap second, and by one that has, which then shows what
        # an inserted second repeats, or no earlier than after a deleted one.
        without_ns = with_ns = min(since_ns, half_ns + _TAKEN_UP_NS)
        if utc_ns >= over_ns - abs(longer_ns):
            with_ns = max(since_ns, half_ns - max(longer_ns, 0)) + longer_ns
        first_ns = min(without_ns, with_ns) if utc_ns < over_ns + _TAKEN_UP_NS else with_ns
        last_ns = max(without_ns, with_ns)
        return begin_ns + first_ns * _DAY_NS // length_ns, begin_ns - -last_ns * _DAY_NS // length_ns
    return utc_ns, utc_ns
