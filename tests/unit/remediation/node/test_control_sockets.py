"""Which control sockets an agent asks, and what hostile or hanging ones cost it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.plugin.control_server import ControlServer

from fabricpulse.core.subordinate_ids import SubordinateIds
from fabricpulse.remediation.node.control_calls import Failure, call_all
from fabricpulse.remediation.node.plugins import Plugins
from fabricpulse.remediation.node.sockets import ControlSockets
from fabricpulse.remediation.protocol import DesiredNic

AVOID = DesiredNic("rail0", "avoid", 10, "op-10")


def test_a_dead_processs_socket_is_passed_over(plugins, tmp_path):
    """kill -9 leaves a socket behind."""
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(str(tmp_path / "999999999.sock"))
    left.close()
    assert plugins.apply(AVOID).outcome == "applied"


def test_only_sockets_count(plugins, tmp_path):
    """A file or a link with the name of a socket is not opened."""
    (tmp_path / "1.sock").write_text("")
    (tmp_path / "2.sock").symlink_to("/run/elsewhere")
    assert plugins.present() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the socket another owner")
def test_root_may_serve_anybodys_socket(plugins, server):
    """A job in a container may have another owner than the process that we see."""
    os.chown(server.path, 12345, 12345)
    assert plugins.apply(AVOID).outcome == "applied"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the socket another owner")
def test_a_survey_says_whose_the_containers_are(server, tmp_path, monkeypatch):
    """The uid of a rootless container is one of its user's."""
    os.chown(server.path, 100_007, 100_007)
    subuid = tmp_path / "subuid"
    subuid.write_text("1000:100000:65536\n")
    monkeypatch.setattr("fabricpulse.remediation.node.plugins.SubordinateIds", lambda: SubordinateIds(subuid))
    assert Plugins(tmp_path, 1.0, 1.0).survey().users() == [1000]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give sockets another owner")
def test_a_users_containers_have_no_more_sockets_than_a_user(tmp_path, monkeypatch):
    """Four of his uids filled all places; the first of each user is asked before the second of any."""
    monkeypatch.setattr("fabricpulse.remediation.node.sockets.MAX_OF_USER", 3)
    monkeypatch.setattr("fabricpulse.remediation.node.sockets.MAX_SOCKETS", 4)
    subuid, folder = tmp_path / "subuid", tmp_path / "jobs"
    subuid.write_text("1000:100000:65536\n")
    folder.mkdir()
    for name, uid in (("1", 100_001), ("2", 100_002), ("3", 100_003), ("4", 100_004), ("5", 7), ("6", 7)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(str(folder / f"{name}.sock"))
        os.chown(folder / f"{name}.sock", uid, uid)
        os.utime(folder / f"{name}.sock")
    sockets = ControlSockets(folder, 1.0, ids=SubordinateIds(subuid))
    assert sorted(sockets.present()) == ["1", "2", "5", "6"]
    assert sockets.owners == {"1": 1000, "2": 1000, "5": 7, "6": 7}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the socket another owner")
def test_a_squatted_socket_is_refused(plugins, tmp_path):
    """A server that is neither root nor the owner of the file is not believed."""
    with squatter(tmp_path, uid=12345):
        os.chown(tmp_path / "1.sock", 23456, 23456)
        answers = call_all(tmp_path, ["1"], {"op": "status"}, lambda _: 0.3)
        assert answers["1"] == Failure("squatted", "served by uid 12345, owned by uid 23456")


@contextmanager
def squatter(directory: Path, uid: int) -> Iterator[None]:
    """A process of another user that listens on `1.sock` and answers nothing."""
    directory.chmod(0o777)
    for parent in directory.parents[:3]:
        parent.chmod(0o755)
    program = (
        "import os, socket, sys, time; os.setuid(int(sys.argv[2]));"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1]); s.listen(8);"
        "print('ready', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(directory / "1.sock"), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_sockets_of_users_without_jobs_are_passed_over(tmp_path):
    """With job_users, a socket of any other user is neither asked nor read."""
    with squatter(tmp_path, uid=12345):
        assert set(Plugins(tmp_path, 0.3, 0.3).present()) == {"1"}
        assert Plugins(tmp_path, 0.3, 0.3, frozenset({1000})).present() == {}
        assert set(Plugins(tmp_path, 0.3, 0.3, frozenset({12345})).present()) == {"1"}


def hanging(directory: Path, count: int) -> list[socket.socket]:
    """Sockets whose queue takes one connection and that answer nothing."""
    made = []
    for index in range(count):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(directory / f"{900_000 + index}.sock"))
        listener.listen(0)
        made.append(listener)
    return made


def test_hanging_sockets_do_not_delay_an_action(tmp_path):
    """Two hundred of them took an action from 0.08 s to 44.5 s: 16 threads waited for two seconds each, three times."""
    server = ControlServer(tmp_path, ["rail0", "rail1"])
    hung = hanging(tmp_path, 100)
    plugins = Plugins(tmp_path, call_timeout_s=2.0, verify_timeout_s=2.0)
    begun = time.monotonic()
    assert list(plugins.survey().processes) == [server.path.stem]
    surveyed = time.monotonic()
    assert surveyed - begun < 1.9  # all of them at once, and each for the short time of a stranger
    result = plugins.apply(AVOID)
    assert (result.outcome, result.processes) == ("applied", 1)
    assert "has not answered before" in result.message
    assert server.effects == [("op-10", "nic.avoid", "rail0")]
    asked = len([r for r in server.requests if r["op"] == "nic.avoid"])
    assert asked == 1
    for listener in hung:
        listener.close()
    server.close()


def test_who_hung_is_asked_again_later_and_for_longer_each_time(tmp_path):
    """1, 2, 4, 8, 10 s apart, for half a second; an answer makes it one of those that are waited for."""
    now = [0.0]
    (tmp_path / "x").mkdir()
    (listener,) = hanging(tmp_path, 1)
    sockets = ControlSockets(tmp_path, 2.0, clock=lambda: now[0])
    name = "900000"
    for wait in (1, 2, 4, 8, 10, 10):
        sockets.present()
        assert (sockets.due(), sockets.timeout_s(name)) == ([name], 0.5)
        sockets.note({name: Failure("silent", "timed out")})
        assert sockets.answering([name]) == []
        now[0] += wait - 0.1
        assert sockets.due() == []
        now[0] += 0.2
    sockets.note({name: {"ok": True}})
    assert (sockets.answering([name]), sockets.timeout_s(name)) == ([name], 2.0)
    listener.close()


def test_a_flood_of_one_users_sockets_is_bounded(tmp_path):
    """At most 128 of one user, the oldest: those of the jobs that run."""
    made = hanging(tmp_path, 140)
    present = ControlSockets(tmp_path, 1.0).present()
    assert len(present) == 128
    assert "900000" in present
    for listener in made:
        listener.close()
