"""Client of a control socket: one JSON object a message over SOCK_SEQPACKET.

The plugin serves the socket inside the job; the node agent and `fabricpulse plugin` are its clients.
"""

import os
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec

MAX_MESSAGE = 256 * 1024


class ControlError(Exception):
    """The other end did not answer, or not with a JSON object."""


class ControlClient:
    """A connection to one control socket; use as a context manager. Blocking, with a time limit per call."""

    def __init__(self, path: Path, timeout_s: float = 2.0, expected_uid: int | None = None) -> None:
        """expected_uid : refuse a server that runs as anybody else (the socket may have been squatted).

        Raises ControlError when nothing listens there or the server has another user.
        """
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        # Waits for a place in the server's queue; a socket with Python's own time limit would not.
        seconds, microseconds = int(timeout_s), int(timeout_s % 1 * 1e6)
        try:
            self._socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", seconds, microseconds)
            )
            self._socket.connect(os.fspath(path))
            self._socket.settimeout(timeout_s)
            credentials = self._socket.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
        except OSError as error:
            self._socket.close()
            raise ControlError(f"{path}: {error.strerror or error}") from error
        self.peer_pid, self.peer_uid, _ = struct.unpack("3i", credentials)
        if expected_uid is not None and self.peer_uid != expected_uid:
            self._socket.close()
            raise ControlError(f"{path}: served by uid {self.peer_uid}, expected {expected_uid}")

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends one message and returns its answer. Raises ControlError on silence, hang-up or a non-object."""
        try:
            self._socket.send(msgspec.json.encode(message))
            answer, _, flags, _ = self._socket.recvmsg(MAX_MESSAGE)
        except OSError as error:
            raise ControlError(f"{self._path}: {error.strerror or error}") from error
        if flags & socket.MSG_TRUNC:
            raise ControlError(f"{self._path}: answer is longer than {MAX_MESSAGE} bytes")
        if not answer:
            raise ControlError(f"{self._path}: the other end hung up")
        try:
            decoded = msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise ControlError(f"{self._path}: answer is not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise ControlError(f"{self._path}: answer is not a JSON object")
        return decoded

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
