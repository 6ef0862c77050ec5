"""What transfers between NICs mean."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.audit.paths import nics

from fabricpulse.audit.command import command
from fabricpulse.audit.fleet.paths import merge, unreachable
from fabricpulse.audit.fleet.transfers import recalled
from fabricpulse.audit.model import Measurement
from fabricpulse.audit.node.wire import Received, TransferResult
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import (
    PathDirection,
    PathDirections,
    Rail,
    further_tests,
    path_findings,
)
from fabricpulse.audit.pair_tests.transfer_tests import Transferred, Transfers, again, evaluate

RATE = 10e9


def transferred(
    source: Nic,
    target: Nic,
    *,
    bps: float | None = RATE,
    lost: int = 0,
    owd_ns: int | None = 10_000,
    bound_ns: int = 1_000,
    overflowed: int = 0,
    pieces: int | None = None,
    dropped: int = 0,
    starved: float = 0.0,
    path_bps: float | None = None,
    stolen: float = 0.0,
    busy: float = 0.0,
) -> Transferred:
    way = PathDirection(source, target, "10.0.0.2", 9000, "rail0", "10.0.0.1")
    received = Received(
        2000 - lost - overflowed, overflowed, owd_ns, bound_ns, host_dropped=dropped, pieces=pieces
    )
    result = TransferResult(2000, received, bps, starved=starved, stolen=stolen, path_bps=path_bps, busy=busy)
    return Transferred(way, result)


def reported(done: list[Transferred], rate: float = RATE) -> set[tuple[str, str, Nic, str]]:
    measured, _ = evaluate(done, rate, {})
    return {
        (f.check, f.evidence["blame"], (f.host, f.subject), f.summary.split(" (")[0])
        for f in path_findings(measured)
    }


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 8), st.data())
def test_a_slow_lossy_or_late_nic_is_named_and_nobody_else(hosts: int, data: st.DataObject) -> None:
    """One NIC of a fleet, in one direction or both, at half rate, or losing 1 %, or 200 us late; the others differ by
    noise."""
    fleet = nics(hosts)
    bad = data.draw(st.sampled_from(fleet))
    side = data.draw(st.sampled_from(["sends", "receives", "both"]))
    change: Any
    kind, change = data.draw(
        st.sampled_from(
            [
                ("path-bandwidth", {"bps": RATE / 2}),
                ("path-loss", {"lost": 20}),
                ("path-delay", {"owd_ns": 210_000}),
            ]
        )
    )
    noise = data.draw(st.randoms())
    done = []
    for a, b in itertools.permutations(fleet, 2):
        hit = (a == bad and side in ("sends", "both")) or (b == bad and side in ("receives", "both"))
        usual: dict[str, Any] = {
            "bps": RATE * noise.uniform(0.9, 1.0),
            "owd_ns": int(noise.uniform(10_000, 30_000)),
            "lost": noise.randrange(2),
        }
        done.append(transferred(a, b, **{**usual, **(change if hit else {})}))
    found = reported(done)
    assert {(check, blamed, nic) for check, blamed, nic, _ in found} == {(kind, "nic", bad)}
    words = {"sends": "that it sends", "receives": "that it is sent", "both": "between"}
    assert all(words[side] in text for *_, text in found)


@given(st.integers(4, 8).flatmap(lambda good: st.tuples(st.just(good), st.integers(1, good))), st.randoms())
@settings(deadline=None, max_examples=15)
def test_half_of_a_fleet_may_be_slow(counts: tuple[int, int], noise: random.Random) -> None:
    """The others show what the network carries. One that has met no good NIC is not distinguished from those that it
    met.
    """
    good, slow = counts
    fleet = nics(good + slow)
    bad = set(noise.sample(fleet, slow))
    rounds = plan_rounds([""] * len(fleet)).rounds
    pairs = [(fleet[a], fleet[b]) for one in rounds for a, b in one]
    pairs += itertools.combinations([nic for nic in fleet if nic not in bad], 2)

    def measured(ways: Iterable[tuple[Nic, Nic]]) -> list[Transferred]:
        return [
            transferred(a, b, bps=RATE * noise.uniform(0.9, 1.0) * (0.5 if {a, b} & bad else 1.0))
            for a, b in ways
        ]

    done = measured(way for pair in dict.fromkeys(pairs) for way in (pair, pair[::-1]))
    done += measured(further_tests(evaluate(done, RATE, {})[0], "bandwidth"))
    assert {(blamed, nic) for _, blamed, nic, _ in reported(done)} == {
        ("nic", nic) for nic in bad if any(nic in pair and set(pair) - bad for pair in pairs)
    }


def test_a_fleet_that_is_slower_than_asked_is_compared_with_itself() -> None:
    """All reach 40 of 100 Gb/s: nobody is slow, and the note says what was reached."""
    done = [transferred(a, b, bps=4e10) for a, b in itertools.permutations(nics(4), 2)]
    measured, notes = evaluate(done, 1e11, {})
    assert all(m.ok for m in measured if m.kind == "bandwidth")
    assert any("40 of 100 Gb/s" in note for note in notes)


def test_what_differs_by_chance_blames_nobody() -> None:
    """Processors are what limits a fleet: ways reach anything from 2 to 4 of 10 Gb/s. The slowest is no fault; one
    that stands far below all others is."""
    fleet = nics(6)
    noise = random.Random(1)
    done = [transferred(a, b, bps=noise.uniform(2e9, 4e9)) for a, b in itertools.permutations(fleet, 2)]
    measured, notes = evaluate(done, RATE, {})
    assert {m.ok for m in measured if m.kind == "bandwidth"} == {True, None}
    assert again(measured) == []
    assert any("good ones differ" in note for note in notes)
    assert reported([*done[1:], transferred(fleet[0], fleet[1], bps=1e8)]) == {
        ("path-bandwidth", "path", ("", "h0 eth0 > h1 eth0"), "TCP is slow to h1 eth0")
    }


def test_a_short_test_that_exceeds_its_rate_hides_no_slow_nic() -> None:
    """Most reach what was asked for, some by chance a quarter more; one NIC sends at 40 %."""
    fleet = nics(4)
    done = [
        transferred(a, b, bps=RATE * (0.4 if a == fleet[2] else 1.25 if b == fleet[0] else 0.95))
        for a, b in itertools.permutations(fleet, 2)
    ]
    assert {(check, nic) for check, _, nic, _ in reported(done)} == {("path-bandwidth", fleet[2])}


def test_too_few_pairs_decide_nothing() -> None:
    """Two NICs at half of the rate: nobody can say that it is not the fleet's usual one. Loss needs no comparison."""
    a, b = nics(2)
    measured, notes = evaluate([transferred(a, b, bps=5e9, lost=100), transferred(b, a, bps=5e9)], RATE, {})
    assert {m.ok for m in measured if m.kind in ("bandwidth", "owd")} == {None}
    assert [m.ok for m in measured if m.kind == "loss"] == [False, True]
    assert any("too few" in note for note in notes)


