"""What a TCP lane says of an end that is closed while it is written to (nccl_plugin/src/transport/tcp/tcp_lane.cc)."""

import subprocess

import pytest
from tests.fixtures.native import native

pytestmark = pytest.mark.build

IDLE, PROGRESS, FAILED, ENDED = range(4)  # LaneStatus


def play(how: str) -> list[int]:
    """The outcome of two writes and of reading, and how many frames were read."""
    done = subprocess.run(
        [str(native("plugin_tcp_lane")), how], capture_output=True, text=True, check=True, timeout=60
    )
    return [int(word) for word in done.stdout.split()]


def test_what_an_end_in_order_said_is_read_before_the_lane_is_over() -> None:
    """Its kernel resets what is written to it after it has ended in order, so writing fails first: reading still finds
    its last words, a farewell perhaps, and then that it was in order, as by a process that ends."""
    assert play("ended") == [PROGRESS, IDLE, ENDED, 1]


def test_a_lane_that_is_reset_fails_at_once() -> None:
    """As by a firewall: nothing says that a process has ended."""
    assert play("reset")[0] == FAILED
