"""Which stamps of a train, and of an edge, are used: the kernel's or the NIC's."""

import itertools
import random

import pytest

from fabricpulse.mesh._probe_engine import EdgeDelays, EdgeTrains, StampingChecks, StampingDevices

ERROR_NS = 640
BUSY, NO_MEMORY = 16, 12
KERNEL, NIC = (False, False), (True, True)


def reported(by_kernel, by_nic, seed=0):
    """What is reported of a train whose packets at these positions are stamped, in any order: positions, error, ns."""
    trains = EdgeTrains()
    train, _, _ = trains.begin(1, 0)
    stamps = [(p, 10_000 + p, 0) for p in by_kernel] + [(p, 15_000 + p, ERROR_NS) for p in by_nic]
    random.Random(seed).shuffle(stamps)
    for position, ns, error_ns in stamps:
        assert trains.stamp_sent(train, position, ns, ns, error_ns)
    trains.begin(1, 0)
    _, valid, error_ns, ns = trains.sent_report(0)
    there = [p for p in range(3) if valid >> p & 1]
    return there, error_ns, [ns[p] for p in there]


@pytest.mark.parametrize("seed", range(5))
def test_a_nic_that_stamps_the_first_packet_only_takes_no_stamps_away(seed):
    assert reported([0, 1, 2], [0], seed) == ([0, 1, 2], 0, [10_000, 10_001, 10_002])
    assert reported([0, 1, 2], [0, 2], seed) == ([0, 1, 2], 0, [10_000, 10_001, 10_002])


@pytest.mark.parametrize("seed", range(5))
def test_stamps_of_the_nic_are_used_where_they_are_all_there(seed):
    """But for that of the warm-up packet, which no delay uses."""
    assert reported([0, 1, 2], [0, 1, 2], seed) == ([0, 1, 2], ERROR_NS, [15_000, 15_001, 15_002])
    assert reported([0, 1, 2], [1, 2], seed) == ([1, 2], ERROR_NS, [15_001, 15_002])
    assert reported([0, 1], [1], seed) == ([1], ERROR_NS, [15_001])
    assert reported([], [0], seed) == ([0], ERROR_NS, [15_000])


def test_what_is_forgotten_does_not_come_back_with_the_next_stamp():
    trains = EdgeTrains()
    train, _, _ = trains.begin(1, 0)
    for position in (0, 1):
        trains.stamp_sent(train, position, 10, 10, 0)
        trains.stamp_sent(train, position, 10, 10, ERROR_NS)
    trains.forget_stamps()
    trains.stamp_sent(train, 2, 20, 20, 0)
    trains.begin(1, 0)
    assert trains.sent_report(0)[1:3] == (1 << 2, 0)


@pytest.mark.parametrize(("error_ns", "longest"), [(0, 10**9), (ERROR_NS, 10**7)])
def test_a_stamp_of_another_packet_is_not_taken(error_ns, longest):
    """By its time, which is before the send or long after it; a stamp of a NIC within its error."""
    trains = EdgeTrains()
    train, _, _ = trains.begin(1, 0)
    taken = {
        ns: trains.stamp_sent(train, 1, ns, ns, error_ns)
        for ns in (-(10**7), -error_ns - 1, -error_ns, 0, longest - error_ns, longest + 10**5)
    }
    assert [ns for ns, there in taken.items() if there] == sorted({-error_ns, 0, longest - error_ns})


@pytest.mark.parametrize(
    ("after_ns", "taken"),
    [(-(10**6), False), (-10_000, False), (-3_000, True), (10**6, True), (2 * 10**7, False)],
)
def test_a_stamp_of_a_nic_follows_that_of_the_kernel(after_ns, taken):
    """Else it is by another clock: that of a NIC which a bond does not use any more."""
    trains = EdgeTrains()
    train, _, _ = trains.begin(1, 0)
    kernel_ns = 3 * 10**7
    assert trains.stamp_sent(train, 1, kernel_ns, kernel_ns, 0)
    assert trains.stamp_sent(train, 1, 0, kernel_ns + after_ns, ERROR_NS) == taken


