"""The sidecar's end of reports by datagram: one channel of one coordinator.

A channel is given with a reply by HTTP and lives for some minutes; then the next report goes by HTTP again, which
shows the token again and brings what datagrams leave out. Whatever goes wrong, the answer is the same: HTTP, at once.
"""

import asyncio
import random
import secrets
import socket
import time
from urllib.parse import urlsplit

from fabricpulse.clocksync.wire.datagram import Reset, fits, pack_request, unpack_reply
from fabricpulse.clocksync.wire.messages import Channel, Quorum, RoundReply, RoundReport

# Seconds that a channel is used; half as long again at random, so that a fleet does not come back all at once.
_LIFE_S = 600.0
# Where no datagram ever passes, the first pause, seconds, until a channel is asked for again; it doubles.
_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
# Channels in a row of which nothing ever came back, after which datagrams are taken not to pass.
_FRUITLESS = 2


class DatagramClient(asyncio.DatagramProtocol):
    """Reports to the coordinator at `url`.

    wanted : the next report by HTTP should ask for a channel. lost : the last one ended without an answer; a
    coordinator that was restarted does not know the host either.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        # The port of the URL, not the one on which the coordinator listens: what maps one may map the other as well.
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._channel: Channel | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._sequence = secrets.randbits(48)
        self._answer: asyncio.Future[tuple[RoundReply, bool]] | None = None
        self._root = ""
        self._quorum: Quorum | None = None
        self._opened_s = 0.0
        self._life_s = 0.0
        self._last_reply = self._new_neighbours = False
        self._fruitless = 0
        self._paused_until_s = 0.0
        self.lost = False

    @property
    def wanted(self) -> bool:
        """False while datagrams are known not to pass."""
        return time.monotonic() >= self._paused_until_s

    def ready(self, report: RoundReport) -> bool:
        """Whether `report` should go this way."""
        if self._channel is None or not fits(report):
            return False
        return time.monotonic() - self._opened_s < self._life_s and not self._new_neighbours

    async def open(self, reply: RoundReply) -> None:
        """Takes the channel of a reply by HTTP, if it has one; the previous one has ended in any case."""
        self.close()
        self.lost = False
        if reply.channel is None:
            return
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
            # A name may have addresses on which no server listens; without a connection nothing says which.
            family, _, _, _, address = found[self._fruitless % len(found)]
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self, family=family, remote_addr=(str(address[0]), self._port)
            )
        except OSError:
            self._missed()
            return
        self._channel, self._root, self._quorum = reply.channel, reply.root, reply.quorum
        self._opened_s = time.monotonic()
        self._life_s = _spread(_LIFE_S)
        self._last_reply = self._new_neighbours = False

    def close(self) -> None:
        """Ends the channel here; the coordinator's end goes with the next report by HTTP, or with the lease."""
        self._channel = None
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    async def report(self, report: RoundReport, timeout_s: float) -> RoundReply | None:
        """The reply; None when none came in `timeout_s`, or none will: the channel has then ended."""
        if self._channel is None or self._transport is None:
            return None
        self._sequence += 1
        self._answer = asyncio.get_running_loop().create_future()
        for part in pack_request(self._channel, self._sequence, report):
            self._transport.sendto(part)
        try:
            async with asyncio.timeout(timeout_s):
                reply, self._new_neighbours = await self._answer
        except (TimeoutError, OSError, Reset):
            self.lost = True
            self._missed()
            return None
        finally:
            self._answer = None
        self._last_reply, self._fruitless = True, 0
        self._root, self._quorum = reply.root, reply.quorum
        return reply

    def _missed(self) -> None:
        replied = self._last_reply
        self.close()
        if replied:
            return
        self._fruitless += 1
        if self._fruitless >= _FRUITLESS:
            pause = min(_PAUSE_S * 2 ** (self._fruitless - _FRUITLESS), _LONGEST_PAUSE_S)
            self._paused_until_s = time.monotonic() + _spread(pause)

    # Called by asyncio

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._answer is None or self._answer.done() or self._channel is None:
            return
        try:
            answer = unpack_reply(self._channel, self._sequence, data, self._root, self._quorum)
        except Reset as reset:
            self._answer.set_exception(reset)
            return
        if answer is not None:
            self._answer.set_result(answer)

    def error_received(self, exc: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc)


def _spread(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.5)  # noqa: S311 - nothing secret
