"""Tells Alertmanager of a collective that does not end, before Prometheus has scraped it.

Each interval: are requests of ranks on this host stuck? If so, the hosts of the ranks that they wait for are asked, all
at once, each for a bounded time; their answers decide (`stall`). No host is asked while nothing is stuck.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable

import aiohttp
import msgspec

from fabricpulse.core.alerting.pusher import AlertContent, Pusher
from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.urls import redact
from fabricpulse.qp.config import StallAlerting
from fabricpulse.qp.stall import HostRanks, Stall, find_profiled_stalls, find_stalls, stuck
from fabricpulse.qp.unmoved import UnmovedRank

log = get_logger(__name__)

ALERT_NAME = "FabricCollectiveStalled"
# Those of the rule; the ones that the scrape job sets are dropped by it.
DEFAULT_LABELS = {"component": "plugin"}
RUNBOOK_URL = f"https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/{ALERT_NAME}.md"
_MOST_ASKED = 32
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})")
_MOST_BODY = 4 << 20


class StallWatch:
    """The alerts of one host. failed : hosts that were asked and did not answer, counted each time."""

    def __init__(
        self,
        config: StallAlerting,
        host: str,
        ranks: Callable[[], HostRanks],
        unmoved: Callable[[], Iterable[UnmovedRank]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """ranks, unmoved : what is known of this host now. host : as peers call it."""
        self._config = config
        self._host = host
        self._ranks = ranks
        self._unmoved = unmoved
        self.pusher: Pusher[Stall] = Pusher(config, clock)
        self._client: HttpClient | None = None
        self._decoder = msgspec.json.Decoder(HostRanks)
        self.failed = 0

    async def open(self) -> None:
        """Must come before the tasks. Raises ConfigError when a file of one of the clients cannot be used."""
        await self.pusher.open()
        self._client = HttpClient(self._config.peer_client, connections=_MOST_ASKED)

    async def close(self) -> None:
        """Closes all connections, once the tasks have ended."""
        if self._client is not None:
            await self._client.close()
        await self.pusher.close()

    async def poll(self) -> None:
        """One interval: fires and ends what has changed."""
        config, own = self._config, self._ranks()
        peers = {w.peer for w in stuck(own.waiting, config.stalled_s)} - {self._host}
        # The name of the peer comes from the job: a name, not a piece of a URL.
        asked = sorted(filter(_HOST_NAME.fullmatch, peers))[:_MOST_ASKED]
        ranks_of_asked = zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True)
        ranks_of = {self._host: own} | {host: ranks for host, ranks in ranks_of_asked if ranks is not None}
        stalls = find_stalls(own.waiting, ranks_of, config.stalled_s)
        stalls |= find_profiled_stalls(self._unmoved(), own, self._host, config.stalled_s)
        firing = self.pusher.firing()
        for stall in [s for s in firing if s not in stalls]:
            # Without an answer of the peer the alert stays for as long as the request is stuck.
            if not self._unknown(stall, own, ranks_of):
                self.pusher.set_resolved(stall)
                log.info("collective resumed", workload=stall.workload, rank=stall.rank)
        for stall, age_s in stalls.items():
            if stall not in firing:
                log.warning(
                    "collective stalled",
                    workload=stall.workload,
                    head=stall.head,
                    rank=stall.rank,
                    peer=stall.peer,
                    age_s=round(age_s, 1),
                )
            self.pusher.set_firing(stall, content(config, stall, age_s))

    def _unknown(self, stall: Stall, own: HostRanks, ranks_of: dict[str, HostRanks]) -> bool:
        still = stuck(own.waiting, self._config.stalled_s)
        return stall.peer not in ranks_of and any(w.peer == stall.peer for w in still)

    async def _ask(self, host: str) -> HostRanks | None:
        assert self._client is not None  # noqa: S101 - open() made it
        url = self._config.peer_url.replace("{host}", host)
        try:
            async with self._client.get(f"{url.rstrip('/')}/api/v1/ranks") as response:
                body = await read_body(response, _MOST_BODY)
                if response.status == 200:
                    return self._decoder.decode(body)
                reason = f"status {response.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            reason = describe(error)
        self.failed += 1
        log.debug("the qp exporter of a peer does not answer", url=redact(url), error=reason)
        return None


def content(config: StallAlerting, stall: Stall, age_s: float) -> AlertContent:
    """Labels and annotations of the alert on a stall, those of the rule."""
    labels = {**DEFAULT_LABELS, **config.labels, "alertname": ALERT_NAME, "severity": config.severity}
    of_head = {name: getattr(stall, name) for name in ("rank", "peer", "peer_rank")}
    labels |= {"workload": stall.workload, "head": stall.head, **{n: v for n, v in of_head.items() if v}}
    rank = f"rank {stall.rank}"
    where = {
        "unknown": "Whether the network or a rank holds it up is not known.",
        "network": f"The network: {rank} gets nothing through to rank {stall.peer_rank} on {stall.peer}.",
        "process": f"Not the network: {rank} on {stall.peer} gives no sign of life.",
        "rank": f"Not the network: {rank} on {stall.peer} has not entered the collective and waits for nobody.",
    }[stall.head]
    return AlertContent(
        labels,
        {
            "summary": "A collective does not end.",
            "description": f"Workload {stall.workload} stands still ({age_s:.0f} s). {where}",
            "runbook_url": RUNBOOK_URL,
        },
        config.generator_url,
    )
