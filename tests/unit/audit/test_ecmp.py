"""Source ports of a way beside one another."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.audit.model import Measurement
from fabricpulse.audit.node.wire import PortCount, Received, TransferResult
from fabricpulse.audit.pair_tests.ecmp import MOST_REPORTED, ecmp_findings, evaluate_ports
from fabricpulse.audit.pair_tests.path_tests import PathDirection
from fabricpulse.audit.pair_tests.transfer_tests import Transferred

WAY = PathDirection(("h0", "e"), ("h1", "e"), "10.0.0.2", 9000, "rail0", "10.0.0.1")
FIRST, EACH = 49152, 125


def swept(
    lost: dict[int, int],
    late_ns: dict[int, int] | None = None,
    *,
    ports: int = 16,
    overflowed: int = 0,
    dropped: int = 0,
    to: int = 9617,
) -> Transferred:
    counts = tuple(
        PortCount(FIRST + p, EACH - lost.get(p, 0), -(10**15) + 7000 * (p % 3) + (late_ns or {}).get(p, 0))
        for p in range(ports)
    )
    sent = {FIRST + p: EACH for p in range(ports)}
    received = Received(sum(c.datagrams for c in counts), overflowed, by_port=counts, host_dropped=dropped)
    return Transferred(WAY, TransferResult(ports * EACH, received, 1e9, sent_by_port=sent), udp_port=to)


def judged(*tries: Transferred) -> dict[str, tuple[bool | None, str]]:
    return {m.kind: (m.ok, m.detail) for m in evaluate_ports(tries)}


@settings(deadline=None)
@given(st.sets(st.integers(0, 15), min_size=1, max_size=8), st.integers(20, EACH))
def test_the_ports_that_lose_are_named(bad: set[int], lost: int) -> None:
    """Any of them, up to half; the delay of what arrives is not touched."""
    reported = ", ".join(str(FIRST + p) for p in sorted(bad)) + " to 9617"
    found = judged(swept(dict.fromkeys(bad, lost)))
    assert found["ecmp_loss"] == (False, reported)
    assert found["ecmp_delay"] == (True, "")


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from([0.002, 0.02, 0.1, 0.3]), st.sampled_from([12, EACH]))
def test_a_cable_that_loses_by_chance_blames_no_path(seed: int, rate: float, each: int) -> None:
    """Every port loses at the same rate; with few datagrams some lose none and others several."""
    noise = random.Random(seed)
    lost = {p: EACH - each + sum(noise.random() < rate for _ in range(each)) for p in range(16)}
    one = swept(lost)
    sent = dict.fromkeys(one.result.sent_by_port, each)
    few = Transferred(WAY, msgspec.structs.replace(one.result, sent_by_port=sent), udp_port=9617)
    found = judged(few)
    assert found["ecmp_loss"][0] is not False
    assert found["ecmp_delay"][0] is (None if each == 12 else True)


def test_what_all_ports_lose_is_no_matter_of_paths() -> None:
    """A lossy cable of the host; nor is one datagram of a port, nor what the receiver had no room for."""
    assert judged(swept(dict.fromkeys(range(16), 9)))["ecmp_loss"] == (None, "")
    assert judged(swept({3: 2, 7: 1}))["ecmp_loss"] == (True, "")
    assert judged(swept({3: 50}, overflowed=50))["ecmp_loss"] == (None, "")
    assert judged(swept({1: 50}, ports=3))["ecmp_loss"] == (None, "")


def test_what_was_lost_once_or_by_a_host_is_no_matter_of_paths() -> None:
    """A burst of one port that is not lost again; drops of the hosts themselves, of which each port has the benefit;
    what a path loses beyond them, each time, is reported."""
    burst = swept({3: 40})
    assert judged(burst)["ecmp_loss"][0] is False
    assert judged(burst, swept({}))["ecmp_loss"] == (True, "")
    assert judged(swept({3: 40}, dropped=40))["ecmp_loss"] == (True, "")
    both = judged(swept({3: 40}, dropped=10), swept({3: 30, 5: 10}, dropped=10))
    assert both["ecmp_loss"] == (False, f"{FIRST + 3} to 9617")


@given(st.sets(st.integers(0, 15), min_size=1, max_size=11))
def test_the_ports_that_are_late_are_named_without_fleet_time(bad: set[int]) -> None:
    """Clocks that differ by eleven days differ so for all ports."""
    late = judged(swept({}, dict.fromkeys(bad, 400_000)))["ecmp_delay"]
    assert late == (False, ", ".join(str(FIRST + p) for p in sorted(bad)) + " to 9617")


def test_a_port_that_is_late_once_is_not_late() -> None:
    """A busy host; the ports of a second test to another port take other paths, and stand for themselves."""
    assert judged(swept({}, {4: 400_000}), swept({}))["ecmp_delay"] == (True, "")
    both = judged(swept({4: 40}), swept({}, to=9999))["ecmp_loss"]
    assert both == (False, f"{FIRST + 4} to 9617")


def test_a_transfer_of_an_older_agent_says_nothing() -> None:
    """It has no counts by port."""
    assert evaluate_ports([Transferred(WAY, TransferResult(2000, Received(2000), 1e9))]) == []


def test_findings_are_bounded_and_say_how_many() -> None:
    """A spine that loses is in hundreds of ways: the worst are named, and the number of all."""
    many = [
        Measurement("ecmp_loss", "r", f"h{i}", "e", "x", "e", i / 1000, False, detail="49152 to 9617")
        for i in range(100)
    ]
    found = ecmp_findings([*many, Measurement("ecmp_loss", "r", "y", "e", "x", "e", 0, True)])
    each = found[:MOST_REPORTED]
    assert [f.suspects for f in each] == [(f"h{i}", "x") for i in range(99, 99 - MOST_REPORTED, -1)]
    assert all("100 ways" in f.summary and "49152" in f.summary for f in each)
    # Hosts of the others are no better, and none is accused.
    rest = {f"h{i}" for i in range(100 - MOST_REPORTED)}
    assert {host for f in found[MOST_REPORTED:] for host in f.suspects} == rest
    assert {f.host for f in found} == {""}
    assert all(len(f.suspects) <= 64 for f in found)
