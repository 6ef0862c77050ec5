"""The connections of a server: accepts them, enforces time limits, drops them; aiohttp handles HTTP on them.

asyncio's own server accepts without a bound, logs each accept that fails for want of descriptors, and aiohttp waits
for ever for a request that was begun. So this accepts by itself, and stands between transport and aiohttp's protocol
object: it sees what arrives and when, and `connection_table` decides who may stay.

Until the first byte of a client there is only its socket, without transport, task and protocol object: those cost ten
times as much as the accept. Thousands of connections without a byte fill the accept queue that all clients share, so
the cost of each of them is the delay of everybody else.

A TLS handshake takes a millisecond of CPU that cannot be interrupted. One begins in each iteration of the event loop,
round-robin over clients: open connections wait for one handshake, not for all that arrived, and so does a new client.
Few handshakes of one client are in progress, so that unfinished ones cannot all continue at once.
"""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections import Counter
from typing import cast

from aiohttp import web

from fabricpulse.core.log import get_logger
from fabricpulse.core.log_limit import LogLimit
from fabricpulse.core.web.connection_table import ConnectionTable, Entry, Phase
from fabricpulse.core.web.fair_queue import FairQueue
from fabricpulse.core.web.limits import Limits

log = get_logger(__name__)

_ACCEPTS_AT_ONCE = 64  # in one callback of the event loop
_SWEEP_S = 1.0
# Descriptors or kernel memory have run out: the next accept fails as well.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S = 0.2
# Where a connection was dropped for its descriptor: until that is free. Others wait in the queue, one for each drop.
_DROPPED_S = 0.002
# TLS handshakes of one client in progress.
_HANDSHAKES_AT_ONCE = 16
_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connections:
    """Accepts on listening sockets and hands each connection to aiohttp.

    closed : connections that this server has ended, by reason. refused : not taken at all. exhausted : accepts that
    failed for want of file descriptors.
    """

    def __init__(self, server: web.Server, context: ssl.SSLContext | None, limits: Limits) -> None:
        self.table = ConnectionTable(limits)
        self.closed: Counter[str] = Counter()
        self.refused = 0
        self.exhausted = 0
        self._server = server
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._by_handler: dict[asyncio.Protocol, _Connection] = {}
        # Connections without a byte so far, or whose handshake has not begun.
        self._waiting: set[_Connection] = set()
        self._handshake_queue: FairQueue[_Connection] = FairQueue(_HANDSHAKES_AT_ONCE)
        self._handshake_is_scheduled = False
        self._handshakes: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_due = 0.0
        self._limit = LogLimit(60.0)

    def listen(self, listener: socket.socket) -> None:
        """Serves on a socket that listens; it is closed by `stop_accepting`."""
        listener.setblocking(False)
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener)

    def stop_accepting(self) -> None:
        """Closes the listening sockets; connections stay."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()

    async def stop(self) -> None:
        """Closes the connections that were not handed to aiohttp yet."""
        self.stop_accepting()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._waiting):
            self.table.remove(connection.entry)
            self._drop_waiting(connection)
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def begin(self, request: web.BaseRequest) -> None:
        """A request's head is complete and its handler starts."""
        if (connection := self._by_handler.get(request.protocol)) is not None:
            phase = Phase.ACTIVE if request.content.is_eof() else Phase.BODY
            self.table.enter(connection.entry, phase, self._loop.time())

    def reading(self, request: web.BaseRequest, read_timeout: asyncio.Timeout) -> None:
        """The request's body is read within `read_timeout`, which expires when memory is needed for other requests."""
        if (connection := self._by_handler.get(request.protocol)) is not None:
            connection.read_timeout = read_timeout

    def body_complete(self, request: web.BaseRequest) -> None:
        """The request's body has been read."""
        if (connection := self._by_handler.get(request.protocol)) is not None:
            connection.read_timeout = None
            self.table.enter(connection.entry, Phase.ACTIVE, self._loop.time())

    def end(self, request: web.BaseRequest) -> None:
        """The handler has returned its response."""
        if (connection := self._by_handler.get(request.protocol)) is not None:
            connection.read_timeout = None
            self.table.enter(connection.entry, Phase.IDLE, self._loop.time())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(listener, error)
                    return
                continue  # this connection is gone: accept(2) returns its network errors
            self._admit(accepted, _client_of(accepted, address))

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """No descriptor is left: a connection of the largest client is dropped, and accepting pauses. For long only if
        there was none to drop: those who say nothing must not keep the others waiting."""
        self.exhausted += 1
        dropped = self.table.make_room("no_descriptors")
        if self._limit.allows("accept"):
            log.error("connections cannot be accepted; raise the limit of open files", reason=error.strerror)
        self._loop.remove_reader(listener)
        self._loop.call_later(_DROPPED_S if dropped else _PAUSE_S, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _admit(self, accepted: socket.socket, client: str) -> None:
        connection = _Connection(self, accepted)
        now = self._loop.time()
        entry = self.table.admit(client, connection, now)
        if entry is None:
            self.refused += 1
            accepted.close()
            if self._limit.allows("refused"):
                log.warning("too many connections, new ones are refused", client=client)
            return
        accepted.setblocking(False)
        connection.entry = entry
        if self._context is None:
            self.table.enter(entry, Phase.HEAD, now)
        self._waiting.add(connection)
        self._loop.add_reader(accepted, self._first_byte, connection)
        if self._sweep is None:
            self._schedule_sweep()

    def _first_byte(self, connection: "_Connection") -> None:
        """The first byte of a client, or the end of its stream."""
        accepted = connection.accepted
        try:
            ended = not accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            ended = True
        if ended:
            self._stop_waiting(connection)
            self.table.remove(connection.entry)
            accepted.close()
        elif self._context is None:
            self._begin(connection)
        else:
            self._loop.remove_reader(accepted)
            self._handshake_queue.add(connection.entry.client, connection)
            self._schedule_handshake()

    def _schedule_handshake(self) -> None:
        """Begins a handshake in the next iteration of the event loop."""
        if not self._handshake_is_scheduled:
            self._handshake_is_scheduled = True
            self._loop.call_soon(self._begin_handshake)

    def _begin_handshake(self) -> None:
        self._handshake_is_scheduled = False
        connection = self._handshake_queue.take()
        if connection is None:
            return
        # Its time limit begins now: so far it waited for us.
        self.table.enter(connection.entry, Phase.HANDSHAKE, self._loop.time())
        self._begin(connection)
        self._schedule_handshake()

    def _begin(self, connection: "_Connection") -> None:
        accepted = connection.accepted
        self._stop_waiting(connection)
        connection.handshake = task = self._loop.create_task(self._connect(accepted, connection))
        self._handshakes.add(task)

        def connected(_: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            connection.handshake = None
            if self._context is not None:
                self._handshake_queue.done(connection.entry.client)
                self._schedule_handshake()
            if not connection.established:  # it failed, or was cancelled before it began
                self.table.remove(connection.entry)
                accepted.close()

        task.add_done_callback(connected)

    def _stop_waiting(self, connection: "_Connection") -> None:
        self._waiting.discard(connection)
        self._handshake_queue.remove(connection.entry.client, connection)
        self._loop.remove_reader(connection.accepted)

    def _drop_waiting(self, connection: "_Connection") -> None:
        """Ends a connection without a byte so far, or whose handshake has not begun.

        Without a 408: there is no request that it would answer, and a client that has opened the connection ahead may
        take it for the answer to the next one.
        """
        self._stop_waiting(connection)
        connection.accepted.close()

    async def _connect(self, accepted: socket.socket, connection: "_Connection") -> None:
        context = self._context
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self.table.limits.handshake_s,
            )
        except (OSError, ssl.SSLError) as error:
            # Anybody can send anything to a TLS port: counted, logged for debugging only.
            self.closed["handshake_failed"] += 1
            log.debug("TLS handshake failed", client=connection.entry.client, reason=str(error))

    def _schedule_sweep(self) -> None:
        self._sweep_due = self._loop.time() + _SWEEP_S
        self._sweep = self._loop.call_at(self._sweep_due, self._run_sweep)

    def _run_sweep(self) -> None:
        now = self._loop.time()
        late_s = now - self._sweep_due
        self.table.sweep(now, late_s if late_s > _SWEEP_S else 0.0)
        self._sweep = None
        if len(self.table):
            self._schedule_sweep()


class _Connection(asyncio.Protocol):
    """Between a transport and aiohttp's protocol object."""

    entry: Entry

    # Of aiohttp; there is one from the first byte on.
    _inner: asyncio.Protocol

    def __init__(self, owner: Connections, accepted: socket.socket) -> None:
        self.accepted = accepted
        self.established = False
        self.handshake: asyncio.Task[None] | None = None
        # While a body is read.
        self.read_timeout: asyncio.Timeout | None = None
        self._owner = owner
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.established = True
        self._inner = cast(asyncio.Protocol, self._owner._server())
        self._transport = cast(asyncio.Transport, transport)
        owner = self._owner
        owner._by_handler[self._inner] = self
        if self.entry.phase is Phase.HANDSHAKE:
            owner.table.enter(self.entry, Phase.HEAD, owner._loop.time())
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        owner = self._owner
        owner.table.receive(self.entry, len(data), owner._loop.time())
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        owner = self._owner
        owner.table.stall(self.entry, owner._loop.time())
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.table.flow(self.entry)
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.table.remove(self.entry)
        self._owner._by_handler.pop(self._inner, None)
        self._inner.connection_lost(error)

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def drop(self, reason: str) -> None:
        self._owner.closed[reason] += 1
        transport = self._transport
        if transport is None:
            if self.handshake is not None:
                self.handshake.cancel()
            else:
                self._owner._drop_waiting(self)
        elif reason in ("head_timeout", "body_timeout") and not transport.get_write_buffer_size():
            transport.write(_TIMEOUT_RESPONSE)
            transport.close()
        elif reason == "idle_timeout":
            transport.close()
        elif reason == "buffer_limit" and self.read_timeout is not None:
            # Its reader answers 503, and the connection ends after that.
            self.read_timeout.reschedule(self._owner._loop.time())
            self.read_timeout = None
        else:
            transport.abort()


def _client_of(accepted: socket.socket, address: object) -> str:
    """What counts as one client: an IPv4 address, an IPv6 /64 network (one host can use all its addresses), or all
    clients of a Unix socket together.
    """
    if accepted.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return "local"
    return network_of(str(address[0]))


def network_of(address: str) -> str:
    """The IPv4 address itself, or the IPv6 /64 network of an address."""
    full = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(full, ipaddress.IPv4Address):
        return address
    if full.ipv4_mapped is not None:
        return str(full.ipv4_mapped)
    return str(ipaddress.IPv6Network((full, 64), strict=False))
