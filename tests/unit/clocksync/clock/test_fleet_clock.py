"""Fleet time on one host: continuous, never backward, slew-limited, bounded; whatever corrections and clocks do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClock, FleetClockParameters
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockPageWriter, ClockStatus

PARAMETERS = FleetClockParameters()
S = 10**9
MS = 10**6


def at(t_s: float, *, rate_ppb: float = 20_000.0, offset_ns: int = 5 * S, step_ns: int = 0) -> CrossTimestamp:
    """The host's clocks at true time t: 20 ppm fast, 5 s ahead, stepped by step_ns."""
    raw = round(t_s * S + t_s * rate_ppb)
    return CrossTimestamp(raw + offset_ns + step_ns, raw)


def truth(
    t_s: float, host: CrossTimestamp, bound_ns: int = 2_000, error_ns: int = 0, epoch_ns: int = 5 * S
) -> Correction:
    """The correction of the stamp clock that makes fleet time the true time, off by error_ns."""
    stamp_ns = host.raw_ns + epoch_ns
    return Correction(stamp_ns, round(t_s * S) - stamp_ns + error_ns, -20_000.0, bound_ns)


def synced(until_s: float = 5.0) -> FleetClock:
    """A clock that has had perfect corrections each second."""
    clock = FleetClock.start(PARAMETERS, at(0))
    for t in np.arange(0.25, until_s + 0.01, 0.25):
        clock.tick(at(t))
        if t % 1 == 0:
            clock.correct(at(t), truth(t, at(t)))
    return clock


def test_unknown_until_the_first_correction() -> None:
    """Without a correction there is no fleet time, however long it takes."""
    clock = FleetClock.start(PARAMETERS, at(0))
    assert clock.tick(at(100)).status == ClockStatus.UNKNOWN
    page = clock.correct(at(101), truth(101, at(101)))
    assert page.status == ClockStatus.SYNCHRONIZED
    assert abs(page.at(at(101).raw_ns).fleet_ns - 101 * S) <= 2


def test_a_line_that_is_at_its_place_stays() -> None:
    """To a nanosecond, which is how lines are rounded: a page with each tick would say nothing new."""
    clock = synced()
    clock.correct(at(6), truth(6, at(6), error_ns=1_000))
    line = clock.tick(at(6.25)).current
    later = (6.412_345_678, 6.587_654_321, 6.733_333_333, 6.951_413_121)
    assert [clock.tick(at(t)).current == line for t in later] == [True] * 4
    assert clock.correct(at(7.2), truth(7.2, at(7.2), error_ns=1_003)).current != line


def test_a_correction_amid_the_slew_of_another_is_followed_at_once() -> None:
    """Not after the next tick: the end of the last slew and this correction came at the same moment."""
    clock = synced()
    clock.correct(at(6), truth(6, at(6), error_ns=1_000))

    page = clock.correct(at(6.3), truth(6.3, at(6.3), error_ns=-3_000))

    assert page.current.rate_ppt < clock.target.rate_ppt
    over = 6.3 + (PARAMETERS.lead_ns + PARAMETERS.slew_time_ns) / S
    assert abs(page.at(at(over).raw_ns).fleet_ns - over * S + 3_000) <= 20


@settings(max_examples=60, deadline=None)
@given(
    errors=st.lists(st.integers(-3 * MS, 3 * MS), min_size=5, max_size=30),
    gaps=st.lists(st.sampled_from([0.001, 0.02, 0.06, 0.3, 1.0, 2.7, 9.0]), min_size=5, max_size=30),
)
def test_never_backward_never_faster_than_the_limit(errors: list[int], gaps: list[float]) -> None:
    """Corrections that contradict each other by milliseconds, at any time: fleet time is monotonic and slew-limited."""
    clock = synced()
    t = 5.0
    last_t, last = t, clock.page.at(at(t).raw_ns).fleet_ns
    for error, gap in zip(errors, gaps, strict=False):
        for part in np.linspace(0, gap, 8)[1:]:
            clock.tick(at(t + part))
            shown = clock.page.at(at(t + part).raw_ns).fleet_ns
            true_gap = (t + part - last_t) * S
            limit = true_gap * (PARAMETERS.max_slew_ppm * 1e-6 + 1e-6) + 2
            assert shown >= last
            assert abs(shown - last - true_gap) <= limit
            last_t, last = t + part, shown
        t += gap
        clock.correct(at(t), truth(t, at(t), error_ns=error))
        assert abs(clock.page.at(at(t).raw_ns).fleet_ns - last) <= 2


