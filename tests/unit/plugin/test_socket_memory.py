"""The annotations of socket I/O for ThreadSanitizer (nccl_plugin/src/transport/tcp/socket_memory.h)."""

import subprocess

import pytest
from tests.fixtures.native.programs import native


def _reports(mode: str) -> int:
    command = [str(native("plugin_socket_memory", "thread")), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = done.stderr.count("WARNING: ThreadSanitizer: data race")
    assert done.returncode == (66 if found else 0), done.stderr
    return found


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_answer_comes_after_what_it_answers() -> None:
    """A thread that waited in recvmsg gets, into the buffer that another has just sent from, what a peer made of it: no
    race, however late the sending thread's call returns."""
    assert [_reports("answer") for _ in range(5)] == [0] * 5


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_buffer_that_is_sent_from_without_an_order_is_reported() -> None:
    """As by a lane that still reads a message that is done: the annotations hide no defect."""
    assert _reports("late") > 0
