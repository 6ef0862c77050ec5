"""Link events as they happen: a netlink socket on the event loop, and what closes its gaps.

Theory of operation. The kernel sends a message for each change of a link, with two exceptions that matter here:

* A socket that is not read fast enough loses messages (ENOBUFS). Then all links are asked for anew; their counts tell
  how many changes were lost.
* Changes that it does not think urgent (net/core/link_watch.c: a lost carrier of a physical NIC) wait until a second
  has passed since the last change of any link. So for that long after each message the carrier counts of the links
  are polled in sysfs, which takes no lock.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from fabricpulse.core.log import get_logger
from fabricpulse.hostinfo.netlink import link_messages as wire
from fabricpulse.nic.flap_tracker import Source

log = get_logger(__name__)

_RECEIVE_BUFFER = 8 << 20
_MAX_DATAGRAM = 1 << 16
# linkwatch's delay of one second (HZ in link_watch.c) and a margin.
HOLDOFF_S = 1.2
# How many datagrams are taken before other work of the loop gets its turn.
_BATCH = 256
_SO_RCVBUFFORCE = 33

LinkHandler = Callable[[wire.LinkMessage, Source], None]


class LinkMonitor:
    """on_link : called for each link message and, with "resync", for each link of a dump. on_address : called with an
    interface index when its addresses change. on_overrun : called when messages were lost. poll : called every
    `poll_s` during the holdoff."""

    def __init__(
        self,
        on_link: LinkHandler,
        on_address: Callable[[int], None],
        on_overrun: Callable[[], None],
        poll: Callable[[], None],
        poll_s: float,
        receive_buffer: int = _RECEIVE_BUFFER,
    ) -> None:
        self._on_link = on_link
        self._on_address = on_address
        self._on_overrun = on_overrun
        self._poll = poll
        self._poll_s = poll_s
        self._receive_buffer = receive_buffer
        self._socket: socket.socket | None = None
        self._asked = wire.Request(0, 0)
        self._dumping = False
        self._dump_again = False
        self._first_dump: asyncio.Future[None] | None = None
        self._poll_until = 0.0
        self._poll_handle: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Subscribes, then reads all links; returns when they are known. Raises OSError without netlink."""
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0
        )
        try:
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, self._receive_buffer)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            sock.bind((0, wire.RTMGRP_LINK | wire.RTMGRP_IPV4_IFADDR | wire.RTMGRP_IPV6_IFADDR))
        except OSError:
            sock.close()
            raise
        self._socket = sock
        loop = asyncio.get_running_loop()
        self._first_dump = loop.create_future()
        loop.add_reader(sock.fileno(), self._readable)
        self._request_dump()
        await asyncio.wait_for(self._first_dump, 5)

    def resync(self) -> None:
        """Asks for all links again, for instance after the set of wanted links has changed."""
        if self._socket is not None:
            self._request_dump()

    def _request_dump(self) -> None:
        if self._dumping:
            self._dump_again = True
            return
        if self._socket is None:
            return
        self._asked = wire.Request(self._socket.getsockname()[0], self._asked.sequence + 1)
        try:
            self._socket.send(wire.link_dump_request(self._asked.sequence))
            self._dumping = True
        except OSError as error:
            log.error("cannot ask the kernel for all links", error=str(error))

    def _readable(self) -> None:
        sock = self._socket
        if sock is None:
            return
        for _ in range(_BATCH):
            try:
                data, sender = sock.recvfrom(_MAX_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._on_overrun()
                    # The answer to a running dump may be among what was lost.
                    self._dumping = False
                    self._request_dump()
                    continue
                log.error("reading link events failed", error=str(error))
                return
            # Only messages of the kernel (port 0) count.
            if sender[0] == 0:
                for message in wire.parse(data):
                    self._take(message)

    def _take(self, message: wire.Message) -> None:
        if isinstance(message, wire.LinkMessage):
            if message.answers == self._asked:
                self._on_link(message, "resync")
            elif message.answers.port != self._asked.port:
                self._on_link(message, "event")
                self._begin_holdoff()
        elif isinstance(message, wire.AddressMessage):
            self._on_address(message.ifindex)
        elif message.answers == self._asked:
            if message.interrupted:
                self._dump_again = True
            if message.done:
                self._dump_ended(message.error)

    def _dump_ended(self, error: int) -> None:
        self._dumping = False
        if error:
            log.warning("the kernel did not give all links", error=os.strerror(-error))
            self._dump_again = True
        if self._dump_again:
            self._dump_again = False
            asyncio.get_running_loop().call_later(0.02, self.resync)
        if self._first_dump is not None and not self._first_dump.done():
            self._first_dump.set_result(None)

    def _begin_holdoff(self) -> None:
        loop = asyncio.get_running_loop()
        self._poll_until = loop.time() + HOLDOFF_S
        if self._poll_handle is None:
            self._poll_handle = loop.call_later(self._poll_s, self._poll_once)

    def _poll_once(self) -> None:
        loop = asyncio.get_running_loop()
        self._poll()
        if loop.time() < self._poll_until:
            self._poll_handle = loop.call_later(self._poll_s, self._poll_once)
        else:
            self._poll_handle = None

    def stop(self) -> None:
        """Closes the socket; the last messages that it holds are taken first."""
        if self._socket is None:
            return
        with suppress(OSError):
            self._readable()
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None
        if self._poll_handle is not None:
            self._poll_handle.cancel()
            self._poll_handle = None
