"""The client of a control socket, against servers of every kind."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fabricpulse.plugin_ipc.control import MAX_MESSAGE, ControlClient, ControlError


@contextmanager
def server(path: Path, answer: Callable[[bytes], bytes | None]) -> Iterator[None]:
    """Answers one message on a socket at `path`; None hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_MESSAGE)
                reply = answer(connection.recv(MAX_MESSAGE))
                if reply is not None:
                    connection.send(reply)
                    connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(10)
        assert not thread.is_alive()


def test_call(tmp_path: Path) -> None:
    """A JSON object goes out and one comes back; the server is known by its credentials."""
    seen = []

    def answer(message: bytes) -> bytes:
        seen.append(message)
        return b'{"ok": true}'

    with server(tmp_path / "s", answer), ControlClient(tmp_path / "s", expected_uid=os.getuid()) as client:
        assert client.call({"op": "hello"}) == {"ok": True}
        assert client.peer_pid == os.getpid()
    assert seen == [b'{"op":"hello"}']


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "hung up"),
        (b"not json", "answer is not JSON"),
        (b"[1]", "not a JSON object"),
        (b'"' + b"x" * MAX_MESSAGE + b'"', "longer than"),
    ],
)
def test_bad_answers(tmp_path: Path, reply: bytes | None, words: str) -> None:
    """An answer that is none is an error that names the socket."""
    with (
        server(tmp_path / "s", lambda _: reply),
        ControlClient(tmp_path / "s") as client,
        pytest.raises(ControlError, match=words),
    ):
        client.call({"op": "hello"})


def test_silence(tmp_path: Path) -> None:
    """A server that says nothing costs no more than the time limit."""
    done = threading.Event()

    def wait(_: bytes) -> None:
        done.wait(60)

    with (
        server(tmp_path / "s", wait),
        ControlClient(tmp_path / "s", timeout_s=0.05) as client,
    ):
        with pytest.raises(ControlError, match="timed out"):
            client.call({"op": "hello"})
        done.set()


def test_a_socket_without_a_server_is_an_error_that_names_it(tmp_path: Path) -> None:
    """No socket, or one that nobody serves, is an error that names it."""
    with pytest.raises(ControlError, match="No such file"):
        ControlClient(tmp_path / "absent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "dead"))
    with pytest.raises(ControlError, match="refused"):
        ControlClient(tmp_path / "dead")


def test_squatted(tmp_path: Path) -> None:
    """A server that runs as somebody else is refused before anything is sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(ControlError, match=f"served by uid {os.getuid()}, expected {os.getuid() + 1}"):
            ControlClient(tmp_path / "s", expected_uid=os.getuid() + 1)
