"""Receives what switches announce of themselves on the NICs of this host (LLDP). Linux; needs CAP_NET_RAW."""

import errno
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

from fabricpulse.audit.host.lldp import ETHERTYPE, MULTICAST, Neighbour, parse

_SOL_PACKET, _ADD_MEMBERSHIP, _MR_MULTICAST = 263, 1, 0
_PACKET_OUTGOING = 4
# A broken neighbour may send without end.
_MOST_FRAMES = 10_000


def receive_lldp(
    devices: Sequence[str], seconds: float, stop: threading.Event
) -> tuple[dict[str, Neighbour], dict[str, str]]:
    """The neighbours whose frames arrive on `devices`, and why nothing can be received on others; a device in neither
    was silent. Ends after `seconds`, or when all were received.
    """
    neighbours: dict[str, Neighbour] = {}
    unreadable: dict[str, str] = {}
    with ExitStack() as stack:
        ready = stack.enter_context(selectors.DefaultSelector())
        for device in devices:
            try:
                link = stack.enter_context(_listen(device))
            except OSError as error:
                refused = error.errno in (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)
                unreadable[device] = "the agent has no CAP_NET_RAW or AF_PACKET" if refused else str(error)
                continue
            ready.register(link, selectors.EVENT_READ, device)
        end = time.monotonic() + seconds
        frames = 0
        while ready.get_map() and frames < _MOST_FRAMES and not stop.is_set():
            left = end - time.monotonic()
            if left <= 0:
                break
            for key, _ in ready.select(min(0.2, left)):
                frames += 1
                link = key.fileobj  # type: ignore[assignment]
                try:
                    frame, address = link.recvfrom(2048)
                except OSError as error:
                    unreadable[key.data] = str(error)
                    ready.unregister(link)
                    continue
                # An lldpd of this host sends on the same NIC.
                neighbour = None if address[2] == _PACKET_OUTGOING else parse(frame)
                if neighbour is not None:
                    neighbours[key.data] = neighbour
                    ready.unregister(link)
    return neighbours, unreadable


def _listen(device: str) -> socket.socket:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.htons(ETHERTYPE))
    try:
        link.setblocking(False)
        link.bind((device, ETHERTYPE))
        request = struct.pack("=iHH8s", socket.if_nametoindex(device), _MR_MULTICAST, 6, MULTICAST)
        link.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
    except BaseException:
        link.close()
        raise
    return link