def test_bound_holds_what_is_left_to_slew() -> None:
    """A correction of 1 ms is slewed over 2 s at 500 ppm; meanwhile the bound says how far it still is."""
    clock = synced()
    clock.correct(at(5.1), truth(5.1, at(5.1), error_ns=MS))
    for t in np.arange(5.1, 9.0, 0.25):
        clock.tick(at(t))
        fleet = clock.page.at(at(t).raw_ns)
        assert abs(fleet.fleet_ns - (t * S + MS)) <= fleet.bound_ns
    assert abs(clock.page.at(at(9).raw_ns).fleet_ns - (9 * S + MS)) < 1_000


@pytest.mark.parametrize("silence_s", [0.2, 0.6, 2.0, 8.0])
@pytest.mark.parametrize("error_ns", [-40_000, -900, 900, 40_000])
def test_a_slew_that_nobody_ends_is_in_the_bound(error_ns: int, silence_s: float) -> None:
    """The sidecar stalls, or dies, in the middle of a slew: the page leads past the place it was to lead to."""
    clock = FleetClock.start(PARAMETERS, at(0))
    clock.correct(at(1), truth(1, at(1), error_ns=error_ns, bound_ns=abs(error_ns)))
    clock.tick(at(1.25))
    clock.correct(at(2), truth(2, at(2), bound_ns=0))
    for t in np.linspace(2, 2 + silence_s, 20):
        shown = clock.page.at(at(t).raw_ns)
        assert abs(shown.fleet_ns - round(t * S)) <= shown.bound_ns + 2
    # Back again, late: the slew has overshot and turns round.
    clock.tick(at(2 + silence_s))
    for t in np.linspace(2 + silence_s, 4 + 2 * silence_s, 20):
        shown = clock.page.at(at(t).raw_ns)
        assert abs(shown.fleet_ns - round(t * S)) <= shown.bound_ns + 2


def test_holdover_grows_the_bound_and_a_correction_ends_it() -> None:
    """Four seconds without a correction: HOLDOVER, and the bound grows at the holdover drift."""
    clock = synced()
    assert clock.tick(at(8.9)).status == ClockStatus.SYNCHRONIZED
    page = clock.tick(at(9.5))
    assert page.status == ClockStatus.HOLDOVER
    before = page.at(at(10).raw_ns).bound_ns
    for t in np.arange(10, 70.1, 0.25):
        page = clock.tick(at(t))
    grown = page.at(at(70).raw_ns).bound_ns - before
    assert grown == pytest.approx(60 * PARAMETERS.holdover_drift_ppb, rel=0.01)
    assert clock.correct(at(71), truth(71, at(71))).status == ClockStatus.SYNCHRONIZED
    assert clock.page.at(at(71).raw_ns).bound_ns < 3_000


@pytest.mark.parametrize("step_ns", [MS, -MS, 3_600 * S, -3_600 * S])
def test_a_step_of_the_host_clock_does_not_touch_fleet_time(step_ns: int) -> None:
    """Same time, same bound, synchronized; stamps of the host clock are converted with the step in their bound."""
    clock, untouched = synced(), synced()
    for t in (5.25, 5.5, 5.75, 6.0):
        now = at(t, step_ns=step_ns)
        page, other = clock.tick(now), untouched.tick(at(t))
        assert page.at(now.raw_ns) == other.at(now.raw_ns)
        assert page.status == ClockStatus.SYNCHRONIZED
        stamp = page.convert(now.host_ns)
        assert abs(stamp.fleet_ns - t * S) <= stamp.bound_ns
    assert clock.host.steps == 1
    assert page.disruptions == 0


