"""How connections end, and what a job's children and its limits leave of them (tests/native/hosts/close.cc)."""

import resource
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.process import LabProcess
from fabricpulse.plugin.locate import library
from fabricpulse.plugin_ipc.control import ControlClient

pytestmark = pytest.mark.root


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=2, rails=2) as started:
        yield started


def play(lab: Lab, host: int, part: str, folder: Path, env: Mapping[str, str] | None = None) -> LabProcess:
    """Starts one process of the pair."""
    program = [str(native("plugin_close_host")), str(library()), part, str(folder)]
    return lab.host(host).popen(program, env={"FABRICPULSE_NICS": "rail*", **(env or {})})


def test_a_receiver_that_closes_in_order_is_no_error_when_its_words_are_lost(
    lab: Lab, tmp_path: Path
) -> None:
    """The message is there and the receiver has closed; what it said about that is lost with all lanes. The sender
    dials again, learns so, and its send is done."""
    receiver, sender = play(lab, 0, "receive", tmp_path), play(lab, 1, "send", tmp_path)
    for name in ("accepted", "connected"):
        wait_for((tmp_path / name).exists, 20, name)
    with ExitStack() as silence:
        for nic in lab.host(1).nics:
            silence.enter_context(nic.black_hole("rx"))
        (tmp_path / "go").touch()
        wait_for((tmp_path / "closed").exists, 20, "the receiver has closed")
        time.sleep(0.5)  # how long the fault lasts on: the lanes are given up meanwhile
    wait_for((tmp_path / "result").exists, 20, "the sender has its answer")
    assert (tmp_path / "result").read_text() == "0"
    (tmp_path / "end").touch()
    assert (sender.wait(20), receiver.wait(20)) == (0, 0)


def test_the_sender_of_a_message_too_large_fails_too(lab: Lab, tmp_path: Path) -> None:
    """The receive has room for half: both ends fail at once, and the sender does not wait until the receiver closes."""
    receiver, sender = play(lab, 0, "truncate", tmp_path), play(lab, 1, "send", tmp_path)
    for name in ("accepted", "connected"):
        wait_for((tmp_path / name).exists, 20, name)
    (tmp_path / "go").touch()
    try:
        wait_for((tmp_path / "result").exists, 20, "the sender has its answer")
        assert (tmp_path / "result").read_text() == "6"  # ncclRemoteError
    finally:
        (tmp_path / "end").touch()
    assert (sender.wait(20), receiver.wait(20)) == (0, 0)


def test_a_peer_that_has_left_before_connect_is_done_is_an_error(lab: Lab, tmp_path: Path) -> None:
    """The receiving end is closed in order before NCCL asks again for the sending one: connect() comes to an end, and a
    message on it is an error. It was asked for ever."""
    process = play(lab, 0, "leave", tmp_path)
    assert process.wait(30) == 0
    assert (tmp_path / "result").read_text() == "6"  # ncclRemoteError


def test_a_connection_that_is_given_up_before_it_is_there_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    """NCCL gives up by asking no more, and has nothing to close: its lanes end with its context, or when nobody has
    asked for so long as a peer may be away. They stayed for the life of the process."""
    process = play(lab, 0, "abandon", tmp_path, {"FABRICPULSE_PEER_TIMEOUT_S": "2"})
    assert process.wait(30) == 0
    assert (tmp_path / "result").read_text() == "1 0 1 0 0"


def test_why_a_connection_never_comes_about_is_logged_once(lab: Lab, tmp_path: Path) -> None:
    """The peer is killed before connect() has given its connection to NCCL. It was logged when it was found, and again
    when connect() returned the error."""
    process = play(lab, 0, "killed", tmp_path)
    assert process.wait(30) == 0
    assert (tmp_path / "result").read_text() == "6 1"  # ncclRemoteError


def test_a_child_keeps_no_socket(lab: Lab, tmp_path: Path) -> None:
    """fork() without exec, as PyTorch's DataLoader does: with its parent's lanes a child would hide that a rank is
    dead. The parent's lanes work on."""
    process = play(lab, 0, "fork", tmp_path)
    assert process.wait(30) == 0
    before, child = map(int, (tmp_path / "child").read_text().split())
    assert before > 4
    assert child == 0
    assert (tmp_path / "result").read_text() == "0"


