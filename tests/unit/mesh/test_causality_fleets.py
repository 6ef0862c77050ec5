"""Fleets in virtual time, with queues of every kind: jumps of clocks are reported, queues are not taken for them."""

import numpy as np
import pytest
from tests.unit.mesh.congested_fleet import HIDDEN_S, CongestedFleet, standing_queue

JUMP_S, END_S = 45.3, 54.0


def random_fleet(seed: int) -> tuple[CongestedFleet, np.random.Generator]:
    """3 to 7 hosts on one or two rails, loads of 0 to 90 %, standing queues; often a NIC is throttled, and the queue of
    one direction drains as that of the other fills, by the same level.
    """
    rng = np.random.default_rng(seed)
    hosts, rails = int(rng.integers(3, 8)), int(rng.integers(1, 3))
    fleet = CongestedFleet(rng, hosts, rails, float(rng.choice([0.05, 0.1])))
    for queue in (*fleet.inbound.values(), *fleet.outbound.values()):
        queue.load = float(rng.choice([0.0, 0.3, 0.8, 0.9]))
        queue.service_ns = float(rng.choice([100, 1_200, 12_000]))
        if rng.random() < 0.3:
            begin_s, level_ns = rng.uniform(2, 50), 10 ** rng.uniform(4.3, 7)
            queue.standing = standing_queue(
                rng, begin_s, begin_s + rng.uniform(1, 35), level_ns, float(rng.choice([0.02, 0.3, 1.0]))
            )
    if rng.random() < 0.7:
        host, level_ns, swing = int(rng.integers(hosts)), 10 ** rng.uniform(4.5, 7), rng.choice([0.001, 0.3])
        queues = [fleet.inbound[host, 0], fleet.outbound[host, 0]]
        rng.shuffle(queues)
        begin_s = float(rng.choice([32.0, 20.0]))
        for queue, (first_s, last_s) in zip(queues, ((begin_s, 44.0), (43.8, 60.0)), strict=True):
            queue.standing = standing_queue(rng, first_s, last_s, level_ns, float(swing))
    return fleet, rng


def check_no_false_contradiction(seed: int) -> None:
    """No clock jumps."""
    fleet, _ = random_fleet(seed)
    fleet.run(END_S, {}, 0.0)
    assert [host.contradicted_s for host in fleet.hosts] == [[] for _ in fleet.hosts], seed
    assert not fleet.wrong


def check_jump(seed: int) -> None:
    """One clock jumps, or two by the same in a fleet of five and more: they are reported, and no other one; a page
    that is wrong for longer than trains take to come at their floor says so by its bound.
    """
    fleet, rng = random_fleet(seed)
    jumped = [0, 1] if len(fleet.hosts) >= 5 and seed % 2 else [int(rng.integers(len(fleet.hosts)))]
    by_ns = float(rng.choice([-1, 1])) * 10 ** rng.uniform(4.7, 7)
    fleet.run(END_S, {JUMP_S: dict.fromkeys(jumped, by_ns)}, grace_s=2.5)
    for number, host in enumerate(fleet.hosts):
        assert number in jumped or not host.contradicted_s, (seed, number)
        assert all(s > JUMP_S for s in host.contradicted_s), (seed, number)
    assert not fleet.wrong, (seed, fleet.wrong[:3])


@pytest.mark.parametrize("seed", [1_000, 1_001, 3_008, 3_014])
def test_queues_are_no_jumps(seed: int) -> None:
    """Whatever drains while something else fills."""
    check_no_false_contradiction(seed)


@pytest.mark.parametrize("seed", [2_000, 2_001, 4_016, 4_038])
def test_jumps_beside_queues_are_reported_or_covered(seed: int) -> None:
    """50 us to 10 ms."""
    check_jump(seed)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_many_fleets() -> None:
    """200 more of each."""
    for seed in range(200):
        check_no_false_contradiction(3_000 + seed)
        check_jump(4_000 + seed)


@pytest.mark.parametrize("seed", range(4))
def test_an_idle_fleet_tells_within_three_trains(seed: int) -> None:
    """Two trains of each direction; what the peer has received comes one later. 20 us to 10 ms."""
    rng = np.random.default_rng(seed)
    fleet = CongestedFleet(rng, int(rng.integers(3, 6)), 1, 0.1)
    host, by_ns = 1, float(rng.choice([-1, 1])) * 10 ** rng.uniform(4.31, 7)
    fleet.run(JUMP_S + 2, {JUMP_S: {host: by_ns}}, grace_s=3 * fleet.interval_s + HIDDEN_S)
    assert not fleet.wrong
    assert [len(h.contradicted_s) for h in fleet.hosts] == [int(n == host) for n in range(len(fleet.hosts))]
