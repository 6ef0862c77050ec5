"""Messages between a lab's parent and its supervisor: JSON in one packet, descriptors beside it."""

import array
import socket

MESSAGE_MAX = 1 << 20
_DESCRIPTORS_MAX = 8


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, none of which a later exec inherits (socket.recv_fds ignores its flags)."""
    numbers = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(
        MESSAGE_MAX, socket.CMSG_SPACE(_DESCRIPTORS_MAX * numbers.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return data, list(numbers)
