"""The parent's end of the line to the supervisor."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.lab.wire import MESSAGE_MAX, receive

REQUEST_TIMEOUT_S = 60.0

Answer = tuple[dict[str, Any], list[int]]


class LabClosedError(UserError):
    """The lab is gone: closed, or its supervisor was killed."""


class LabUnavailableError(LabClosedError):
    """This machine, or this user, cannot have a lab; the message says what is missing."""


class Channel:
    """Starts a supervisor and talks to it. Any thread may call `request`."""

    def __init__(
        self,
        directory: Path,
        keep: bool,
        on_exit: Callable[[int, int, int], None],
        on_end: Callable[[], None],
    ) -> None:
        """Called on the channel's thread: on_exit(pid, code, at_ns) for each process that ends, on_end() when all has.

        keep : leave the directory when the lab ends. Raises UserError when this machine cannot make namespaces.
        """
        self._on_exit = on_exit
        self._on_end = on_end
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._next_id = 0
        self._fatal: LabClosedError | None = None
        self._closed = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX)
        self._socket = ours
        pidfd = os.pidfd_open(os.getpid())
        try:
            # Held open: what the supervisor wrote last is asked for when its directory is gone already.
            self._log = (directory / "supervisor.log").open("a+b")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "fabricpulse.lab.supervisor",
                    str(theirs.fileno()),
                    str(pidfd),
                    str(directory),
                    "keep" if keep else "remove",
                ],
                pass_fds=(theirs.fileno(), pidfd),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends the lab in order
            )
        finally:
            theirs.close()
            os.close(pidfd)
        self._thread = threading.Thread(target=self._read, name="lab-channel", daemon=True)
        self._thread.start()

    @property
    def supervisor_pid(self) -> int:
        """PID, outside the lab, of the outer half of the supervisor."""
        return self._process.pid

    def request(self, op: str, descriptors: Sequence[int] = (), **fields: Any) -> Answer:
        """Sends one request; returns the reply and the descriptors that came with it (the caller's to close).

        Raises UserError or OSError as the supervisor reports them, LabClosedError when it is gone.
        """
        future: Future[Answer] = Future()
        with self._lock:
            if self._closed:
                raise self._gone()
            self._next_id += 1
            number = self._next_id
            self._waiting[number] = future
            message = json.dumps({"id": number, "op": op, **fields}).encode()
            failed = self._send(message, descriptors)
            if failed is not None:
                del self._waiting[number]
        if isinstance(failed, BrokenPipeError | ConnectionResetError):
            # The kernel signals a writer of the end before the thread that reads has seen why.
            if threading.current_thread() is not self._thread:
                self._thread.join(REQUEST_TIMEOUT_S)
            raise self._gone() from failed
        if failed is not None:
            raise failed
        try:
            answer, attached = future.result(REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise UserError(
                f"the lab's supervisor has not answered {op} in {REQUEST_TIMEOUT_S:g} s"
            ) from None
        failure = answer.get("error")
        if failure is None:
            return answer, attached
        if answer["kind"] == "user":
            raise UserError(failure)
        if answer["kind"] == "os":
            raise OSError(answer["errno"], failure)
        raise RuntimeError(f"the lab's supervisor failed on {op}:\n{failure}")

    def close(self) -> None:
        """Ends the lab; returns when every process in it is gone."""
        with self._lock:
            self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()  # process 1 follows by its parent-death signal
            self._process.wait()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        self._socket.close()
        self._log.close()

    def _send(self, message: bytes, descriptors: Sequence[int]) -> OSError | None:
        try:
            socket.send_fds(self._socket, [message], list(descriptors))
        except OSError as error:
            return error
        return None

    def _gone(self) -> LabClosedError:
        # A new one for each caller: a traceback belongs to one thread.
        return (
            LabClosedError("the lab is closed")
            if self._fatal is None
            else type(self._fatal)(*self._fatal.args)
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it was killed"

    def _read(self) -> None:
        while True:
            try:
                data, descriptors = receive(self._socket)
            except OSError:
                break
            if not data:
                break
            message = json.loads(data)
            if message.get("event") == "exit":
                self._on_exit(message["pid"], message["code"], message["at_ns"])
            elif message.get("event") == "fatal":
                self._fatal = LabUnavailableError(message["error"])
            else:
                with self._lock:
                    future = self._waiting.pop(message["id"])
                future.set_result((message, descriptors))
        with self._lock:
            if not self._closed and self._fatal is None:
                self._fatal = LabClosedError(
                    f"the lab's supervisor has ended unexpectedly: {self._last_words()}"
                )
            self._closed = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(self._gone())
        self._on_end()
