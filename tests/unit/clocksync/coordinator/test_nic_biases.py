"""Biases of NICs are learned from the residuals of their edges, and taken off what those measure."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.nic_biases import NicBiases
from fabricpulse.clocksync.wire.messages import (
    PROTOCOL,
    EdgeName,
    EdgeReport,
    HostInfo,
    Line,
    RoundReport,
    pack_edges,
)

_BEGIN_NS, _NS = 1_800_000_000_000_000_000, 10**9
_NOISE_NS, _HIDES_NS = 20.0, 2_000


class _Unlearned(NicBiases):
    """As before."""

    def learn(self, *_: object) -> None:
        """Nothing."""


@dataclass
class _NicFleet:
    """`hosts` with perfect clocks and `nics` NICs each, whose stamps are ahead by biases of 300 ns; on each rail every
    NIC reports `edges` edges to others. dead : NICs without edges. queue_ns : what the packets to a NIC wait at most,
    and for most of which all do. clock_ns : what the clock of a host is ahead.
    """

    hosts: int = 24
    nics: int = 8
    edges: int = 1
    seed: int = 1
    learns: bool = True
    second: int = 0
    dead: set[tuple[int, int]] = field(default_factory=set)
    queue_ns: dict[tuple[int, int], float] = field(default_factory=dict)
    clock_ns: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = rng = np.random.default_rng(self.seed)
        self.bias = rng.normal(0, 300, (self.hosts, self.nics))
        self.fleet = Fleet(nic_biases=NicBiases() if self.learns else _Unlearned())
        self.lines: dict[int, Line] = {}
        self.peers = [
            [
                (nic, int(peer))
                for nic in range(self.nics)
                for peer in rng.choice(np.delete(np.arange(self.hosts), host), self.edges, replace=False)
            ]
            for host in range(self.hosts)
        ]

    def run(self, seconds: int) -> None:
        """Rounds."""
        for _ in range(seconds):
            self.second += 1
            now = _BEGIN_NS + self.second * _NS
            for host, peers in enumerate(self.peers):
                names = tuple(EdgeName(f"rail{nic}", f"h{peer:02d}", f"rail{nic}") for nic, peer in peers)
                fits = [
                    self._fit(now, host, nic, peer, number)
                    for number, (nic, peer) in enumerate(peers)
                    if (host, nic) not in self.dead and (peer, nic) not in self.dead
                ]
                info = HostInfo(1, "", (), names, "none")
                report = RoundReport(
                    PROTOCOL, f"h{host:02d}", 1, 1, now, pack_edges(fits), self.lines.get(host), None, "", 0, info
                )  # fmt: skip
                self.fleet.report(report, float(self.second))
            self.fleet.solve_round(self.second + 0.1)
            for host in range(self.hosts):
                line = self.fleet.roster.members[f"h{host:02d}"].line
                assert line is not None
                self.lines[host] = line

    def _fit(self, now: int, host: int, nic: int, peer: int, number: int) -> EdgeReport:
        # Half of what packets one way wait more than the other way.
        most = np.array([self.queue_ns.get((end, nic), 0.0) / 2 for end in (peer, host)])
        waited = most * self.rng.uniform(0.6, 1.0, 2)
        off = (
            self.bias[peer, nic]
            - self.bias[host, nic]
            + self.clock_ns.get(peer, 0)
            - self.clock_ns.get(host, 0)
        )
        off += self.rng.normal(0, _NOISE_NS) + waited[0] - waited[1]
        sigma, hides = round(20 + most.sum() / 50), round(_HIDES_NS + most.sum())
        return EdgeReport(now, round(off), 0, 0, sigma, 1_000, hides, number, 0)

    def error_ns(self) -> NDArray[np.float64]:
        """Pair errors of all hosts."""
        error = np.array([line.correction_ns for _, line in sorted(self.lines.items())], np.float64)
        apart: NDArray[np.float64] = np.abs(error[:, np.newaxis] - error)[np.triu_indices(self.hosts, 1)]
        return apart

    def reported(self) -> NDArray[np.float64]:
        """What is known of the biases, as `bias`; it has no mean."""
        reported = np.zeros((self.hosts, self.nics))
        for host in range(self.hosts):
            for device, bias_ns in self.fleet.nic_bias_ns(self.fleet.roster.members[f"h{host:02d}"]).items():
                reported[host, int(device.removeprefix("rail"))] = bias_ns
        return reported


def test_two_edges_a_nic_are_as_good_as_ten() -> None:
    """16 edges a host with the biases taken off, against 80 without: the error that is left is the mean bias of a
    host's NICs, which nobody can see."""
    few, plain = _NicFleet(edges=1), _NicFleet(edges=1, learns=False)
    many = _NicFleet(edges=5, learns=False)
    few.run(70)
    plain.run(3)
    many.run(3)
    mean = few.bias.mean(axis=1)
    unseen = np.median(np.abs(mean[:, np.newaxis] - mean)[np.triu_indices(few.hosts, 1)])
    error = np.median(few.error_ns())
    assert error < 1.25 * unseen
    assert error < 0.85 * np.median(plain.error_ns())
    assert error < 1.15 * np.median(many.error_ns())
    true = few.bias - mean[:, np.newaxis]
    assert np.sqrt(np.mean(np.square(few.reported() - true))) < 100
    assert not plain.reported().any()
    worst = few.fleet.worst_nics()
    sizes = [abs(bias_ns) for _, _, bias_ns in worst]
    assert len(worst) == 20
    assert sizes[0] == pytest.approx(np.abs(few.reported()).max())
    assert sizes == sorted(sizes, reverse=True)