def test_what_the_receiver_had_no_room_for_is_not_lost() -> None:
    """500 of 2,000 dropped by its own socket."""
    a, b = nics(2)
    measured, _ = evaluate([transferred(a, b, overflowed=500)], RATE, {})
    [loss] = [m for m in measured if m.kind == "loss"]
    assert (loss.value, loss.ok) == (0, True)


@pytest.mark.parametrize(
    ("sent", "came", "pieces", "overflowed", "ok"),
    [
        # A hundredth lost on the way, 2,000 pieces of 20 each in the socket; the largest piece was of 42.
        (1_000_000, 950_000, 2_000, 84_000, None),
        (1_000_000, 998_000, 2_000, 84_000, True),
        (1_000_000, 900_000, 100, 4_200, False),
        (1_000_000, 990_000, 0, 0, False),
        # More than were sent, and all that were sent.
        (1_000_000, 950_000, 40_000, 1_680_000, None),
        (2_000, 0, 2_000, 2_000, None),
    ],
)
def test_what_a_socket_had_no_room_for_hides_no_loss(
    sent: int, came: int, pieces: int, overflowed: int, ok: bool | None
) -> None:
    """Between the pieces that the kernel counts and as many of the largest; where both do not agree, nothing is
    known, which is said and tested again."""
    a, b = nics(2)
    way = PathDirection(a, b, "10.0.0.2", 9000, "rail0", "10.0.0.1")
    result = TransferResult(sent, Received(came, overflowed, pieces=pieces), loss_bps=RATE)
    measured, notes = evaluate([Transferred(way, result)], RATE, {})
    [loss] = [m for m in measured if m.kind == "loss"]
    assert loss.ok is ok
    assert any("too busy" in note for note in notes) is (ok is None)
    assert again(measured) == ([] if ok else [(a, b)])


