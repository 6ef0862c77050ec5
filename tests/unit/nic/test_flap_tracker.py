"""The flap tracker: counts are the kernel's, times are the events'."""

import itertools
import random

import pytest

from fabricpulse.nic.flap_tracker import (
    ABSENT_MAX,
    COUNT_CHANGES,
    FlapTracker,
    Observation,
    Outage,
    Source,
    Transition,
)

BOUNDS = (0.1, 1.0)


def seen(
    carrier: bool, ups: int, downs: int, source: Source = "event", *, ifindex: int = 7, link: str = "eth0"
) -> Observation:
    return Observation(link, ifindex, carrier, ups, downs, source)


def started(carrier: bool = True, ups: int = 1, downs: int = 0) -> FlapTracker:
    tracker = FlapTracker(BOUNDS, "boot")
    tracker.observe(seen(carrier, ups, downs, "start"), 0.0)
    return tracker


def kinds(transitions: list[Transition]) -> list[tuple[str, int]]:
    return [(transition.kind, transition.count) for transition in transitions]


def test_what_happened_before_the_start_is_counted_without_times():
    """A first look takes the kernel's counts over and invents no event."""
    tracker = FlapTracker(BOUNDS, "boot")
    assert tracker.observe(seen(True, 4, 3, "start"), 10.0) == []
    state = tracker.links["eth0"]
    assert (state.downs, state.ups, state.unobserved, state.last_transition_s) == (3, 4, 3, None)


def test_a_flap_has_a_time_and_a_length():
    """Down and up as they happen: one transition each, and the outage's length in the histogram."""
    tracker = started()
    assert kinds(tracker.observe(seen(False, 1, 1), 100.0)) == [("down", 1)]
    up = tracker.observe(seen(True, 2, 1), 100.25)
    assert kinds(up) == [("up", 1)]
    assert up[0].down_s == pytest.approx(0.25)
    state = tracker.links["eth0"]
    assert (state.downs, state.ups, state.unobserved) == (1, 2, 0)
    assert state.flap_counts == [0, 1, 0]
    assert state.last_transition_s == 100.25


def test_every_change_of_the_counts_has_its_line_in_the_table():
    """All that can be seen, and what must hold for each: a down or an up is reported as the carrier is now."""
    possible = {key for key in itertools.product((False, True), repeat=4) if key[2] or key[3]}
    assert COUNT_CHANGES.keys() == possible
    for (timely, carrier, downs, _), change in COUNT_CHANGES.items():
        assert change.reported in (None, "up" if carrier else "down")
        # Only a down that was seen as it happened has a time, and begins an outage.
        assert change.is_timed == (timely and not carrier and downs)
        assert (change.outage is Outage.BEGINS) == change.is_timed


def test_repeated_messages_count_once():
    """The kernel sends several messages for one change; the counts tell that it is one."""
    tracker = started()
    tracker.observe(seen(False, 1, 1), 1.0)
    for _ in range(5):
        assert tracker.observe(seen(False, 1, 1), 1.1) == []
    assert tracker.links["eth0"].downs == 1


def test_a_flap_between_two_messages_is_counted_as_missed():
    """Two downs in one change: the last has a time, the other is counted as unobserved."""
    tracker = started()
    assert kinds(tracker.observe(seen(False, 2, 2), 5.0)) == [("missed", 1), ("down", 1)]
    assert kinds(tracker.observe(seen(True, 4, 3), 6.0)) == [("missed", 1), ("up", 1)]
    state = tracker.links["eth0"]
    assert (state.downs, state.unobserved) == (3, 2)
    # The outage that ended began in the gap: its length is unknown and not in the histogram.
    assert sum(state.flap_counts) == 0


def test_an_old_message_is_not_a_new_netdev():
    """A poll overtakes the socket's queue; the message that comes after it changes nothing."""
    tracker = started()
    tracker.observe(seen(True, 3, 2, "poll"), 1.0)
    assert tracker.observe(seen(False, 1, 1), 1.001) == []
    assert tracker.observe(seen(True, 2, 1), 1.001) == []
    assert tracker.links["eth0"].downs == 2


def test_a_restart_loses_nothing():
    """State kept, kernel counted on: the difference is added, without times."""
    first = started()
    first.observe(seen(False, 1, 1), 1.0)
    first.observe(seen(True, 2, 1), 2.0)
    second = FlapTracker(BOUNDS, "boot", first.links)
    assert second.present() == {}
    assert kinds(second.observe(seen(True, 9, 8, "start"), 50.0)) == [("missed", 7), ("up", 1)]
    state = second.links["eth0"]
    assert (state.downs, state.ups, state.unobserved) == (8, 9, 7)
    assert state.last_transition_s == 2.0
    assert sum(state.flap_counts) == 1


def test_an_outage_across_a_restart_keeps_its_begin():
    """Down before the restart and still down after it, up in the new run: the whole outage is measured."""
    first = started()
    first.observe(seen(False, 1, 1), 10.0)
    second = FlapTracker(BOUNDS, "boot", first.links)
    second.observe(seen(False, 1, 1, "start"), 12.0)
    up = second.observe(seen(True, 2, 1), 15.0)
    assert up[0].down_s == pytest.approx(5.0)


