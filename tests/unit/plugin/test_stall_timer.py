"""When a lane on which nothing moves is taken for dead (nccl_plugin/src/core/stall_timer.h)."""

import subprocess
from collections.abc import Iterable

import pytest
from tests.fixtures.native.programs import native

pytestmark = pytest.mark.build

SILENT = "unacknowledged=40 acknowledged=7"


def looks(lines: Iterable[str]) -> list[str]:
    """What the timer finds at each look; 10 ms pass between two."""
    return [line.split()[0] for line in _said(lines)]


def suspected(lines: Iterable[str]) -> list[bool]:
    """Whether the lane is worth a closer look, after each look."""
    return [line.split()[2] == "1" for line in _said(lines)]


def _said(lines: Iterable[str]) -> list[str]:
    done = subprocess.run(
        [native("plugin_stall_timer")],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def looks_until(lines: list[str], finding: str, most: int = 300) -> int:
    """How many looks after the first one find nothing, then this; the last line holds on."""
    found = looks([*lines, *[""] * most])[len(lines) - 1 :]
    assert finding in found, found[:20]
    first = found.index(finding)
    assert set(found[:first]) <= {"well"}
    return first


def test_a_silent_lane_beside_lanes_that_are_answered_fails_soon() -> None:
    """25 ms, in looks of 10 ms."""
    assert looks_until([f"{SILENT} peer_ms=3"], "behind") == 3


@pytest.mark.parametrize(("rtt_ms", "after"), [(0, 1), (4, 1), (5, 1), (10, 2), (15, 3), (500, 4)])
def test_a_silence_is_suspect_only_beyond_two_round_trips(rtt_ms: int, after: int) -> None:
    """From 8 ms, where round trips are short, to 32 ms: asking the siblings costs the host that is slow."""
    found = suspected([f"{SILENT} rtt_ms={rtt_ms}"] + [""] * 6)
    assert found.index(True) == after


def test_a_silent_lane_alone_gets_more_time() -> None:
    """80 ms: the peer may be what does not answer."""
    assert looks_until([SILENT], "silent") == 8


def test_the_least_is_what_was_asked_for() -> None:
    """FABRICPULSE_STALL_MS is a lower bound of both timers."""
    assert looks_until([f"{SILENT} peer_ms=3 least_ms=70"], "behind") == 7
    assert looks_until([f"{SILENT} least_ms=500"], "silent") == 50


@pytest.mark.parametrize(("chunk", "finding", "unasked"), [("", "silent", 8), ("chunk=5", "behind", 5)])
def test_an_answer_that_is_due_is_waited_for_as_an_acknowledgement(
    chunk: str, finding: str, unasked: int
) -> None:
    """So little is under way that the peer's kernel may put off its acknowledgement. Once its process, asked on the
    lane too, has spoken elsewhere, it would have come with the answer; not if the path carries others, or the process
    is silent."""
    little = f"unacknowledged=1 few=1 acknowledged=7 {chunk}"
    assert looks_until([f"{little} peer_ms=3"], finding) == unasked
    assert looks_until([f"{little} peer_ms=3 answer_due=1"], "behind") == 3
    assert looks_until([f"{little} peer_ms=3 answer_due=1 path_ms=3"], "silent") == 8
    assert looks_until([f"{little} peer_ms=1000 answer_due=1"], "silent") == 8


def test_a_lane_whose_path_carries_others_has_lost_packets() -> None:
    """What TCP mends by itself; only the long timer holds."""
    assert looks_until([f"{SILENT} peer_ms=3 path_ms=3"], "silent") == 8


def test_an_answer_before_the_silence_proves_nothing() -> None:
    """A sibling that fell silent with the lane is no evidence against it."""
    assert "behind" not in looks([f"{SILENT} peer_ms={10 * n}" for n in range(1, 8)])


def test_acknowledgements_start_it_anew() -> None:
    """A lane of which something is acknowledged now and then is never silent, though some is always under way."""
    assert set(looks(f"unacknowledged=40 peer_ms=3 acknowledged={n // 3}" for n in range(60))) == {"well"}


def test_a_stopped_peer_whose_kernel_acknowledges_here_and_there_is_no_fault() -> None:
    """It says nothing on any lane, so only the long timer holds."""
    assert looks_until([f"{SILENT} peer_ms=1000"], "silent") == 8


def test_nothing_under_way_is_no_silence() -> None:
    assert set(looks(["acknowledged=7 peer_ms=3"] * 60)) == {"well"}


def test_an_acknowledgement_that_may_be_delayed_is_waited_for() -> None:
    """Linux delays that of a single packet by 40 ms."""
    assert looks_until(["unacknowledged=1 acknowledged=7 peer_ms=3 chunk=5"], "behind") == 5


def test_an_idle_lane_gets_the_long_timer() -> None:
    """Only a word of ours is under way on it: the peer looks at it seldom, and nobody waits."""
    assert looks_until(["unacknowledged=1 acknowledged=7 peer_ms=3"], "silent") == 8


@pytest.mark.parametrize("idle", ["unacknowledged=1", "unacknowledged=5 few=1"])
def test_a_silence_that_may_be_a_delayed_acknowledgement_is_none_of_the_chunks_that_follow(idle: str) -> None:
    """A ping was under way for 32 ms when a peer that had stood still went on and chunks were posted behind it, as
    recorded: the lane was given up at once. The short timer starts with the chunks. Small words do not become more by
    being in many segments: Linux goes by their bytes."""
    ping = f"{idle} acknowledged=806889 sent=1838 answers=349 peer_ms=3"
    chunks = "unacknowledged=8 few=0 unsent=2948 sent=1845 chunk=1569 chunk_ms=4"
    assert set(looks([ping, "", "", "", chunks])) == {"well"}
    assert looks_until([ping, "", chunks], "behind") == 3


def test_a_delayed_acknowledgement_is_no_evidence_for_a_path_given_up_by_another_connection() -> None:
    """What one connection took for a dead path must not take the idle lanes of all others with it."""
    assert looks_until(["unacknowledged=1 acknowledged=7 peer_ms=3 path_failed=1"], "silent") == 8


def test_a_slow_round_trip_lengthens_both() -> None:
    """Beside siblings to two of them, or one and four times its deviation, as TCP's own timer."""
    assert looks_until([f"{SILENT} peer_ms=3 rtt_ms=25"], "behind") == 5
    assert looks_until([f"{SILENT} peer_ms=3 rtt_ms=25 deviation_ms=10"], "behind") == 7
    assert looks_until([f"{SILENT} rtt_ms=50"], "silent") == 20


def test_the_round_trip_of_a_handshake_is_not_that_of_a_full_path() -> None:
    """Nothing of the incarnation was acknowledged yet: what all lanes of a slow path send first waits longer than
    25 ms. A ring that began on 50 Mbit/s lost all lanes of one NIC in a chain."""
    assert looks_until([f"{SILENT} peer_ms=3 fresh=1"], "silent") == 8
    assert looks_until([f"{SILENT} peer_ms=3 fresh=1", "acknowledged=8"], "behind") == 3


def test_ticks_that_are_planned_far_apart_count_whole() -> None:
    """On queue pairs 25 ms: counted as 10 each, a silence beside round trips of 47 ms was suspect after 100 ms."""
    lines = [f"unacknowledged=9 rtt_ms=47 passed_ms=25 credit_ms={ms}" for ms in (25, 10)]
    assert [suspected([line] * 8).index(True) for line in lines] == [2, 4]


def test_what_this_process_slept_through_does_not_count() -> None:
    """A second between two samples counts as 10 ms."""
    assert looks_until([f"{SILENT} peer_ms=3 passed_ms=1000"], "behind") == 3


def test_bytes_that_the_kernel_cannot_send_count() -> None:
    """The address of the NIC is gone: nothing is under way, nothing leaves, the peer would take more."""
    assert looks_until(["unsent=90000 peer_ms=3"], "behind") == 3
    assert looks_until(["unsent=90000"], "silent") == 8


def test_a_kernel_that_is_late_with_one_socket_is_no_fault_of_its_path() -> None:
    """On a host with too little processor time, as recorded: 48 KiB wait in a socket, nothing is under way, and another
    lane on the path was acknowledged 8 ms ago. Neither the long timer nor a chunk's deadline counts that."""
    waiting = "unsent=49152 peer_ms=3 path_ms=3 chunk=5 chunk_ms=9"
    assert set(looks([waiting] * 60)) == {"well"}
    assert looks_until([*[waiting] * 20, "path_ms=200"], "silent") <= 2


def test_a_peer_that_takes_nothing_is_no_fault() -> None:
    """Its window is closed and its kernel answers the probes: it is stopped, or computes."""
    assert set(looks(["unsent=90000 window=0 peer_ms=3 probes=1"] * 100)) == {"well"}


def stopped_receiver(seconds: float, *, answers: bool) -> list[str]:
    """Looks at a lane whose receiving process is stopped: its buffer fills, its kernel throws away what finds no room
    and says that there is none, as often as TCP asks: after 200 ms, and at double the time from each to the next."""
    asked, at = [], 0.2
    while at < seconds:
        asked.append(round(at * 100))
        at *= 2
    lines = []
    for n in range(round(seconds * 100)):
        times = sum(look <= n for look in asked)
        pongs = 1 + times if answers else 1
        lines.append(
            f"unacknowledged=9 window=0 acknowledged={min(n, 5)} sent={100 + times} answers={60 + min(n, 5) + pongs} "
            f"peer_ms={10 * n} rtt_ms=1"
        )
    return lines


def test_a_stopped_receiver_that_throws_away_what_finds_no_room_is_no_fault() -> None:
    """For ever: whatever TCP asks is answered, and between two questions there is nothing to answer."""
    assert set(looks(stopped_receiver(30, answers=True))) == {"well"}


def test_a_full_receiver_that_does_not_answer_when_asked_is_a_dead_path() -> None:
    """80 ms after the first question without an answer."""
    found = looks(stopped_receiver(1, answers=False))
    assert found.index("silent") == 20 + 8


def test_a_stopped_receiver_beside_lanes_that_have_room_goes_on_when_it_does() -> None:
    """Its process goes on and speaks on the other lanes first: this one has all the time of a lane with room."""
    lines = stopped_receiver(2, answers=True)
    resumed = "window=1 sent=120 answers=90 acknowledged=900 peer_ms=1"
    assert set(looks([*lines, resumed, "", ""])) == {"well"}
    assert looks_until([*lines, resumed], "behind") == 3


def test_a_closed_window_without_answers_is_a_dead_path() -> None:
    assert looks_until(["unsent=90000 window=0 probes=3"], "silent") == 1


def watched(ms: int, due_ms: int | None = None) -> str:
    """What who polls the lane has seen; due_ms : of it, with so much under way that an acknowledgement is due."""
    return f"watched_ms={ms} watched_due_ms={ms if due_ms is None else due_ms}"


def test_what_another_thread_has_watched_counts() -> None:
    """It polls all the time and is woken for silence, where looks are far between: no second look is waited for."""
    assert suspected([f"{SILENT} {watched(8)}"]) == [True]
    assert looks([f"{SILENT} peer_ms=1 {watched(12)}", watched(16), watched(26)]) == [
        "well",
        "well",
        "behind",
    ]
    # Less than what was silent anyway adds nothing, and an acknowledgement ends it.
    assert looks([f"{SILENT} peer_ms=1 {watched(2)}", "", "", watched(9)])[-1] == "behind"
    assert looks([f"{SILENT} peer_ms=1 {watched(20)}", f"acknowledged=8 {watched(0)}"])[-1] == "well"
    assert looks([f"acknowledged=7 peer_ms=1 {watched(90)}"]) == ["well"]


def test_nothing_is_given_up_at_the_first_look_at_what_was_watched() -> None:
    """The thread that judges came late: what it knows of the path's other lanes is older than the silence."""
    late = [f"{SILENT} peer_ms=1 path_ms=100 {watched(90)}"]
    assert looks(late) == ["well"]
    assert suspected(late) == [True]
    assert looks([*late, f"path_ms=2 passed_ms=4 {watched(94)}"]) == ["well", "silent"]  # alone, it is
    assert looks([*late, f"path_ms=100 passed_ms=4 {watched(40)}"]) == ["well", "behind"]
    assert looks([*late, f"path_ms=2 passed_ms=4 {watched(40)}"]) == ["well", "well"]


def test_what_was_watched_while_little_was_under_way_is_no_overdue_acknowledgement() -> None:
    """It could be put off until more was sent, which is a moment ago."""
    little = ["unacknowledged=1 acknowledged=7 chunk=5 peer_ms=1", watched(10, 0), watched(30, 0)]
    assert looks([*little, f"unacknowledged=3 {watched(40, 0)}"])[-1] == "well"
    assert looks([*little, f"unacknowledged=3 {watched(40, 26)}"])[-1] == "behind"


def test_a_chunk_that_was_watched_is_late_without_a_second_look() -> None:
    """Looks were 50 ms apart until now, of which 25 count; from the suspicion on they are 4 ms apart. It is late 100 ms
    after it became the oldest chunk, and 25 ms later at most."""
    watched_ms = 34  # when who polls has the service thread woken
    first = (
        "unacknowledged=40 acknowledged=7 chunk=5 chunk_ms=20 peer_ms=1 path_ms=1 credit_ms=25 passed_ms=50"
    )
    lines = [f"{first} watched_chunk_ms={watched_ms}"]
    lines += [f"passed_ms=4 acknowledged={8 + number}" for number in range(40)]  # it trickles
    assert suspected(lines)[0]
    assert 100 <= watched_ms + 4 * looks(lines).index("late") <= 125
    # Nothing of it counts that the peer's process was silent for.
    lines[0] += " peer_ms=60"
    lines[1] += " peer_ms=1"
    assert 100 <= watched_ms + 4 * looks(lines).index("late") <= 138


def test_another_connection_has_found_out() -> None:
    """The path was given up a moment ago: 10 ms of silence are enough."""
    assert looks_until([f"{SILENT} path_failed=1"], "behind") == 1


def test_a_chunk_that_does_not_arrive_while_acknowledgements_trickle() -> None:
    """Four times the least stall timer, or four times what it should take, 200 ms at most."""
    trickle = [f"unacknowledged=40 acknowledged={n} peer_ms=3 chunk=5" for n in range(60)]
    assert looks(trickle).index("late") == 10
    slow = [f"unacknowledged=40 acknowledged={n} peer_ms=3 chunk=5 chunk_ms=40" for n in range(60)]
    assert looks(slow).index("late") == 16
    slower = [f"unacknowledged=40 acknowledged={n} peer_ms=3 chunk=5 chunk_ms=900" for n in range(60)]
    assert looks(slower).index("late") == 20


def test_a_stopped_peer_delivers_nothing_and_is_no_fault() -> None:
    """Its kernel acknowledges on all lanes; it says nothing on any."""
    stopped = [f"unacknowledged=40 acknowledged={n} peer_ms={10 * n} chunk=5" for n in range(100)]
    resumed = [f"unacknowledged=40 acknowledged={n} peer_ms=1 chunk=5" for n in range(100, 109)]
    assert "late" not in looks(stopped + resumed)


def test_a_lane_that_delivers_is_never_late() -> None:
    assert set(looks(f"unacknowledged=40 acknowledged={n} peer_ms=3 chunk={n // 9}" for n in range(90))) == {
        "well"
    }


def test_the_log_says_what_the_finding_was_made_of() -> None:
    """For those who ask why a lane was given up: what was silent and for how long, and how late this process and the
    peer's were meanwhile."""
    lines = [
        f"{SILENT} peer_ms=3 rtt_ms=2 retransmits=5 answered_in_ms=9 chunk=4",
        "passed_ms=35",
        "passed_ms=12",
        "",
    ]
    last = _said(lines)[-1]
    assert last.endswith(
        "silence beside lanes that answer (silent_ms=30 overdue_ms=30 late_ms=30 chunk_ms=30 deadline_ms=100 "
        "unacknowledged=40 unsent=0 window=open probes=0 retransmits=5 rtt_us=2000 peer_ms=3 path_ms=1000000 "
        "path_failed=0 answer_due=0 peer_answered_in_ms=9 own_late_ms=25)"
    )


def test_how_late_this_process_was_is_forgotten_when_something_is_acknowledged() -> None:
    last = _said([SILENT, "passed_ms=90", "acknowledged=8 passed_ms=10", *[""] * 8])[-1]
    assert "own_late_ms=0)" in last