def test_a_second_test_decides() -> None:
    """Bandwidth: the better of both; loss: of each; a transfer that was slow or lost something once names nobody."""
    fleet = nics(4)
    done = [transferred(a, b) for a, b in itertools.permutations(fleet, 2)]
    first = [transferred(fleet[0], fleet[1], bps=1e9, lost=4), *done[1:]]
    assert again(evaluate(first, RATE, {})[0]) == [(fleet[0], fleet[1])]
    assert reported([*first, transferred(fleet[0], fleet[1], lost=0)]) == set()


def test_delay_gives_clocks_the_benefit_of_their_bounds() -> None:
    """300 us late with a bound of 400 us is not late; before the past is no delay at all."""
    fleet = nics(4)
    done = [transferred(a, b) for a, b in itertools.permutations(fleet, 2)]
    doubtful = [*done[1:], transferred(fleet[0], fleet[1], owd_ns=310_000, bound_ns=400_000)]
    assert reported(doubtful) == set()
    wrong = evaluate([*done[1:], transferred(fleet[0], fleet[1], owd_ns=-500_000)], RATE, {})[0]
    assert [m.ok for m in wrong if m.kind == "owd" and m.value < 0] == [None]


def test_no_fleet_time_is_said() -> None:
    """Delay without clocks is unknown, never 0."""
    a, b = nics(2)
    measured, notes = evaluate([transferred(a, b, owd_ns=None)], RATE, {})
    assert not [m for m in measured if m.kind == "owd"]
    assert any("no fleet time" in note for note in notes)


def test_echoes_that_pass_the_second_time() -> None:
    """The way passes, and is reported as one that had failed; one that fails again stays failed."""
    first = [
        Measurement("connectivity", "r", "a", "e", "b", "e", 0, False),
        Measurement("connectivity", "r", "b", "e", "a", "e", 0, False),
    ]
    second = [
        Measurement("connectivity", "r", "a", "e", "b", "e", 1e-4, True),
        Measurement("connectivity", "r", "b", "e", "a", "e", 0, False),
    ]
    merged, recovered = merge(first, second)
    assert [(m.source_host, m.ok, m.attempts) for m in merged] == [("a", True, 2), ("b", False, 2)]
    assert recovered == [(("a", "e"), ("b", "e"))]
    assert unreachable(merged) == {(("b", "e"), ("a", "e")), (("a", "e"), ("b", "e"))}


def test_an_interrupted_run_is_recalled() -> None:
    """What it measured is judged with what is measured now, as one."""
    fleet = nics(4)
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * 4))
    ways = PathDirections({"rail0": rail}, [])
    done = [
        transferred(a, b, bps=RATE / 2 if fleet[2] in (a, b) else RATE, lost=7 * (a == fleet[1]))
        for a, b in itertools.permutations(fleet, 2)
    ]
    measured, _ = evaluate(done, RATE, {})
    half = [m for m in measured if m.source_host in ("h0", "h1")]
    rest = [one for one in done if one.way.source[0] not in ("h0", "h1")]
    gone = [Measurement("loss", "rail0", "h9", "eth0", "h0", "eth0", 0, True)]
    assert reported([*recalled([*half, *gone], ways, Transfers()), *rest]) == reported(done)