def test_a_child_ends_nothing_of_its_parent(tmp_path: Path) -> None:
    """fork() without exec, and then what exit handlers may do: messages on the parent's connections are refused, to end
    them and their communicator is without effect. It closed files of the child that had the numbers of the plugin's
    sockets, and took the parent's telemetry and control socket away. The child can begin communicators of its own."""
    with Lab(hosts=1, rails=1) as lab:
        host = lab.host(0)
        process = host.popen(
            [str(native("plugin_fork_host")), str(library())], env={"FABRICPULSE_NICS": "rail*"}
        )
        process.wait_for_output("forked", 60)
        assert list((host.run_dir / "plugin").glob("*.telemetry"))
        (path,) = (host.run_dir / "plugin").glob("*.sock")
        with ControlClient(path) as client:
            assert len(client.call({"op": "status"})["connections"]) == 2
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 0, process.tail()


@pytest.mark.parametrize(("descriptors", "channels"), [(96, 12), (64, 15)])
def test_at_the_limit_of_descriptors_every_connection_has_a_lane(
    lab: Lab, tmp_path: Path, descriptors: int, channels: int
) -> None:
    """All channels over 4 lanes each want more descriptors than there are: each gets one lane, the job runs, and the
    log has the limit and what is missing. Of 64 the first connections took so many that the last had none."""
    wrapper = tmp_path / "limited"
    wrapper.write_text(f'#!/bin/sh\nulimit -n {descriptors}\nexec fabricpulse-ring "$@"\n')
    wrapper.chmod(0o755)
    ring = Ring(lab, 2, ["--bytes", "64K", "--channels", str(channels)], program=wrapper)
    try:
        ring.wait_running(30.0)
        up = sum(lane["state"] == "up" for lane in ring.lanes("h0"))
        assert 2 * channels <= up < descriptors
        # A first warning may have come while some connections had no lane; then this one follows.
        enough = f": 0 of {2 * channels} connections have none; all lanes take "
        ring.until(lambda: enough in ring.said(), 20.0)
        assert f"of its {descriptors} file descriptors" in ring.said()
        ring.stop()
    finally:
        ring.kill()


def test_a_process_without_descriptors_keeps_its_lanes(lab: Lab) -> None:
    """The application has used up all descriptors while the job runs. The kernel cannot be asked about NICs then, which
    was taken for NICs that have lost their addresses: all lanes of all NICs ended, and none could be dialled again."""
    ring = Ring(lab, 2, ["--bytes", "64K"])
    ring.wait_running()
    rank = ring.ranks[0]
    (path,) = (lab.host(0).run_dir / "plugin").glob("*.sock")
    with ControlClient(path) as client:
        before = client.call({"op": "events"})["next"]
        resource.prlimit(rank.process.outer_pid, resource.RLIMIT_NOFILE, (8, 8))
        looked = lab.host(0).nics[0].device
        # The plugin looks at the NIC each time, and has done so when it answers the next request.
        for change in ("add", "del"):
            lab.host(0).run(["ip", "addr", change, "10.99.0.1/32", "dev", looked])
            client.call({"op": "status"})
        time.sleep(0.3)  # a tick, in which lanes of a NIC that is away would be given up
        events = client.call({"op": "events", "since": before})["events"]
    assert [event for event in events if event["kind"] == "lane_down"] == []
    ring.stop()


def test_the_soft_limit_is_raised_before_lanes_are_given_up(lab: Lab, tmp_path: Path) -> None:
    """The hard limit is what the host allows: below it no lane is missing."""
    wrapper = tmp_path / "limited"
    wrapper.write_text('#!/bin/sh\nulimit -Sn 96\nexec fabricpulse-ring "$@"\n')
    wrapper.chmod(0o755)
    ring = Ring(lab, 2, ["--bytes", "64K", "--channels", "12"], program=wrapper)
    try:
        ring.wait_running(30.0)
        ring.until(lambda: all(lane["state"] in ("up", "slow_start") for lane in ring.lanes("h0")), 20.0)
        ring.stop()
    finally:
        ring.kill()