@pytest.mark.parametrize(("boot", "ifindex"), [("boot", 9), ("other boot", 7)])
def test_a_new_netdev_goes_on_from_the_old_total(boot, ifindex):
    """A driver reload or a reboot starts the kernel's counts anew; the exported total does not fall."""
    first = started()
    first.observe(seen(False, 1, 1), 1.0)
    first.observe(seen(True, 2, 1), 2.0)
    second = FlapTracker(BOUNDS, boot, first.links)
    assert kinds(second.observe(seen(True, 1, 0, "start", ifindex=ifindex), 60.0)) == [("recreated", 1)]
    assert (second.links["eth0"].downs, second.links["eth0"].ups) == (1, 3)
    second.observe(seen(False, 1, 1, ifindex=ifindex), 61.0)
    assert second.links["eth0"].downs == 2


def test_a_removed_netdev_vanishes_and_comes_back_with_its_total():
    """Removed links are not exported; when the driver is back the total goes on."""
    tracker = started()
    tracker.observe(seen(False, 1, 1), 1.0)
    gone = Observation("eth0", 7, False, 1, 1, "event", removed=True)
    assert kinds(tracker.observe(gone, 2.0)) == [("removed", 1)]
    assert tracker.present() == {}
    tracker.observe(seen(True, 1, 0, ifindex=8), 3.0)
    assert tracker.present()["eth0"].downs == 1


def test_links_that_never_come_back_are_forgotten():
    """Links of containers come and go all day: those gone longest go, the ones that exist and the latest stay."""
    tracker = started()
    for number in range(ABSENT_MAX + 50):
        link, ifindex = f"eni{number}", 100 + number
        tracker.observe(seen(True, 1, 0, link=link, ifindex=ifindex), float(number))
        tracker.observe(Observation(link, ifindex, False, 1, 1, "event", removed=True), float(number))
    assert list(tracker.present()) == ["eth0"]
    assert len(tracker.links) == ABSENT_MAX + 1
    assert "eni49" not in tracker.links
    assert "eni50" in tracker.links


def test_a_renamed_netdev_keeps_its_history():
    """udev renames links after they exist: same index, new name, same counts."""
    tracker = started()
    tracker.observe(seen(False, 1, 1), 1.0)
    tracker.observe(seen(False, 1, 1, link="rail0"), 2.0)
    assert list(tracker.links) == ["rail0"]
    assert tracker.links["rail0"].downs == 1


def test_without_kernel_counts_the_carrier_is_counted():
    """Ports that tell no counts: each change of the carrier is one."""
    tracker = FlapTracker(BOUNDS, "boot")
    for now, carrier in enumerate([True, False, False, True, False]):
        tracker.observe(Observation("ib0", 3, carrier, None, None, "event"), float(now))
    assert (tracker.links["ib0"].downs, tracker.links["ib0"].ups) == (2, 1)


@pytest.mark.parametrize("seed", range(20))
def test_any_loss_of_messages_gives_the_exact_count(seed):
    """Random truth: flaps, lost and repeated and late messages, restarts, new netdevs. The total is always exact."""
    rng = random.Random(seed)
    tracker = FlapTracker(BOUNDS, "boot")
    ifindex, carrier, ups, downs, truth = 5, True, 1, 0, 0
    tracker.observe(seen(carrier, ups, downs, "start", ifindex=ifindex), 0.0)
    queue: list[Observation] = []
    for step in range(1, 2000):
        carrier = not carrier
        ups, downs = ups + carrier, downs + (not carrier)
        truth += not carrier
        if rng.random() < 0.6:
            queue.append(seen(carrier, ups, downs, ifindex=ifindex))
        if rng.random() < 0.2:
            # A poll or a dump overtakes what is queued.
            tracker.observe(seen(carrier, ups, downs, rng.choice(["poll", "resync"]), ifindex=ifindex), step)
        while queue and rng.random() < 0.7:
            tracker.observe(queue.pop(0), step)
        if rng.random() < 0.01:
            queue.clear()
            tracker = FlapTracker(BOUNDS, "boot", tracker.links)
            tracker.observe(seen(carrier, ups, downs, "start", ifindex=ifindex), step)
        if rng.random() < 0.005:
            # A reload: the kernel tells all counts of the old netdev, then deletes it.
            tracker.observe(seen(carrier, ups, downs, "resync", ifindex=ifindex), step)
            queue.clear()
            tracker.observe(Observation("eth0", ifindex, False, ups, downs, "event", removed=True), step)
            ifindex, carrier, ups, downs = ifindex + 1, True, 1, 0
            tracker.observe(seen(carrier, ups, downs, ifindex=ifindex), step)
    tracker.observe(seen(carrier, ups, downs, "resync", ifindex=ifindex), 3000.0)
    state = tracker.links["eth0"]
    assert state.downs == truth
    assert state.unobserved + sum(state.flap_counts) <= truth
