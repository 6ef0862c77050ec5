"""A TCP lane whose other end closes while it is written to, or whose own NIC drops (nccl_plugin/src/transport/tcp)."""

import subprocess

import pytest
from tests.fixtures.native.programs import native

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


def test_what_an_end_said_is_read_before_its_reset_counts() -> None:
    """An end that closes with words unread, such as a ping, has the lane reset, and writing fails first: reading still
    finds its farewell. Nothing says that a process has ended, as a firewall resets, too."""
    assert play("reset") == [IDLE, IDLE, FAILED, 1]


def test_what_the_own_nic_has_dropped_is_sent_again_soon() -> None:
    """With nothing else under way nothing says that it is lost, and the kernel tries again after 200 ms: messages
    waited for 108 to 132 ms on a rail of 50 Mbit/s that was whole, until the lane was given up."""
    done = subprocess.run(
        [str(native("plugin_tcp_lane")), "dropped"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == 77:
        pytest.skip("no network namespace, or no tc")
    done.check_returncode()
    stuck, arrived, _ = (int(word) for word in done.stdout.split())
    assert stuck
    assert arrived