def test_a_restarted_sidecar_goes_on_where_the_old_one_was() -> None:
    """The page of a sidecar that died 3 s ago is taken over: HOLDOVER at once, no jump, bound still holding."""
    old = synced().page
    clock = FleetClock.start(PARAMETERS, at(8), old)
    assert clock.page.status == ClockStatus.HOLDOVER
    fleet = clock.page.at(at(8).raw_ns)
    assert abs(fleet.fleet_ns - 8 * S) <= fleet.bound_ns < 100_000
    # A step meanwhile is nothing to it.
    stepped = at(8, step_ns=S)
    assert FleetClock.start(PARAMETERS, stepped, old).page.at(stepped.raw_ns) == fleet
    assert fleet.fleet_ns == old.at(at(8).raw_ns).fleet_ns


@pytest.mark.parametrize(
    ("what", "now"),
    [
        ("expired", at(60)),
        ("another boot", CrossTimestamp(at(8).host_ns, 1_000)),
    ],
)
def test_a_page_that_cannot_be_trusted_is_not_taken_over(what: str, now: CrossTimestamp) -> None:
    """An old or foreign page means starting from nothing."""
    assert FleetClock.start(PARAMETERS, now, synced().page).page.status == ClockStatus.UNKNOWN, what


def test_the_page_dies_with_its_writer() -> None:
    """Ten seconds after the last tick a reader sees UNKNOWN."""
    page = synced().page
    assert page.at(at(14).raw_ns).status == ClockStatus.SYNCHRONIZED
    assert page.at(at(16).raw_ns).status == ClockStatus.UNKNOWN


def test_a_part_of_the_fleet_grows_its_bound_and_is_soon_in_holdover() -> None:
    """Corrections of a part hold what a holdover holds, from the first on; after 4 s of them it is one."""
    clock = synced(5.0)
    holdover_ppb = clock.parameters.holdover_drift_ppb
    for t in range(6, 12):
        now = at(t)
        for tick in range(4):
            clock.tick(at(t - 1 + tick / 4))
        page = clock.correct(now, replace(truth(t, now), no_quorum=True))
        assert page.drift_ppb >= holdover_ppb
        assert page.status == (ClockStatus.SYNCHRONIZED if t <= 8 else ClockStatus.HOLDOVER), t
    for tick in range(48, 53):  # four a second, as a sidecar's: slews end
        now = at(tick / 4)
        clock.tick(now)
    page = clock.correct(now, truth(13, now))
    assert page.status == ClockStatus.SYNCHRONIZED
    assert page.drift_ppb < holdover_ppb


def test_a_clock_that_is_left_alone_says_holdover() -> None:
    """At the end of its sidecar: same time, a bound as if nothing had been measured since the last correction, growing
    as in holdover, and not for ever.
    """
    clock = synced(5.0)
    now = at(5.1)
    before = clock.tick(now).at(now.raw_ns)
    page = clock.hold(now)
    after = page.at(now.raw_ns)
    assert after.fleet_ns == before.fleet_ns
    assert after.bound_ns - before.bound_ns == pytest.approx(0.1 * (1_000 - 250), abs=1)
    assert after.status == ClockStatus.HOLDOVER
    assert page.drift_ppb >= clock.parameters.holdover_drift_ppb
    assert page.at(at(16.0).raw_ns).status == ClockStatus.UNKNOWN


@pytest.mark.parametrize("years", [-56, -1, 1, 50, 146, 150, 200])
def test_a_clock_step_of_any_size_fits_the_page(years: int, tmp_path: Path) -> None:
    """Also one beyond 2^62 ns (146 years): the page can be written, and fleet time has not moved."""
    clock = FleetClock.start(PARAMETERS, at(0, offset_ns=1_790_000_000 * S))
    writer = ClockPageWriter(tmp_path / "clock")
    for k in range(1, 20):
        now = at(k / 4, offset_ns=1_790_000_000 * S, step_ns=years * 31_556_952 * S if k > 12 else 0)
        clock.tick(now)
        if k == 12:
            clock.correct(now, truth(k / 4, now, epoch_ns=1_790_000_000 * S))
        writer.write(clock.published(now))
    shown = ClockPageReader(tmp_path / "clock").read().at(now.raw_ns)
    assert shown.status == ClockStatus.SYNCHRONIZED
    assert abs(shown.fleet_ns - round(4.75 * S)) <= shown.bound_ns
    assert clock.host.steps == 1