@pytest.mark.parametrize(
    ("lost", "ok"), [((4, 0), True), ((40, 0), True), ((4, 1), False), ((20, 30), False), ((1, 1), True)]
)
def test_what_was_tested_twice_is_recalled_as_such(lost: tuple[int, int], ok: bool) -> None:
    """A path loses when more than 0.1 % is missing of both tests together, and some of each; so before as after, and
    no way is tested a third time."""
    fleet = nics(2)
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * 2))
    measured, _ = evaluate([transferred(*fleet, lost=n) for n in lost], RATE, {})
    back = recalled(measured, PathDirections({"rail0": rail}, []), Transfers())
    for found in (measured, evaluate(back, RATE, {})[0]):
        [loss] = [m for m in found if m.kind == "loss"]
        assert (loss.value, loss.ok, loss.attempts) == (sum(lost) / 4000, ok, 2)
        assert again([loss]) == []


def test_what_a_busy_host_has_spoilt_is_not_known() -> None:
    """Datagrams that the hosts themselves have dropped, and TCP of a thread that had no processor, blame nobody, are
    tested once more, and are recalled so; what they do not explain is a fault all the same."""
    fleet = nics(4)
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * 4))
    good = [transferred(a, b) for a, b in itertools.permutations(fleet, 2)][1:]
    late = {"starved": 0.6, "bps": RATE / 2}
    for found, changes in (
        (set(), {"dropped": 50, "lost": 50}),
        ({"path-loss"}, {"dropped": 50, "lost": 100}),
        (set(), late),
        ({"path-bandwidth"}, late | {"starved": 0.2}),
        # What the kernel has seen of the path outweighs the rule of three.
        ({"path-bandwidth"}, late | {"path_bps": RATE / 2}),
        # A window or a queue is the host's own fault where it was not late.
        ({"path-bandwidth"}, late | {"starved": 0.0, "path_bps": RATE}),
        (set(), {"stolen": 0.5, "bps": RATE / 2}),
        # Processors that have nothing to spare, with a rate that is work for them; else others have them.
        (set(), {"busy": 0.97, "bps": RATE / 2}),
        ({"path-bandwidth"}, {"busy": 0.9, "bps": RATE / 2}),
        ({"path-bandwidth"}, {"busy": 1.0, "bps": 5e8}),
    ):
        bad = transferred(fleet[0], fleet[1], **changes)
        measured, notes = evaluate([bad, *good], RATE, {})
        assert {f.check for f in path_findings(measured)} == found
        assert again(measured) == [(fleet[0], fleet[1])]
        assert any("h0 to h1" in note for note in notes) == (not found)
        back = recalled(measured, PathDirections({"rail0": rail}, []), Transfers())
        again_measured, _ = evaluate(back, RATE, {})
        assert [(m.kind, m.ok, m.attempts) for m in again_measured] == [
            (m.kind, m.ok, m.attempts) for m in measured
        ]


def test_a_path_is_good_that_was_seen_to_carry_enough() -> None:
    """While its hosts were late: what it carried in the time that was its own counts. While they were not, what they
    reached: then it is the host that holds back."""
    fleet = nics(4)
    done = [transferred(a, b) for a, b in itertools.permutations(fleet, 2)][1:]
    for starved, ok, value in ((0.5, True, RATE), (0.0, False, RATE / 3)):
        slow = transferred(fleet[0], fleet[1], bps=RATE / 3, path_bps=RATE, starved=starved)
        measured, _ = evaluate([slow, *done], RATE, {})
        m = next(m for m in measured if (m.kind, m.source_host, m.target_host) == ("bandwidth", "h0", "h1"))
        assert (m.ok, m.value) == (ok, value)


def test_cost_is_a_bound() -> None:
    """24 ways of 0.5 s at 10 Gb/s and 2,000 jumbo frames."""
    assert Transfers(duplex=False).cost(24) == 24 * (625_000_000 + 18_000_000)
    assert Transfers().cost(24) == 24 * (2 * 625_000_000 + 18_000_000)


def test_what_is_sent_is_enough_to_be_measured() -> None:
    """Fewer streams at low rates, and less than one has is refused."""
    assert [Transfers(int(rate), 0.3).streams for rate in (10e9, 100e6, 20e6, 1e6)] == [4, 4, 1, 1]
    result = CliRunner().invoke(command, ["run", "--hosts", "h0", "--transfers", "--rate", "1"])
    assert (result.exit_code, "too little to be measured" in result.output) == (2, True)
