"""How a sidecar reports: to all coordinators, following one of them (coordinator_selection.py).

All coordinators get all reports, so each of them always has the whole fleet, and hosts that reach different ones still
keep one timeline: it travels with the reports. A list of which only one is asked would split the fleet whenever one
host had reason to ask the next.

The first report goes by HTTP; the reply may bring a channel, and those that follow go as datagrams, as long as they are
answered.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from fabricpulse.clocksync.sidecar.coordinator_selection import (
    CoordinatorHealth,
    NamedQuorum,
    left_out,
    select_coordinator,
)
from fabricpulse.clocksync.sidecar.datagram_client import DatagramClient
from fabricpulse.clocksync.wire.datagram import fits
from fabricpulse.clocksync.wire.messages import (
    ROUND_PATH,
    Quorum,
    RoundReply,
    RoundReport,
    reply_decoder,
    report_encoder,
)
from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.token_file import TokenFile

log = get_logger(__name__)

_NEVER_S = -1e9


class _Peer(CoordinatorHealth):
    """One coordinator."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.resend_info = True
        self.task: asyncio.Task[None] | None = None
        self.refused = ""
        self.tried = False  # a report to it has been answered, or has failed
        self.datagrams = DatagramClient(url)


class CoordinatorClient:
    """errors : reports that were not answered, by reason."""

    def __init__(self, token: TokenFile, *, datagrams: bool = True, timeout_s: float = 3.0) -> None:
        """datagrams : ask for channels. timeout_s : for the answer to one."""
        self._token = token
        self._datagrams, self._timeout_s = datagrams, timeout_s
        self.errors = {"timeout": 0, "connection": 0, "status": 0, "reply": 0}
        self._named = NamedQuorum()
        self._peers: list[_Peer] = []
        self._follow_s = 0.0
        self._placed = False
        self._started_s = time.monotonic()

    @property
    def quorum(self) -> Quorum | None:
        """What this host was last part of."""
        return self._named.quorum

    @property
    def up(self) -> bool:
        """True if one of the coordinators answered the last report to it."""
        return any(peer.up for peer in self._peers)

    @property
    def may_answer(self) -> bool:
        """True unless the last report to each of the coordinators has failed."""
        return any(peer.up or not peer.tried for peer in self._peers)

    @property
    def refused(self) -> str:
        """Why the coordinators that did not take the last report did not, each with its URL; "" if none said."""
        return "; ".join(
            f"{peer.url}: {peer.refused}" for peer in self._peers if peer.refused and not peer.up
        )

    def silent_s(self) -> float:
        """Seconds since a coordinator last answered; since the start if none has yet, endless without coordinators."""
        return self._since([peer.answered_s for peer in self._peers])

    def unplaced_s(self) -> float:
        """Seconds since a coordinator last knew how this host's clock fits into the fleet's."""
        return self._since([peer.placed_s for peer in self._peers])

    def left_out(self, follow_s: float) -> bool:
        """Whether a coordinator that answered within `follow_s` speaks for the fleet without this host."""
        return left_out(self._peers, time.monotonic(), follow_s)

    def _since(self, moments_s: list[float]) -> float:
        # A host that starts before its coordinators is not alone yet: it would begin a timeline with whom it finds.
        return time.monotonic() - (max(self._started_s, *moments_s) if moments_s else _NEVER_S)

    def resend_info(self) -> None:
        """The next reports carry HostInfo: it has changed."""
        for peer in self._peers:
            peer.resend_info = True

    async def report(
        self,
        client: HttpClient,
        urls: Sequence[str],
        report: Callable[[bool], RoundReport],
        take: Callable[[RoundReply, bool], None],
        *,
        wait_s: float,
        follow_s: float,
    ) -> None:
        """Reports to each coordinator that is not still busy with the last one; returns when those that answer have,
        at most `wait_s` later.

        report : makes one of now; with HostInfo if it is passed True. take : gets each reply, even after the return,
        and whether it is that of the coordinator to follow. follow_s : how long one is followed that no longer answers.
        """

        async def report_safely(peer: _Peer) -> None:
            # A fault with one coordinator does not keep reports from the others or the neighbours.
            try:
                await self._report(client, peer, report, take)
            except Exception:
                peer.up, peer.tried = False, True
                log.exception("report failed", url=peer.url)

        self._choose(urls)
        self._follow_s = follow_s
        for peer in self._peers:
            if peer.task is None or peer.task.done():
                peer.task = asyncio.create_task(report_safely(peer))
        tasks = [peer.task for peer in self._peers if peer.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)

    async def close(self) -> None:
        """Gives up what is under way."""
        tasks = [peer.task for peer in self._peers if peer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers:
            peer.datagrams.close()

    def _choose(self, urls: Sequence[str]) -> None:
        """Peers for `urls`, which a reload may have changed."""
        if [peer.url for peer in self._peers] == list(urls):
            return
        known = {peer.url: peer for peer in self._peers}
        self._peers = [known.pop(url) if url in known else _Peer(url) for url in dict.fromkeys(urls)]
        for removed in known.values():
            if removed.task is not None:
                removed.task.cancel()
            removed.datagrams.close()

    async def _report(
        self,
        client: HttpClient,
        peer: _Peer,
        report: Callable[[bool], RoundReport],
        take: Callable[[RoundReply, bool], None],
    ) -> None:
        reply = await self._send(peer, report) if not peer.resend_info else None
        if reply is None:
            # Else a restarted coordinator would have to ask for HostInfo, and get two reports by HTTP of each host.
            peer.resend_info = peer.resend_info or peer.datagrams.lost
            sent = msgspec.structs.replace(report(peer.resend_info), rank=self._peers.index(peer))
            # With more edges than datagrams take a channel would be of no use, to be opened again at each round.
            small = fits(msgspec.structs.replace(sent, info=None))
            wanted = self._datagrams and peer.datagrams.wanted and small
            sent = msgspec.structs.replace(sent, datagrams=wanted)
            # What changes while this report is under way is for the next one.
            peer.resend_info = False
            reply = await self._post(client, peer, report_encoder.encode(sent))
            if reply is not None:
                await peer.datagrams.open(reply)
        peer.tried = True
        if reply is None:
            peer.resend_info = True
            if peer.up:
                log.warning("a coordinator no longer answers", url=peer.url)
            peer.up = False
            return
        now_s = time.monotonic()
        if not peer.up:
            log.info("a coordinator answers", url=peer.url)
        peer.answered(reply, now_s)
        peer.resend_info = peer.resend_info or reply.resend_info
        self._named.take(self._peers, now_s)
        leader = select_coordinator(
            self._peers, now_s, self._follow_s, placed=self._placed, named=self._named.quorum
        )
        follow = leader is None or leader is peer
        self._placed = self._placed or (follow and reply.line is not None)
        try:
            take(reply, follow)
        except ValueError as error:
            log.exception("the coordinator's reply is malformed", url=peer.url, reason=str(error))

    async def _send(self, peer: _Peer, report: Callable[[bool], RoundReport]) -> RoundReply | None:
        """The reply to a report by datagram; None when it has to go by HTTP."""
        sent = msgspec.structs.replace(report(False), rank=self._peers.index(peer))
        if not peer.datagrams.ready(sent):
            return None
        return await peer.datagrams.report(sent, self._timeout_s)

    async def _post(self, client: HttpClient, peer: _Peer, body: bytes) -> RoundReply | None:
        reason = ""
        try:
            async with client.post(
                peer.url.rstrip("/") + ROUND_PATH, data=body, headers=self._token.header
            ) as response:
                if response.status == 200:
                    reply = reply_decoder.decode(await read_body(response))
                    peer.refused = ""
                    return reply
                kind, reason = "status", f"{response.status} {await _first_line(response)}"
        except TimeoutError:
            kind, reason = "timeout", "no answer in time"
        except (aiohttp.ClientError, OSError) as error:
            kind, reason = "connection", describe(error)
        except msgspec.MsgspecError as error:
            kind, reason = "reply", f"cannot be read: {error}"
        self.errors[kind] += 1
        # Once for each reason, not once a round.
        if reason != peer.refused:
            peer.refused = reason
            log.warning("report not taken", url=peer.url, kind=kind, reason=reason)
        return None


async def _first_line(response: aiohttp.ClientResponse) -> str:
    """What a refusal says, as far as a log line has room."""
    return (await response.content.read(200)).decode(errors="replace").strip()
