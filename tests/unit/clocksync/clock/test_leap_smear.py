"""UTC with a leap second spread over a day, by a clock that shows it as kernels do."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.clocksync.clock.test_reading import page  # noqa: F401 - a fixture

from fabricpulse.clocksync.command import command
from fabricpulse.clocksync.leap_smear import LeapSeconds, parse, smeared
from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.clock_page import ClockPageWriter, ClockStatus, FleetTime

S = 10**9
_DAY_S = 86_400
# The midnight after a leap second.
_OVER_S = 1_483_228_800
_LIST = (
    "#@ 4000000000\n2272060800 10 # 1 Jan 1972\n2287785600 11 # 1 Jul 1972\n3692217600 {tai} # 1 Jan 2017\n"
)


def _leap(longer_s: int) -> LeapSeconds:
    return parse(_LIST.format(tai=11 + longer_s))


def _true_smear_ns(elapsed_ns: int, longer_s: int) -> int:
    """elapsed_ns : since the noon before."""
    begin_ns, length_ns = (_OVER_S - _DAY_S // 2) * S, (_DAY_S + longer_s) * S
    if elapsed_ns < 0:
        return begin_ns + elapsed_ns
    if elapsed_ns >= length_ns:
        return begin_ns + elapsed_ns - longer_s * S
    return begin_ns + elapsed_ns * _DAY_S // (_DAY_S + longer_s)


def _utc_ns(elapsed_ns: int, longer_s: int) -> int:
    """As kernels show it: an inserted second repeats the one before it."""
    begin_ns, half_ns = (_OVER_S - _DAY_S // 2) * S, _DAY_S // 2 * S
    return begin_ns + elapsed_ns - (longer_s * S if elapsed_ns >= half_ns + min(longer_s, 0) * S else 0)


@pytest.mark.parametrize("longer_s", [1, -1])
@pytest.mark.parametrize("bound_ns", [0, 1_000, 300_000_000])
def test_the_truth_lies_within_the_bound(longer_s: int, bound_ns: int) -> None:
    """Before, amid and after an inserted and a deleted second; far from it the bound is as wide as before."""
    leap = _leap(longer_s)
    half_ns = _DAY_S // 2 * S
    for off_ns in (0, bound_ns, -bound_ns):
        for far in range(200):
            # Half a minute around midnight; and the whole day, beginning before noon.
            for elapsed_ns in (half_ns + (far - 100) * 300_000_000, (far - 10) * 500 * S):
                truth_ns = _true_smear_ns(elapsed_ns, longer_s)
                fleet_ns = _utc_ns(elapsed_ns, longer_s) + off_ns
                shown = smeared(FleetTime(fleet_ns, bound_ns, ClockStatus.SYNCHRONIZED, 0), leap)
                assert shown.earliest_ns <= truth_ns <= shown.latest_ns, (elapsed_ns - half_ns, off_ns)
                if abs(elapsed_ns - half_ns) > 15 * S:
                    assert shown.bound_ns <= bound_ns + bound_ns // 10_000 + 2


@pytest.mark.parametrize("longer_s", [1, -1])
def test_a_clock_that_takes_it_up_late_is_within_the_bound(longer_s: int) -> None:
    """Fleet time goes on over the leap second, until the anchors and a round have said so."""
    for late_ns in range(0, 10 * S, 100_000_000):
        elapsed_ns = _DAY_S // 2 * S + late_ns
        fleet_ns = (_OVER_S - _DAY_S // 2) * S + elapsed_ns
        shown = smeared(FleetTime(fleet_ns, 0, ClockStatus.SYNCHRONIZED, 0), _leap(longer_s))
        assert shown.earliest_ns <= _true_smear_ns(elapsed_ns, longer_s) <= shown.latest_ns


def test_lists_that_say_nothing_are_refused() -> None:
    """Expired, without an end, without leap seconds, or another file."""
    with pytest.raises(UserError, match="has expired"):
        smeared(
            FleetTime(1_800_000_000 * S, 0, ClockStatus.SYNCHRONIZED, 0),
            parse("#@ 3992000000\n2272060800 10"),
        )
    for text in (
        "",
        "2272060800 10\n",
        "#@ 3992000000\n",
        "#@ 1\n1 2 3\n",
        "Leap 2016 Dec 31 23:59:60 + S\n",
    ):
        with pytest.raises(ValueError, match=r"."):
            parse(text)


def test_the_commands_smear(page: ClockPageWriter, tmp_path: Path) -> None:  # noqa: F811 - the fixture
    """Today is not within twelve hours of a leap second of this list, and before its end."""
    path = tmp_path / "leap-seconds.list"
    path.write_text("#@ 9000000000\n2272060800 10\n")
    arguments = ["now", "--output=json", "--leap-smear", str(path)]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert json.loads(done.output)["bound_ns"] == 2_000
    path.write_text("nothing\n")
    assert CliRunner().invoke(command, ["convert", "1", "--leap-smear", str(path)]).exit_code != 0