@pytest.mark.parametrize("pause_ns", [20_000, 1_000_000, 2 * S])
def test_after_a_pause_the_clock_is_set_openly(pause_ns: int) -> None:
    """Both clocks of the host lose the same: disrupted at once, no correction is believed that may rest on samples from
    before, then unknown, then right within its bound at the first correction: no slew of an hour.
    """

    def late(t_s: float) -> CrossTimestamp:
        now = at(t_s)
        return CrossTimestamp(now.host_ns - pause_ns, now.raw_ns - pause_ns)

    clock = synced(5.0)
    assert clock.suspect(late(5.02)).status == ClockStatus.DISRUPTED
    seen: list[ClockStatus] = []
    for k in range(1, 60):
        now = late(5.02 + k / 4)
        clock.tick(now)
        wrong = truth(
            5.02 + k / 4, now, error_ns=-pause_ns // 2
        )  # half of the edges still are of the old clock
        clock.correct(now, wrong if k < 20 else truth(5.02 + k / 4, now))
        shown = clock.published(now).at(now.raw_ns)
        if shown.status == ClockStatus.SYNCHRONIZED:
            assert abs(shown.fleet_ns - round((5.02 + k / 4) * S)) <= shown.bound_ns
        if not seen or seen[-1] != shown.status:
            seen.append(shown.status)
    assert seen[0] == ClockStatus.DISRUPTED
    assert seen[-1] == ClockStatus.SYNCHRONIZED
    assert abs(clock.page.at(now.raw_ns).fleet_ns - round((5.02 + 59 / 4) * S)) <= 100


def test_unknown_lies_between_a_clock_that_is_doubted_and_one_that_is_set() -> None:
    """Without a correction it stays unknown; a sidecar that ends, or is killed, hands no doubted time on."""
    clock = synced(5.0)
    page = clock.suspect(at(5.1))
    assert FleetClock.start(PARAMETERS, at(5.5), page).page.status == ClockStatus.UNKNOWN
    assert clock.tick(at(5.1 + PARAMETERS.lookback_ns / S - 0.1)).status == ClockStatus.DISRUPTED
    assert clock.tick(at(5.1 + PARAMETERS.lookback_ns / S + 0.1)).status == ClockStatus.UNKNOWN
    ended = synced(5.0)
    ended.suspect(at(5.1))
    assert ended.hold(at(5.2)).status == ClockStatus.UNKNOWN


def test_nothing_to_doubt_while_unknown() -> None:
    """A machine that is paused before it has fleet time goes on as it would have."""
    clock = FleetClock.start(PARAMETERS, at(0))
    assert clock.suspect(at(1)).status == ClockStatus.UNKNOWN
    assert clock.correct(at(2), truth(2, at(2))).status == ClockStatus.SYNCHRONIZED


@pytest.mark.parametrize("late_s", [0.06, 0.3, 5.0])
@pytest.mark.parametrize("error_ns", [-40_000, 40_000])
def test_a_line_that_was_published_late_is_laid_anew(late_s: float, error_ns: int) -> None:
    """The sidecar had no core between computing a line and writing it: readers, who have followed the line before all
    along, never see time run backward, and the bound still holds the truth.
    """
    clock = synced()
    shown = clock.page
    clock.correct(at(6.0), truth(6.0, at(6.0), error_ns=error_ns, bound_ns=50_000))
    now = 6.0 + late_s
    page = clock.postpone(at(now), shown)
    assert page.current.from_ns > at(now).raw_ns
    said = shown.at(at(now).raw_ns).fleet_ns
    for t in np.arange(now, now + 2, 0.001):
        raw_ns = at(t).raw_ns
        fleet = page.at(raw_ns)
        assert fleet.fleet_ns >= said
        said = fleet.fleet_ns
        assert abs(fleet.fleet_ns - round(t * S)) <= fleet.bound_ns


def test_what_queues_hide_is_in_the_bound_that_readers_see() -> None:
    """A jump of the raw clock that no packet can show widens it at once, and while it may hide: a correction of
    meanwhile is kept as good as it is.
    """
    clock = synced()
    now = at(5.1)
    before = clock.published(now).at(now.raw_ns)
    clock.hidden_jump_ns = 3_000_000
    for page in (clock.published(now), clock.shown):
        assert page.at(now.raw_ns).bound_ns >= before.bound_ns + 3_000_000 - 100
        assert page.at(now.raw_ns).fleet_ns == before.fleet_ns
    assert clock.kept_bound_ns(now) < 3_000_000
    clock.hidden_jump_ns = 0
    assert clock.published(now).at(now.raw_ns).bound_ns == before.bound_ns


