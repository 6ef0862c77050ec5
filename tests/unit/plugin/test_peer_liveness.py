"""When a peer's process counts as gone (nccl_plugin/src/core/peer_liveness.h), in simulated time."""

import subprocess
from collections.abc import Callable

import pytest
from tests.fixtures.native.programs import native

MS = 1_000_000
START_MS = 5_000
Play = Callable[..., list[bool]]


@pytest.fixture
def play() -> Play:
    """Plays commands; after each refusal whether the process is gone, after each `v` whether its version is another."""
    program = native("plugin_peer_liveness", "address")

    def run(*commands: str) -> list[bool]:
        said = subprocess.run(
            [program], input="\n".join(commands), capture_output=True, text=True, check=True
        )
        return [line == "1" for line in said.stdout.split()]

    return run


def refusals(
    count: int, every_ms: int, was_up: bool = True, start_ms: int = START_MS, first: bool = False
) -> list[str]:
    """Refused connections at regular times. `was_up`: a lane was, over this pair of NICs; `first`: the first lane's."""
    return [f"r {int(was_up)} {int(first)} {(start_ms + at * every_ms) * MS}" for at in range(count)]


def test_a_process_that_has_ended_is_known_within_a_few_dials(play: Play) -> None:
    """Its kernel ends its lanes in order, and then nobody listens."""
    assert play("u", "e", *refusals(3, 50)) == [False, False, True]


def test_lanes_that_can_never_be_say_nothing(play: Play) -> None:
    """Across rails that have no way to one another each connection is refused as long as the peer lives."""
    assert not any(play("u", "e", *refusals(1000, 50, was_up=False)))


def test_a_firewall_that_rejects_is_no_end_of_the_peer(play: Play) -> None:
    """It resets lanes, so that no end in order is seen: three seconds of refusals are nothing."""
    assert not any(play("u", *refusals(60, 50)))


def test_refusals_that_go_on_are_the_end(play: Play) -> None:
    """Ten seconds on end, where no lane ended in order."""
    gone = play("u", *refusals(201, 50))
    assert gone.index(True) == 200


@pytest.mark.parametrize("sign_of_life", ["u", "a", "c"])
def test_an_answer_forgets_what_was_before(play: Play, sign_of_life: str) -> None:
    """Refusals before and after it are not put together, and the end in order was another incarnation's."""
    assert not any(
        play("u", "e", *refusals(2, 200), sign_of_life, *refusals(10, 200, start_ms=START_MS + 500))
    )


def test_refusals_far_apart_are_not_on_end(play: Play) -> None:
    """Between them the peer was silent: its path was down, not its process."""
    assert not any(play("u", *refusals(20, 4_000)))


def test_a_peer_that_was_never_reached_has_ten_seconds(play: Play) -> None:
    """A process that starts late is waited for; one that is not there is an error, not a hang."""
    gone = play(*refusals(201, 50, was_up=False, first=True))
    assert gone.index(True) == 200


def test_a_peer_that_is_slow_to_answer_is_not_gone(play: Play) -> None:
    """Lanes across rails are refused at once, and those along rails are taken but answered late: it is only busy."""
    assert not any(play(*refusals(1000, 50, was_up=False)))
    assert not any(
        play(
            *(
                command
                for at in range(20)
                for command in (*refusals(1, 1, False, START_MS + 1_000 * at, first=True), "c")
            )
        )
    )


def test_one_damaged_hello_is_no_other_version(play: Play) -> None:
    """A flipped bit in the first hello is answered like another version: only the third such answer on end is one."""
    assert play("v", "v", "a", "v", "v", "v") == [False, False, False, False, True]


def test_a_peer_that_had_a_lane_runs_this_version(play: Play) -> None:
    """Whatever answers come later are damage."""
    assert not any(play("u", *["v"] * 10))


def test_another_version_is_a_sign_of_life(play: Play) -> None:
    """Refusals before it and after it are not put together."""
    assert not any(play("u", "e", *refusals(2, 200), "v", *refusals(2, 200, start_ms=START_MS + 500)))


@pytest.mark.parametrize("known_first", [True, False])
def test_what_one_connection_saw_of_a_process_all_know(play: Play, known_first: bool) -> None:
    """Data that nobody had read makes the kernel reset a lane of a killed process; another connection's lane was ended
    in order. Without that it took ten seconds. Any sign of life on either forgets it; another process is another."""
    ended = ["p 7", "e"] if known_first else ["e", "p 7"]
    both = ["u", *ended, "o"]  # the other one was up before
    assert play("o", "p 7", "u", "o", *both, *refusals(3, 50)) == [False, False, True]
    assert play("o", "p 7", "u", "o", *both, "o", "c", "o", *refusals(3, 50)) == [False] * 3
    assert play("o", "p 7", "u", "o", *both, "a", "o", *refusals(3, 50)) == [False] * 3
    assert play("o", "p 8", "u", "o", *both, *refusals(3, 50)) == [False] * 3
