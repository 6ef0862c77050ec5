"""Lanes over queue pairs on a stand-in for libibverbs (tests/native/verbs_stand_in.h), under scripted random faults."""

import json
import subprocess

import pytest
from tests.fixtures.native.programs import native


def _simulate(seed: int, messages: int, faults: int, variant: str, *mode: str) -> dict[str, int]:
    command = [str(native("plugin_verbs_lanes", variant)), str(seed), str(messages), str(faults), *mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    result: dict[str, int] = json.loads(done.stdout)
    return result


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_every_message_once_and_no_late_write(seed: int) -> None:
    """Lanes fail at either end, paths are cut, packets come late: all messages, in order, and no byte afterwards."""
    result = _simulate(seed, 200, 150, "address")
    assert result["messages"] == 200
    assert result["failed"] > 0
    assert result["dials"] > 4


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_memory_that_an_abort_takes_back(seed: int) -> None:
    """NCCL deregisters what requests under way need: nothing reads or writes it from then on, nor what described it."""
    _simulate(seed, 60, 20, "address", "abort")


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_a_tcp_lane_is_the_last_resort(seed: int) -> None:
    """While no queue pair passes a message TCP carries all, though hellos for queue pairs succeed; not once they do."""
    result = _simulate(seed, 300, 100, "address", "last-resort")
    assert result["messages"] >= 300
    assert result["outages"] > 0
    assert result["tcp_chunks"] > 20
    assert result["relieved"] > 0


@pytest.mark.build
@pytest.mark.timeout(900)
def test_lanes_over_one_nic_are_nothing_to_balance_with() -> None:
    """A second lane over the same NIC is a reserve: messages go in large chunks all the same."""
    # Sizes follow measured rates, which follow this machine's clock: 760 to 1,900 chunks; of the least size, 2,700.
    for _ in range(3):
        run = _simulate(1, 300, 0, "address", "one-nic")
        assert run["messages"] == 300
        if run["chunks"] < 7 * 300:
            return
    pytest.fail("messages went in small chunks")


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_a_lane_that_has_proven_nothing_gets_no_chunk(seed: int) -> None:
    """Hellos go by TCP. Where that works and the queue pairs of a NIC do not, its lanes come up again and again: what
    they were given would wait there for the stall timer each time."""
    result = _simulate(seed, 100, 0, "address", "dead-rail")
    assert result["rejoined"] >= 3
    assert result["on_dead"] == 0


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 2])
def test_receives_are_named_again_for_a_nic_that_comes(seed: int) -> None:
    """They were named before there was a key for it, and the NIC that they were named on passes nothing any more."""
    assert _simulate(seed, 100, 0, "address", "late-nic")["messages"] == 100


def _counts(size: int, messages: int, *mode: str) -> dict[str, dict[str, int]]:
    command = [str(native("plugin_verbs_counts", "address")), str(size), str(messages), *mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, int]] = json.loads(done.stdout)
    return result


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [8, 1 << 16, 1 << 20])
def test_a_message_is_one_work_request(size: int) -> None:
    """As with NCCL's own transport: the write of the payload announces it. Credits are rare beside that; the receiver's
    state goes back at most once a message, and names each receive once."""
    messages = 256
    counts = _counts(size, messages, "one")
    sender, receiver = counts["sender"], counts["receiver"]
    assert messages <= sender["requests"] <= messages * 1.07
    assert sender["bytes"] <= messages * (size + 64)
    assert receiver["requests"] <= messages + 1
    state, name = 176, 24
    assert receiver["bytes"] <= receiver["requests"] * state + (messages + 8) * name


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_what_was_sent_is_complete_and_gives_nothing_to_do(size: int) -> None:
    """Each end does more than poll twice a message: the sender as it begins and for the report, the receiver for the
    chunk and to report it."""
    messages = 512
    counts = _counts(size, messages, "one")
    assert counts["sender"]["drives"] <= messages * 2.1
    assert counts["receiver"]["drives"] <= messages * 2.1


@pytest.mark.build
@pytest.mark.timeout(900)
def test_few_chunks_have_a_stamp() -> None:
    """With fleet time a chunk goes with a header now and then, for the one-way delay: that is a second request."""
    messages = 256
    plain, stamped = (_counts(1 << 16, messages, *mode)["sender"] for mode in ((), ("fleet",)))
    assert 0 < stamped["requests"] - plain["requests"] < messages / 8