def test_a_stamp_of_a_nic_is_no_older_than_the_kernels_may_be():
    trains = EdgeTrains()
    train, _, _ = trains.begin(1, 0)
    assert trains.stamp_sent(train, 1, 10**9 - 10**6, 10**9 - 10**6, 0)
    assert not trains.stamp_sent(train, 1, 0, 10**9 + 10**6, ERROR_NS)


def used(kinds):
    """Of trains with stamps of these kinds, which are used for delays."""
    delays = EdgeDelays(10**9, 3.0, 1_000)
    return [kind for kind in kinds if delays.usual_stamps(*kind)]


def test_stamps_of_another_kind_are_used_once_they_are_the_rule():
    assert len(used([KERNEL] * 100 + [NIC] * 200)) == 100 + 200 - 64 + 1


def test_an_edge_that_has_just_begun_changes_sooner():
    """The clock of a NIC is known some trains after the start."""
    assert len(used([KERNEL] * 3 + [NIC] * 200)) == 3 + 200 - 8 + 1
    assert used(([NIC] * 40 + [KERNEL] * 40) * 100) == [NIC] * (4_000 - 8 + 1)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_nic_that_stamps_some_trains_only_does_not_change_what_is_usual(share):
    """Nor does one that stamps most of them for a moment."""
    luck = random.Random(8)
    kinds = [KERNEL] * 100 + [NIC if luck.random() < share else KERNEL for _ in range(3_000)]
    assert used(kinds) == [KERNEL] * kinds.count(KERNEL)
    assert used(([KERNEL] * 100 + [NIC] * 40) * 10) == [KERNEL] * 1_000


def test_of_kinds_that_change_the_most_frequent_is_used():
    """Whatever was used before: NICs of both ends stamp, one of them only some trains."""
    received_by_nic = (False, True)
    kinds = list(itertools.islice(itertools.cycle([NIC, received_by_nic, NIC]), 900))
    assert set(used([KERNEL] * 10 + kinds)[10:]) == {NIC}
    assert len(used(kinds)) >= 600 - 64


def test_a_driver_that_is_busy_for_once_costs_no_sockets():
    checks = StampingChecks()
    good, busy = (3, 0), (-1, BUSY)
    assert [checks.reopen(found, good)[0] for found in (good, busy, good, busy, busy)] == [False] * 4 + [True]


def test_what_is_sure_is_acted_on_at_once():
    """Another clock, whose stamps would be put on the line of the old one; stamps that were set up, or turned off."""
    for found, in_use in (((4, 0), (3, 0)), ((3, 0), (-1, BUSY)), ((-1, 0), (3, 0))):
        assert StampingChecks().reopen(found, in_use)[0]


def test_why_stamps_are_not_used_is_that_of_the_last_check():
    assert StampingChecks().reopen((-1, NO_MEMORY), (-1, BUSY)) == (False, (-1, NO_MEMORY))


def test_stamps_are_of_the_clock_that_is_followed():
    """Each device that packets arrive at is asked for its clock; meanwhile what is sent is in doubt too."""
    devices = StampingDevices()
    assert devices.known(0)  # an old kernel does not tell it
    for index in (5, 6):
        assert not devices.known(index)
        assert devices.asked == index
        devices.answer(3, 3)
        assert devices.asked == 0
    assert devices.known(5)
    assert devices.known(6)
    assert not devices.known(7)
    devices.answer(3, 4)
    assert not devices.known(7)


def test_a_device_of_another_namespace_is_the_one_that_was_there_first():
    devices = StampingDevices()
    for index, known in ((5, True), (6, False)):
        assert not devices.known(index)
        devices.answer(3, -1)
        assert devices.known(index) == known