def test_readers_know_until_when_fleet_time_is_synchronized() -> None:
    """A sidecar that is stopped cannot say that no correction comes any more."""
    clock = synced(5.0)
    page = clock.published(at(5.25))
    until = PARAMETERS.holdover_after_ns / S
    assert page.at(at(4.9 + until).raw_ns).status == ClockStatus.SYNCHRONIZED
    assert page.at(at(5.1 + until).raw_ns).status == ClockStatus.HOLDOVER


@pytest.mark.parametrize("pause_ns", [20_000, 1_000_000, 2 * S])
def test_what_a_previous_sidecar_left_before_a_pause_is_not_slewed_away(pause_ns: int) -> None:
    """The sidecar is dead while the machine is paused and no clock shows it: the first correction of the next does."""
    page = synced(5.0).published(at(5))
    now = at(9 - pause_ns / S)
    heir = FleetClock.start(PARAMETERS, now, page)
    assert heir.page.status == ClockStatus.HOLDOVER
    assert heir.contradicted_by(now, truth(9, now))
    heir.suspect(now)
    heir.correct(now, truth(9, now))
    assert not heir.contradicted_by(now, truth(9, now))


def test_a_correction_that_excludes_nothing_is_not_slewed_to_after_a_time_without_a_watch() -> None:
    """Of a fleet whose edges still rest on both sides of a pause: one that is no more in doubt says what was right, or
    none comes within the time for which that can last.
    """
    heir = FleetClock.start(PARAMETERS, at(8), synced(5.0).published(at(5)))
    kept = heir.page.current
    now = at(8.5 - 2.0)
    for doubtful_s in 8.5, 10.0:
        doubtful = truth(doubtful_s, now := at(doubtful_s - 2.0), bound_ns=3 * S)
        assert not heir.contradicted_by(now, doubtful)
        page = heir.correct(now, doubtful)
        assert (page.status, page.current) == (ClockStatus.HOLDOVER, kept)
    assert heir.contradicted_by(now, truth(10, now))
    assert not heir.contradicted_by(now, truth(8, now, bound_ns=3 * S))
    late = at(18.0)
    assert heir.contradicted_by(late, truth(20, late, bound_ns=3 * S))


def test_one_that_was_never_unwatched_slews_to_an_anchor_that_comes_late() -> None:
    """It was true within the bound of either."""
    clock = synced(5.0)
    late = replace(truth(6, at(6), error_ns=S, bound_ns=2 * S), anchored=True)
    assert not clock.contradicted_by(at(6), late)
    page = clock.correct(at(6), late)
    assert page.status == ClockStatus.SYNCHRONIZED
    assert clock.target.at(at(6).raw_ns) - page.at(at(6).raw_ns).fleet_ns > 0.9 * S
    clock = synced(5.0)
    clock.unwatched(at(6))
    assert clock.contradicted_by(at(6), truth(6, at(6), error_ns=S))


def test_nobody_follows_a_paused_host_for_an_hour() -> None:
    """The only peer is the root, and was paused: it is not slewed to, and the bound holds both until fleet time is set
    anew. If it was an error, nothing has happened.
    """
    clock, pulled = synced(5.0), -S
    for t_s in range(6, 13):
        correction = truth(t_s, at(t_s), error_ns=pulled, bound_ns=S + 1_000)
        assert not clock.contradicted_by(at(t_s), correction)
        clock.correct(at(t_s), correction)
        for quarter in range(4):
            page = clock.tick(at(now_s := t_s + quarter / 4))
            assert abs(page.at(at(now_s).raw_ns).fleet_ns - now_s * S) < 1_000
            assert clock.published(at(now_s)).at(at(now_s).raw_ns).bound_ns >= S
    assert clock.contradicted_by(at(14), truth(14, at(14), error_ns=pulled, bound_ns=S + 1_000))
    right = truth(14, at(14))
    assert not clock.contradicted_by(at(14), right)
    assert clock.correct(at(14), right).status == ClockStatus.SYNCHRONIZED
    assert clock.shown.at(at(14).raw_ns).bound_ns < 3_000


