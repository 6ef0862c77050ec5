"""The head of the chain of those who wait, over random rings, trees and meshes."""

import random

import pytest

from fabricpulse.why.facts import Wait
from fabricpulse.why.hang import find_heads, graph_lines


def wait(rank: int, peer: int, what: str, age_s: float = 10.0) -> Wait:
    return Wait(f"h{rank}", rank, f"h{peer}", peer, what, age_s)


def ring(size: int, rng: random.Random) -> list[tuple[int, int]]:
    order = rng.sample(range(size), size)
    return [(order[i], order[(i + 1) % size]) for i in range(size)]


def tree(size: int, rng: random.Random) -> list[tuple[int, int]]:
    order = rng.sample(range(size), size)
    links = [(order[i], order[(i - 1) // 2]) for i in range(1, size)]
    return links + [(b, a) for a, b in links]


def mesh(size: int, _: random.Random) -> list[tuple[int, int]]:
    return [(a, b) for a in range(size) for b in range(size) if a != b]


def hang(links: list[tuple[int, int]], late: set[int]) -> list[Wait]:
    """What plugins show when these ranks have not entered a collective: each other one waits for its peers, on both
    sides, as far as those are late or wait themselves; a late one has no request."""
    waits = []
    for sender, receiver in links:
        if receiver not in late:
            waits.append(wait(receiver, sender, "peer_send"))
        if sender not in late:
            waits.append(wait(sender, receiver, "peer_receive"))
    return waits


@pytest.mark.parametrize("topology", [ring, tree, mesh])
@pytest.mark.parametrize("seed", range(70))
def test_the_late_rank_is_named(topology, seed: int) -> None:
    """A rank that has not entered the collective, in any place of any topology, is the only head; not the network."""
    rng = random.Random(seed)
    size = rng.randint(3, 12)
    late = rng.randrange(size)
    waits = hang(topology(size, rng), {late})
    # Exporters show the few oldest of a host only.
    rng.shuffle(waits)
    heads = find_heads(waits)
    assert [(h.rank, h.network) for h in heads] == [(late, False)]


@pytest.mark.parametrize("topology", [ring, tree, mesh])
@pytest.mark.parametrize("seed", range(40))
def test_a_dead_link_is_named(topology, seed: int) -> None:
    """Data under way on one link: it is the head, with both ends, whoever else waits for whom."""
    rng = random.Random(1000 + seed)
    size = rng.randint(3, 12)
    links = topology(size, rng)
    sender, receiver = rng.choice(links)
    waits = [wait(b, a, "peer_send", 9.0) for a, b in links]
    waits.append(wait(sender, receiver, rng.choice(["delivery", "lane"]), 10.0))
    rng.shuffle(waits)
    heads = find_heads(waits)
    assert [(h.rank, h.peer, h.network) for h in heads] == [(sender, receiver, True)]


def test_both_ends_of_a_dead_link_are_one_head() -> None:
    """The sender's `delivery` and the receiver's `arrival` are the same link."""
    heads = find_heads([wait(1, 2, "delivery"), wait(2, 1, "arrival")])
    assert [(h.rank, h.peer) for h in heads] == [(1, 2)]


def test_a_part_that_arrived() -> None:
    """Only the receiver speaks: sender first all the same."""
    assert [(h.rank, h.peer) for h in find_heads([wait(2, 1, "arrival")])] == [(1, 2)]


def test_a_deadlock() -> None:
    """A circle without data under way is the program's: nobody is called the network."""
    heads = find_heads([wait(0, 1, "peer_send"), wait(1, 0, "peer_send", 20.0)])
    assert [(h.rank, h.network) for h in heads] == [(1, None)]
    assert "different collectives" in heads[0].reason


def test_silent_processes_first() -> None:
    """What a stopped process says of itself is old; it is the head."""
    waits = [wait(0, 1, "delivery"), wait(1, 0, "peer_send"), wait(2, 1, "peer_send")]
    assert [(h.rank, h.network) for h in find_heads(waits, {("h1", 1)})] == [(1, False)]


def test_unknown_ranks() -> None:
    """Without ranks, hosts are distinguished."""
    waits = [Wait("h1", None, "h0", None, "peer_send", 9.0), Wait("h2", None, "h1", None, "peer_send", 9.0)]
    assert [h.where for h in find_heads(waits)] == ["a rank on h0"]


def test_nothing_waits() -> None:
    """No head without a chain."""
    assert find_heads([]) == []


def test_lines() -> None:
    """The graph names both ends, and what is waited for."""
    line = graph_lines([Wait("h0", 0, "h1", 1, "delivery", 7.25)])
    assert line == ["rank 0 (h0) -> rank 1 (h1): sent and not acknowledged, 7.2 s"]
    known = Wait("h0", 0, "h1", 1, "delivery", 7.25, "2", 4096)
    assert graph_lines([known]) == [line[0] + ", 4096 bytes missing, channel 2"]
    assert find_heads([known])[0].reason.endswith("for 7 s, 4096 bytes missing, channel 2")
