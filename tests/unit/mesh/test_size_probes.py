"""An MTU black hole is no loss: who drops large packets, of which size, and who merely loses some of all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.mesh._probe_engine import PathSizes, SizeLoss, path_of_train, size_after_train

PATHS, SWEEP, RATE = 8, 10, 50
NONE = SizeLoss()


class Edge:
    """What arrives of a peer, at 50 trains a second."""

    def __init__(self, mtu=9000, paths=PATHS, sweep=SWEEP, loss_ppm=0):
        self.mtu, self.paths, self.sweep = mtu, paths, sweep
        self.loss_ppm, self.beside = loss_ppm, NONE
        self.ports = [PathSizes() for _ in range(paths)]
        self.small = [(0, 0)] * paths  # packets of each source port: all, lost

    def train(self, number, passes):
        """Plays one train. passes(path, size) : which packet arrives; a small one is of 150 bytes. Returns its port."""
        path = path_of_train(number, self.paths, self.sweep)
        size = size_after_train(number, self.paths, self.sweep, self.mtu)
        small = [passes(path, 150) for _ in range(3)]
        if any(small):
            self.ports[path].due(number, size, self.mtu, *self.small[path])
        if size and passes(path, size):
            hole = self.ports[path].black_hole(self.loss_ppm, self.beside)
            self.ports[path].arrived(number, size, *self.small[path], hole)
        expected, lost = self.small[path]
        self.small[path] = expected + 3, lost + small.count(False)
        return path


def play(seconds, mtu, passes, paths=PATHS, sweep=SWEEP):
    """What each source port is said to drop after so many seconds, and which train was the first to name each."""
    edge, named = Edge(mtu, paths, sweep), {}
    for train in range(1, seconds * RATE):
        path = edge.train(train, passes)
        if edge.ports[path].black_hole(0, NONE) and path not in named:
            named[path] = train
    return edge.ports, named


def beside_of(edges):
    """What all source ports of a NIC lose of large packets."""
    total = SizeLoss()
    for edge in edges:
        for port in edge.ports:
            total.add(port.loss)
    return total


@pytest.mark.parametrize("mtu", [1280, 1500, 4200, 9000])
def test_each_port_probes_each_size(mtu):
    """Within ten seconds each source port has sent each size once or more, the MTU itself among them."""
    seen = {path: set() for path in range(PATHS)}
    for train in range(1, 10 * RATE):
        if size := size_after_train(train, PATHS, SWEEP, mtu):
            seen[path_of_train(train, PATHS, SWEEP)].add(size)
    wanted = {size for size in (1500, 2200, 4200) if size < mtu} | {mtu}
    assert all(sizes == wanted for sizes in seen.values())


@given(st.integers(0, 2**32 - 1), st.integers(1, 16), st.integers(0, 12) | st.integers(0, 255))
def test_probes_are_few(train, paths, sweep):
    """Of a hundred trains at most every fifth is followed by a probe, and none without an MTU."""
    assert size_after_train(train, paths, sweep, 0) == 0
    first = min(train, 2**32 - 2101)
    followed = sum(size_after_train(t, paths, sweep, 9000) > 0 for t in range(first, first + 2100))
    assert followed <= 2100 / 5


@pytest.mark.parametrize(("limit", "named"), [(4000, 4200), (1499, 1500), (8999, 9000), (2199, 2200)])
def test_black_hole_is_named_with_its_size(limit, named):
    """One of eight ports drops what is larger: it is named with the smallest such size within 30 s, the others not."""
    ports, first = play(31, 9000, lambda path, size: path != 3 or size <= limit)
    assert [port.black_hole(0, NONE) for port in ports] == [
        named if path == 3 else 0 for path in range(PATHS)
    ]
    assert first[3] <= 30 * RATE


@pytest.mark.parametrize("start", range(0, 2000, 125))
def test_the_first_size_named_is_the_smallest(start):
    """Whichever size was due first after the hole came about, a larger one is never named before it."""
    port, said = PathSizes(), set()
    for train in range(1, start + 30 * RATE):
        size = size_after_train(train, PATHS, SWEEP, 9000)
        if path_of_train(train, PATHS, SWEEP) != 3:
            continue
        port.due(train, size, 9000)
        if size and (train < start or size <= 4000):
            port.arrived(train, size)
        said.add(port.black_hole(0, NONE))
    assert said == {0, 4200}


def test_a_black_hole_that_ended_is_forgotten():
    """The first large packet that arrives ends it."""
    port = PathSizes()
    for train in range(1, 9):
        port.due(train, 9000, 9000)
    assert port.black_hole(0, NONE) == 9000
    port.arrived(8, 9000)
    assert port.black_hole(0, NONE) == 0


@pytest.mark.parametrize("limit", [1400, 2000, 4000, 8000])
@pytest.mark.parametrize("lasts_s", [21, 27, 40, 60])
def test_a_black_hole_is_not_remembered(limit, lasts_s):
    """What a black hole has taken is no loss by chance: the next one is named as soon as the first, on its path and
    on all others of the NIC.
    """
    edge = Edge()
    for train in range(1, 10 * RATE):
        edge.train(train, lambda path, size: True)
    for train in range(10 * RATE, (10 + lasts_s) * RATE):
        edge.train(train, lambda path, size: path != 3 or size <= limit)
    for train in range((10 + lasts_s) * RATE, (50 + lasts_s) * RATE):
        edge.train(train, lambda path, size: True)
    for train in range((50 + lasts_s) * RATE, (71 + lasts_s) * RATE):
        edge.train(train, lambda path, size: size <= limit)
    assert all(port.black_hole(0, beside_of([edge])) for port in edge.ports)


@pytest.mark.parametrize("limit", [1400, 2000, 4000, 8000])
@pytest.mark.parametrize("begins", range(1000, 2000, 125))
def test_all_paths_are_doubted_before_the_first_is_sure(limit, begins):
    """As a black hole begins on some source ports, those are doubted within seven seconds, before any is sure to
    have one; no other one is.
    """
    edge, hit = Edge(), {1, 3, 4}
    for train in range(1, begins):
        edge.train(train, lambda path, size: True)
    for train in range(begins, begins + 7 * RATE):
        edge.train(train, lambda path, size: path not in hit or size <= limit)
    assert not any(port.black_hole(0, NONE) for port in edge.ports)
    doubted = {path for path, port in enumerate(edge.ports) if port.maybe_black_hole(0, NONE)}
    assert doubted == hit


@pytest.mark.parametrize("percent", [1, 5, 20, 60])
def test_loss_makes_few_doubts(percent):
    """A port that loses packets of all sizes alike is hardly ever doubted."""
    dice, edge, doubts, looks = random.Random(percent), Edge(loss_ppm=percent * 10_000), 0, 0
    for train in range(1, 1200 * RATE):
        edge.train(train, lambda path, size: dice.random() >= percent / 100)
        if train % RATE == 0:
            doubts += sum(port.maybe_black_hole(percent * 10_000, NONE) for port in edge.ports)
            looks += PATHS
    assert doubts <= 0.005 * looks


@pytest.mark.parametrize("percent", [5, 20, 40, 60])
def test_loss_is_no_black_hole(percent):
    """A port that loses packets of all sizes alike is never said to drop large ones, once its loss is known."""
    dice = random.Random(percent)
    ports, _ = play(2400, 9000, lambda path, size: dice.random() >= percent / 100)
    assert [port.black_hole(percent * 10_000, NONE) for port in ports] == PATHS * [0]


@pytest.mark.parametrize("suffering", [range(80), range(0, 80, 8), [3]], ids=["nic", "link", "port"])
@pytest.mark.parametrize("percent", [5, 20])
def test_congestion_that_spares_small_packets_is_no_black_hole(percent, suffering):
    """Of a NIC's 80 source ports some lose large packets from one moment on, by chance, and no small ones: none is said
    to drop them, and in the end what they lose is known, or taken for more.
    """
    dice = random.Random(percent + len(suffering))
    ports, beside, said = [PathSizes() for _ in range(80)], SizeLoss(), set()
    for turn in range(1, 240):
        size = size_after_train(turn * 70, PATHS, SWEEP, 9000)
        for number, port in enumerate(ports):
            port.due(turn, size, 9000)
            if turn < 20 or number not in suffering or dice.random() >= percent / 100:
                port.arrived(turn, size)
            said.add(port.black_hole(0, beside))
        if turn % 4 == 0:
            beside = SizeLoss()
            for port in ports:
                beside.add(port.loss)
    assert said == {0}
    assert all(max(ports[n].loss.most(3), beside.most(3)) >= 0.9 * percent / 100 for n in suffering)


@pytest.mark.parametrize("percent", [20, 40, 60])
@pytest.mark.parametrize("edges", [1, 4])
def test_loss_of_all_sizes_is_not_remembered(percent, edges):
    """A NIC has lost packets of all sizes for some minutes, and loses none any more: it is not said to lose large ones,
    and a black hole that comes then is named as soon as any other.
    """
    dice = random.Random(percent + edges)
    nic = [Edge() for _ in range(edges)]
    for train in range(1, 180 * RATE):
        for edge in nic:
            edge.train(train, lambda path, size: dice.random() >= percent / 100)
    began = train + 1
    for train in range(began, began + 30 * RATE):
        for edge in nic:
            edge.train(train, lambda path, size: path != 3 or size <= 4000)
    beside = beside_of(nic)
    assert [edge.ports[3].black_hole(0, beside) for edge in nic] == edges * [4200]


@pytest.mark.parametrize("percent", [5, 20, 40])
def test_large_packets_that_suffer_more_are_no_black_hole(percent):
    """A NIC loses packets of all sizes, and of large ones half as many again of what passes: that is known in the end,
    or taken for more, and no source port is said to drop them.
    """
    dice = random.Random(percent)
    passes = 1 - percent / 100
    nic, said = [Edge(loss_ppm=percent * 10_000) for _ in range(3)], set()

    def arrives(path, size):
        return dice.random() < (passes if size < 1500 else passes / 1.5)

    for train in range(1, 300 * RATE):
        for edge in nic:
            edge.train(train, arrives)
        if train % (5 * RATE) == 0:
            beside = beside_of(nic)
            for edge in nic:
                edge.beside = beside
        if train % RATE == 0 and train > 60 * RATE:
            said |= {port.black_hole(percent * 10_000, beside) for edge in nic for port in edge.ports}
    assert said == {0}
    assert beside.most(3) >= 0.9 / 3


def test_dead_path_is_no_black_hole():
    """What drops small packets, too, is another fault."""
    ports, _ = play(60, 9000, lambda path, size: path != 3)
    assert ports[3].black_hole(0, NONE) == 0


def test_black_hole_under_loss_is_named():
    """Large packets never arrive and one small packet in five is lost: more probes are waited for, then it is named."""
    dice = random.Random(7)
    ports, _ = play(120, 9000, lambda path, size: size <= 4000 and dice.random() >= 0.2)
    assert ports[2].black_hole(200_000, NONE) == 4200


def test_probe_before_its_train_counts():
    """Packets of one train may change places on the way."""
    port = PathSizes()
    port.due(1, 0, 9000)
    for train in range(2, 20):
        port.arrived(train, 9000)
        port.due(train, 9000, 9000)
    assert port.black_hole(0, NONE) == 0


def test_replayed_probe_heals_nothing():
    """An old probe, of a train long gone, does not hide that the new ones are missing."""
    port = PathSizes()
    for train in range(10, 20):
        port.due(train, 9000, 9000)
        port.arrived(9, 9000)
    assert port.black_hole(0, NONE) == 9000


def test_changed_mtu_begins_anew():
    """What was missing of the old sizes says nothing of the new."""
    port = PathSizes()
    for train in range(1, 9):
        port.due(train, 9000, 9000)
    port.due(9, 1500, 1500)
    assert port.black_hole(0, NONE) == 0
