"""The plugin through every version of the interface, by numbered messages of random sizes and content.

All pairs of values of two factors occur; FABRICPULSE_CONFORMANCE=full runs all 5,880 combinations instead, and
FABRICPULSE_CONFORMANCE=random:COUNT:SEED that many of them.
"""

import itertools
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

import pytest
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

pytestmark = pytest.mark.root

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One way to use the plugin."""

    abi: str
    nics: int
    channels: int
    sizes: str  # of messages, bytes: least-most
    depth: int  # messages under way
    order: str  # of connect and accept

    @property
    def most(self) -> int:
        """Bytes of the longest message."""
        return int(self.sizes.split("-")[1])

    def fits(self) -> bool:
        """Whether the buffers of one rank stay within 128 MiB: to fill and to compare them is most of the work."""
        return 2 * self.channels * self.depth * self.most <= 128 * MIB

    def arguments(self) -> list[str]:
        """Of fabricpulse-ring, some 16 MiB in all, but at least two messages a channel."""
        rounds = max(2, min(400, 16 * MIB // max(self.most, 1) // self.channels))
        return [
            *("--abi", self.abi, "--channels", str(self.channels), "--depth", str(self.depth)),
            *("--stream", self.sizes, "--order", self.order, "--rounds", str(rounds)),
        ]

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))


FACTORS: dict[str, list[object]] = {
    "abi": ["v6", "v7", "v8", "v9", "v10", "v11", "v12"],
    "nics": [1, 2, 3, 8],
    "channels": [1, 2, 5, 16],
    "sizes": ["0-0", "0-64", "1-16385", f"65535-{MIB + 1}", f"0-{4 * MIB}", f"{16 * MIB}-{16 * MIB}"],
    "depth": [1, 4, 8, 32],
    "order": ["turns", "one-by-one", "backwards"],
}


def every_case() -> list[Case]:
    """All combinations that fit into memory."""
    cases = (Case(*values) for values in itertools.product(*FACTORS.values()))  # type: ignore[arg-type]
    return [case for case in cases if case.fits()]


def pairs(case: Case) -> set[tuple[int, object, int, object]]:
    """Which pairs of values a case covers."""
    values = astuple(case)
    return {(i, values[i], j, values[j]) for i, j in itertools.combinations(range(len(values)), 2)}


def pairwise() -> list[Case]:
    """A few cases that cover every pair which any case covers: greedy, the same each time."""
    covers = {case: pairs(case) for case in every_case()}
    cases = list(covers)
    missing = set().union(*covers.values())
    chosen: list[Case] = []
    dice = random.Random(1)
    while missing:
        needed = min(missing, key=str)
        some = [case for case in dice.sample(cases, 1000) if needed in covers[case]]
        some = some or [case for case in cases if needed in covers[case]]
        best = max(some, key=lambda case: len(covers[case] & missing))
        chosen.append(best)
        missing -= covers[best]
    return chosen


def wanted(text: str) -> list[Case]:
    """The cases that FABRICPULSE_CONFORMANCE asks for."""
    kind, *numbers = text.split(":")
    if kind == "full":
        return every_case()
    if kind == "random":
        count, seed = map(int, numbers)
        return random.Random(seed).sample(every_case(), count)
    return pairwise()


CASES = wanted(os.environ.get("FABRICPULSE_CONFORMANCE", ""))


@pytest.fixture(scope="module")
def conformance_lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=8) as lab:
        yield lab


def names(count: int) -> str:
    return ",".join(f"rail{number}" for number in range(count))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_message_once_and_as_it_was_sent(conformance_lab: Lab, case: Case) -> None:
    """Whatever the version, the NICs, the connections, the sizes and the order of the calls."""
    ring = Ring(conformance_lab, 2, case.arguments(), env={"FABRICPULSE_NICS": names(case.nics)})
    for summary in ring.summaries(60):
        assert summary["double_or_lost"] == 0
        assert summary["rounds"] == int(case.arguments()[-1]) * case.channels
        assert summary["abi"] == case.abi


def test_all_pairs_are_covered() -> None:
    """The reduced matrix leaves out no pair of values that fits into memory."""
    every = set().union(*(pairs(case) for case in every_case()))
    assert set().union(*(pairs(case) for case in pairwise())) == every
    assert {field.name for field in fields(Case)} == set(FACTORS)


@pytest.mark.parametrize(
    ("abi", "sizes"),
    [
        *itertools.product(("v6", "v12"), ("0-64", f"{4 * MIB}-{4 * MIB}")),
        *((abi, f"{MIB}-{MIB}") for abi in FACTORS["abi"]),
    ],
)
def test_abort_mid_flight(conformance_lab: Lab, abi: str, sizes: str) -> None:
    """All connections closed with messages under way: no call fails, nothing hangs, nothing wrong was delivered."""
    arguments = ["--abi", abi, "--channels", "4", "--depth", "4", "--stream", sizes, "--abort-ms", "100"]
    ring = Ring(conformance_lab, 2, arguments, env={"FABRICPULSE_NICS": names(2)})
    for summary in ring.summaries(20):
        assert summary["double_or_lost"] == 0
        assert summary["bytes"] > 0


@pytest.mark.parametrize(("rounds", "depth"), [(37, 4), (3, 8)])
def test_an_all_to_all_ends_after_its_rounds(conformance_lab: Lab, rounds: int, depth: int) -> None:
    """Also when more rounds may be under way than there are; every word is compared."""
    arguments = ["--pattern", "all-to-all", "--bytes", "256K", "--rounds", str(rounds), "--depth", str(depth)]
    ring = Ring(conformance_lab, 2, arguments, env={"FABRICPULSE_NICS": names(2)})
    for summary in ring.summaries(30):
        assert (summary["rounds"], summary["bytes"]) == (rounds, rounds * 256 * 1024)


def test_a_skewed_rank_sends_the_hot_one_more(conformance_lab: Lab) -> None:
    """And nobody else; both ranks end after the same round, of which only one has the signal."""
    arguments = ["--pattern", "all-to-all", "--bytes", "64K", "--hot", "1", "--skew", "4"]
    ring = Ring(conformance_lab, 2, arguments, env={"FABRICPULSE_NICS": names(2)})
    ring.wait_running()

    def blocks(rank: int) -> float:
        """What it received in a round lately, in blocks."""
        *_, first, _, _, last = ring.ranks[rank].lines("interval")
        received = sum(entry["bytes"] for entry in ring.ranks[rank].lines("interval")[-3:])
        return float(received / (64 * 1024) / max(last["rounds"] - first["rounds"], 1))

    ring.until(lambda: all(len(rank.lines("interval")) > 4 for rank in ring.ranks))
    assert blocks(1) < 1.5
    ring.ranks[0].process.send_signal(signal.SIGRTMIN)
    ring.until(lambda: blocks(1) > 3)
    assert blocks(0) < 1.5
    ring.ranks[0].process.send_signal(signal.SIGRTMIN)
    ring.until(lambda: blocks(1) < 1.5)
    ring.ranks[1].process.terminate()
    first, second = ring.summaries()
    assert first["rounds"] == second["rounds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pattern", "star"), "--pattern star: ring or all-to-all"),
        (("--hot", "1"), "--hot R needs --pattern all-to-all, and R < N"),
        (("--pattern", "all-to-all", "--hot", "2"), "--hot R needs --pattern all-to-all, and R < N"),
        (("--pattern", "all-to-all", "--stream", "0-64"), "--pattern is about collectives, not --stream"),
        (("--skew", "65"), "--skew must be 1 to 64"),
    ],
)
def test_patterns_that_do_not_exist(arguments: tuple[str, ...], message: str) -> None:
    done = subprocess.run(
        ["fabricpulse-ring", "--rank", "0", "--size", "2", "--rendezvous", "127.0.0.1:1", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (2, f"fabricpulse-ring: {message}\n")
