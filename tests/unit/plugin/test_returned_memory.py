"""Memory that the application has back is not read or written (tests/native/plugin/returned_memory.cc)."""

import json
import subprocess

import pytest
from tests.fixtures.native.programs import native


def _play(*arguments: int | str) -> dict[str, int]:
    done = subprocess.run(
        [str(native("plugin_returned_memory")), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    result: dict[str, int] = json.loads(done.stdout)
    return result


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 60))])
def test_nothing_touches_a_message_that_is_done(seed: int) -> None:
    """Random lanes that fail, stop one way or both, and send chunks again: from test() on, the pages of a message may
    be gone, at either end. All messages arrive, in order, with their bytes."""
    result = _play("faults", seed, 400, 250)
    assert result["messages"] == 400
    assert result["failed"] > 5
    assert result["resent"] > 5


@pytest.mark.build
@pytest.mark.parametrize("seed", range(8))
def test_a_peer_that_claims_what_has_not_left(seed: int) -> None:
    """Its word completes sends whose bytes wait in a lane: that lane ends before the application knows."""
    assert _play("claims", seed)["given_back"] > 50


@pytest.mark.build
def test_a_peer_that_sends_the_same_bytes_twice() -> None:
    """A receive is done while another lane still writes into it: that lane ends first."""
    _play("overlap")


@pytest.mark.build
def test_a_peer_whose_message_grows() -> None:
    """A chunk of another message size is refused, and nothing of the message lands after an error of test()."""
    _play("truncate")


@pytest.mark.build
def test_memory_that_is_deregistered_with_requests_under_way() -> None:
    """As NCCL does when it aborts: the connection ends before deregMr returns, and its requests are errors, never
    done. Memory that no request needs goes without a consequence."""
    _play("deregister")