def test_a_rail_that_dies_moves_nobody() -> None:
    """The others' mean is another; what is known of it stays."""
    moved = []
    for learns, seconds in (True, 60), (False, 3):
        fleet = _NicFleet(hosts=12, nics=4, edges=2, learns=learns)
        fleet.run(seconds)
        before = {host: line.correction_ns for host, line in fleet.lines.items()}
        fleet.dead = {(host, 1) for host in range(fleet.hosts)}
        fleet.run(3)
        moves = np.array([fleet.lines[host].correction_ns - before[host] for host in before])
        moved.append(float(np.sqrt(np.mean(np.square(moves - np.median(moves))))))
    assert moved[0] < 25
    assert moved[1] > 2 * moved[0]


@pytest.mark.parametrize("nics", [1, 2])
def test_bounds_and_residuals_are_of_what_was_measured(nics: int) -> None:
    """A NIC that is off by more than its edges hide remains an outlier, whatever is learned; one NIC has no bias."""
    fleet = _NicFleet(hosts=8, nics=nics, edges=3)
    fleet.run(8)
    assert (nics == 1) == (fleet.fleet.nic_biases.numbers is None)
    fleet.bias[2, 0] += 30_000
    fleet.run(20)
    assert np.abs(fleet.reported()).max() <= 2_000
    if nics == 2:
        assert fleet.fleet.roster.members["h02"].outliers >= 3
        assert fleet.lines[2].bound_ns > 10_000


def test_an_incast_makes_no_clock_suspect_and_moves_nobody() -> None:
    """All packets to one NIC of a host wait for milliseconds. That is no bias of its stamps, which would have all
    other edges of its host contradict the fleet. A clock that is stepped meanwhile is still named.
    """
    fleet = _NicFleet(hosts=4, nics=2, edges=3)
    fleet.run(40)
    biases, before = fleet.reported(), [line.correction_ns for line in fleet.lines.values()]
    fleet.queue_ns[2, 0] = 8e6
    for _ in range(100):
        fleet.run(1)
        assert fleet.fleet.suspects() == {}
    moved = np.array([line.correction_ns for line in fleet.lines.values()]) - before
    assert np.ptp(moved) < 500
    assert np.abs(fleet.reported() - biases).max() < 200
    fleet.clock_ns[2] = 20_000_000
    fleet.run(5)
    assert set(fleet.fleet.suspects()) == {"h02"}
