"""One request to many control sockets at once, within one time limit however many of them hang."""

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from fabricpulse.plugin_ipc.control import MAX_MESSAGE

# gone: connection refused, or no socket. silent: no answer in time, or not a plugin's. squatted: served by a process
# that does not own the socket.
FailureKind = Literal["gone", "silent", "squatted"]

_CREDENTIALS = struct.Struct("3i")
_AT_ONCE = 256
_RETRY_S = 0.01


@dataclass(frozen=True)
class Failure:
    """Why a socket gave no answer. reason : a clause without the socket's name."""

    kind: FailureKind
    reason: str


Answer = dict[str, Any] | Failure


@dataclass
class _Call:
    name: str
    path: Path
    deadline: float
    connection: socket.socket = field(
        default_factory=lambda: socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
    )


def call_all(
    directory: Path, names: Iterable[str], message: dict[str, Any], timeout_s: Callable[[str], float]
) -> dict[str, Answer]:
    """Sends `message` to `<directory>/<name>.sock` of each name; the answer of each, or why there is none.

    timeout_s : for one name, from its turn on; 256 sockets are asked at once. What a server does never raises, nor does
    a want of descriptors: any user of the host can use up all that the kernel has.
    """
    encoded = msgspec.json.encode(message)
    waiting = list(names)
    answers: dict[str, Answer] = {}
    active: dict[str, _Call] = {}
    connecting: list[_Call] = []
    try:
        selector = selectors.DefaultSelector()
    except OSError as error:
        return dict.fromkeys(waiting, _not_asked(error))
    with selector:
        try:
            while waiting or active:
                while waiting and len(active) < _AT_ONCE:
                    name = waiting.pop(0)
                    try:
                        call = _Call(name, directory / f"{name}.sock", time.monotonic() + timeout_s(name))
                    except OSError as error:
                        answers[name] = _not_asked(error)
                        continue
                    active[name] = call
                    connecting.append(call)
                connecting = [c for c in connecting if not _connect(c, encoded, selector, active, answers)]
                limit = _RETRY_S if connecting else _soonest(active)
                for key, _ in selector.select(max(0.0, limit)):
                    call = key.data
                    _finish(call, _receive(call), selector, active, answers)
                now = time.monotonic()
                for call in [call for call in active.values() if call.deadline <= now]:
                    if call in connecting:
                        connecting.remove(call)
                    _finish(call, Failure("silent", "timed out"), selector, active, answers)
        finally:
            for call in active.values():
                call.connection.close()
    return answers


def _not_asked(error: OSError) -> Failure:
    return Failure("silent", error.strerror or str(error))


def _soonest(active: dict[str, _Call]) -> float:
    return min((call.deadline for call in active.values()), default=0.0) - time.monotonic()


def _connect(
    call: _Call,
    message: bytes,
    selector: selectors.BaseSelector,
    active: dict[str, _Call],
    answers: dict[str, Answer],
) -> bool:
    """True when the call is under way or has failed; False when the server's queue is full."""
    try:
        owner = os.lstat(call.path).st_uid
        call.connection.connect(os.fspath(call.path))
        _, uid, _ = _CREDENTIALS.unpack(
            call.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid not in (owner, 0):
            reason = f"served by uid {uid}, owned by uid {owner}"
            _finish(call, Failure("squatted", reason), selector, active, answers)
            return True
        call.connection.send(message)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        gone = error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.EPIPE, errno.ECONNRESET)
        failure = Failure("gone" if gone else "silent", error.strerror or str(error))
        _finish(call, failure, selector, active, answers)
        return True
    selector.register(call.connection, selectors.EVENT_READ, call)
    return True


def _receive(call: _Call) -> Answer:
    try:
        answer, _, flags, _ = call.connection.recvmsg(MAX_MESSAGE)
    except OSError as error:
        return Failure("gone" if error.errno == errno.ECONNRESET else "silent", error.strerror or str(error))
    if flags & socket.MSG_TRUNC:
        return Failure("silent", f"answer is longer than {MAX_MESSAGE} bytes")
    if not answer:
        return Failure("silent", "the other end hung up")
    try:
        decoded = msgspec.json.decode(answer)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Failure("silent", "answer is not JSON")
    return decoded if isinstance(decoded, dict) else Failure("silent", "answer is not a JSON object")


def _finish(
    call: _Call,
    answer: Answer,
    selector: selectors.BaseSelector,
    active: dict[str, _Call],
    answers: dict[str, Answer],
) -> None:
    answers[call.name] = answer
    active.pop(call.name, None)
    if call.connection.fileno() >= 0 and call.connection.fileno() in selector.get_map():
        selector.unregister(call.connection)
    call.connection.close()