def test_a_correction_that_may_be_off_by_anything_confirms_nothing() -> None:
    """Of a fleet in doubt, near what a previous sidecar left by chance."""
    heir = FleetClock.start(PARAMETERS, at(8), synced(5.0).published(at(5)))
    heir.correct(at(8), truth(8, at(8), bound_ns=3 * S))
    assert heir.unverified_raw_ns is not None
    assert heir.kept_bound_ns(at(8)) < 10_000
    heir.correct(at(10), truth(10, at(10)))
    assert heir.unverified_raw_ns is None


def test_a_correction_that_was_measured_before_a_pause_confirms_nothing() -> None:
    """Just after the start: fits may rest on what was measured earlier. The next one shows the pause."""
    heir = FleetClock.start(PARAMETERS, at(8), synced(5.0).published(at(5)))
    heir.correct(at(8.5), truth(8.5, at(8.5)))
    first = heir.shown
    assert heir.contradicted_by(at(9), truth(9, at(9), error_ns=40_000))
    heir.correct(at(9.5), truth(9.5, at(9.5)))
    assert (first.status, heir.shown.status) == (ClockStatus.HOLDOVER, ClockStatus.SYNCHRONIZED)


def test_fleet_time_that_is_set_anew_is_set_by_the_first_correction() -> None:
    """Delays have shown a pause while this host was still not watched again."""
    clock = synced(5.0)
    clock.unwatched(at(6))
    clock.suspect(at(6))
    clock.unwatched(at(6.5))
    clock.tick(at(15))
    assert clock.page.status == ClockStatus.UNKNOWN
    correction = truth(15, at(15), error_ns=S)
    assert not clock.contradicted_by(at(15), correction)
    assert clock.correct(at(15), correction).status == ClockStatus.SYNCHRONIZED


def test_what_a_previous_sidecar_left_is_gone_on_with() -> None:
    """Its bound holds what its clock has drifted since."""
    page = synced(5.0).published(at(5))
    heir = FleetClock.start(PARAMETERS, at(13), page)
    assert not heir.contradicted_by(at(13), truth(13, at(13), error_ns=4_000))
    assert heir.contradicted_by(at(13), truth(13, at(13), error_ns=40_000))


def test_a_wide_bound_is_no_synchronization() -> None:
    """However fresh the correction is: readers would take "within a second" for synchronized."""
    clock = synced()
    for t, bound_ns in (6, 9 * MS), (7, 11 * MS), (8, 2_000):
        clock.correct(at(t), truth(t, at(t), bound_ns=bound_ns))
        wide = bound_ns > PARAMETERS.widest_ns
        expected = ClockStatus.HOLDOVER if wide else ClockStatus.SYNCHRONIZED
        assert clock.shown.status == clock.published(at(t)).status == expected
        assert clock.shown.bound_ns >= bound_ns


@pytest.mark.parametrize("pause_ns", [20 * MS, 767 * MS])
def test_a_pause_that_wide_bounds_have_hidden_is_not_slewed_away(pause_ns: int) -> None:
    """Edges that rest on stamps of both of its sides made the bound as wide as the pause before delays could contradict
    fleet time: at 500 ppm it would be gone after minutes, with a bound as wide all the while.
    """
    clock = synced()

    def now(t: float) -> CrossTimestamp:
        paused = at(t - pause_ns / S)
        return CrossTimestamp(paused.host_ns, paused.raw_ns)

    t = 6.0
    clock.correct(now(t), truth(t, now(t), bound_ns=2 * pause_ns, error_ns=-pause_ns))
    assert not clock.contradicted_by(now(t + 1), truth(t + 1, now(t + 1), bound_ns=2 * pause_ns))
    t += 1
    precise = truth(t, now(t))
    assert not clock.contradicted_by(now(t), replace(precise, free=True, anchored=True))
    assert clock.contradicted_by(now(t), precise)
    clock.suspect(now(t))
    while clock.tick(now(t)).status != ClockStatus.UNKNOWN:
        t += 0.25
        assert t < 15
    clock.correct(now(t), truth(t, now(t)))
    assert clock.shown.status == ClockStatus.SYNCHRONIZED
    assert abs(clock.page.at(now(t).raw_ns).fleet_ns - t * S) < 100