def _numbers(size: int, *mode: str) -> list[int]:
    command = [str(native("plugin_verbs_counts", "address")), str(size), "0", *mode]
    return [int(word) for word in subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split()]


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [8, 1 << 20])
def test_an_idle_test_polls_and_does_nothing_else(size: int) -> None:
    """NCCL asks some hundred times a message. What has come is found at the first pass nonetheless."""
    receives, sends, arrived, acknowledged = _numbers(size, "idle")
    passes = 1600
    assert receives <= passes / 7
    assert sends <= passes / 7
    assert (arrived, acknowledged) == (1, 1)


@pytest.mark.build
@pytest.mark.timeout(900)
def test_a_lane_tells_what_its_round_trips_wait_behind() -> None:
    """Bytes of all lanes of its device, its own among them: some five of eight messages are ahead of the mean one."""
    messages = 8 << 20
    alone, left = _numbers(1 << 20, "ahead")
    assert messages / 2 < alone <= messages
    assert left == 0
    first, second, left = _numbers(1 << 20, "ahead", "rails")
    assert messages / 2 < max(first, second) <= messages
    assert left == 0


@pytest.mark.build
@pytest.mark.timeout(900)
def test_lanes_of_two_nics_measure_their_delay() -> None:
    """Without fleet time, too: the window has to cover what state frames wait behind the data of the other direction. A
    NIC alone has the largest window anyway, and its chunks no stamps."""
    messages = 1024
    alone, beside = (_counts(1 << 16, messages, *mode)["sender"] for mode in ((), ("rails",)))
    assert messages <= alone["requests"] <= messages * 1.07
    assert 4 <= beside["requests"] - alone["requests"] < messages / 8


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["plugin_verbs_devices", "plugin_verbs_transport", "plugin_verbs_keys"])
def test_devices_come_and_end(program: str) -> None:
    """The service thread does not wait while NCCL's thread pins gigabytes; what it makes of the end of a device, and of
    the one that comes; receives are named anew for another one than at the last state frame."""
    done = subprocess.run([str(native(program, "address"))], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.build
@pytest.mark.timeout(900)
def test_the_end_of_a_queue_pair_after_a_pause() -> None:
    """A thread that a busy host leaves without a processor drains what the device has flushed, and destroys nothing: a
    driver may make it wait for long. What is not flushed is destroyed all the same."""
    done = subprocess.run(
        [str(native("plugin_verbs_pair", "address"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "more"), [(0, ()), (1, ("last-resort",)), (2, ("last-resort",))])
def test_queue_pairs_end_on_a_thread_of_their_own(seed: int, more: tuple[str, ...]) -> None:
    """Under ThreadSanitizer: the reaper destroys queue pairs while lanes work, fail and are made anew, TCP stands in
    for them or not, another thread registers memory with the same devices, and a third reads the telemetry."""
    result = _simulate(seed, 200, 150, "thread", "threads", *more)
    assert result["messages"] >= 200
    assert result["failed"] > 0
    assert not more or result["tcp_chunks"] > 20


@pytest.mark.build
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 124))
def test_the_same_for_long(seed: int) -> None:
    """More messages and more faults."""
    assert _simulate(seed, 600, 500, "plain")["messages"] == 600


@pytest.mark.build
@pytest.mark.timeout(900)
def test_who_polls_sees_a_silent_lane() -> None:
    """The service thread looks every 50 ms then, and is woken for silence; it goes on from what was watched."""
    needless, woken_us, given_up_us = _numbers(8, "silent")
    assert not needless
    # 8 ms from when it was sent, four times that where this machine has made round trips long, and 2 ms more.
    assert 8_000 <= woken_us <= 36_000
    assert woken_us + given_up_us <= 100_000  # a lone lane: 80 ms


@pytest.mark.build
@pytest.mark.timeout(900)
def test_a_silent_lane_that_nobody_polls_any_more_is_found() -> None:
    """The service thread relied on who polls until its next look: a lone lane has its 80 ms and that look."""
    watched, given_up_ms = _numbers(8, "abandoned")
    assert watched
    assert 80 <= given_up_ms <= 80 + 50 + 20
