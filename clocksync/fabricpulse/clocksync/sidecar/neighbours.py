"""Fleet time without a coordinator: what to ask of the neighbours, and what their answers mean for this host.

The coordinator names the neighbours' addresses while it is there; they are kept on disk, so that a sidecar that starts
while it is away finds them. Without either, the membership file and the configured port say where they are.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec

from fabricpulse.clocksync.clock.fleet_clock import Correction
from fabricpulse.clocksync.edge.estimator import RATE_SIGMAS, EdgeFit
from fabricpulse.clocksync.sidecar.averaging import NeighbourView, agree, average, contradiction_ns
from fabricpulse.clocksync.sidecar.neighbour_doubt import NeighbourDoubt, remember
from fabricpulse.clocksync.wire.messages import LINE_PATH, EdgeName, Line, LineReply, line_decoder
from fabricpulse.core.files import atomic_write
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, read_body

log = get_logger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=0.5)
_MOST_LINE = 1 << 20


class NeighbourBook:
    """host -> URL of its sidecar, as the coordinator last said; kept in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.urls = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            self.urls = {}

    def learn(self, urls: dict[str, str]) -> None:
        """Takes what the coordinator says."""
        self.urls = urls
        try:
            # In the run directory, which a power cut empties anyway.
            atomic_write(self._path, msgspec.json.encode(urls), durable=False)
        except OSError as error:
            log.warning("cannot remember the neighbours", path=str(self._path), reason=error.strerror)

    def urls_of(
        self, edges: Iterable[EdgeName], membership: Membership, port: int, *, tls: bool
    ) -> dict[str, str]:
        """Where the sidecars at the other ends of `edges` answer. port, tls : of those that only the membership
        knows.
        """
        urls = {}
        for edge in edges:
            if edge.peer in self.urls:
                urls[edge.peer] = self.urls[edge.peer]
                continue
            host = membership.host(edge.peer)
            nic = next((n for n in host.nics if n.device == edge.peer_device), None) if host else None
            if nic is not None and edge.peer not in urls:
                address = f"[{nic.address}]" if ":" in nic.address else nic.address
                urls[edge.peer] = f"{'https' if tls else 'http'}://{address}:{port}"
        return urls


def own_url(addresses: Iterable[tuple[str, int]], *, tls: bool) -> str:
    """Where a server that listens on `addresses` is reached; "" if all of them are wildcards."""
    scheme = "https" if tls else "http"
    for address, port in addresses:
        if address not in ("", "0.0.0.0", "::"):  # noqa: S104 - a comparison
            return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"
    return ""


async def ask_lines(client: HttpClient, urls: Mapping[str, str]) -> dict[str, LineReply]:
    """The answers of the neighbours that answer; asked all at once."""
    replies = await asyncio.gather(*(_ask_line(client, url) for url in urls.values()))
    return {peer: reply for peer, reply in zip(urls, replies, strict=True) if reply is not None}


async def _ask_line(client: HttpClient, url: str) -> LineReply | None:
    try:
        async with client.get(url.rstrip("/") + LINE_PATH, timeout=_TIMEOUT) as response:
            if response.status != 200:
                return None
            return line_decoder.decode(await read_body(response, _MOST_LINE))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.MsgspecError):
        return None


def consensus(
    host: str,
    own: Line | None,
    fits: Iterable[tuple[str, EdgeFit]],
    lines: Mapping[str, LineReply],
    now_ns: int,
    drift_ppb: float,
    doubt: NeighbourDoubt | None = None,
    *,
    verified: bool = True,
) -> tuple[Correction | None, NeighbourDoubt | None]:
    """One round of averaging on `host`, whose clock shows `now_ns`, and what it remembers. own : its line. fits :
    (peer, fit). doubt : of the last round. verified : its own line is. Pure.

    Where no host has fleet time, the host with the lowest name makes its own clock the beginning of it. Lines that
    nobody has verified count only where most are of that kind, as in the solve (Hosts.counting).
    """
    fits = list(fits)
    counting = [verified] if own is not None else []
    counting += [not reply.unverified for reply in lines.values() if reply.line is not None]
    if 2 * sum(counting) >= len(counting):
        own = own if verified else None
        lines = {peer: reply for peer, reply in lines.items() if reply.line is None or not reply.unverified}
    if own is None and not any(reply.line is not None for reply in lines.values()):
        peers = {peer for peer, _ in fits}
        if not lines or not peers or host > min(peers):
            return None, doubt
        log.info("no coordinator and no fleet time anywhere: this host's clock begins it")
        return Correction(now_ns, 0, 0.0, 0), doubt
    views, there, unsure_ppb = [], set(), math.inf
    for peer, fit in fits:
        reply = lines.get(peer)
        if reply is None or reply.line is None:
            continue
        there.add(peer)
        unsure_ppb = min(unsure_ppb, RATE_SIGMAS * fit.rate_sigma_ppb)
        offset = fit.at(now_ns)
        # c_us - c_peer = offset; the peer's line is brought to our moment by the peer's own clock.
        elapsed = now_ns + offset - reply.line.ref_host_ns
        peer_correction = reply.line.correction_ns + elapsed * reply.line.rate_ppt // 10**12
        # Its line may be of an earlier round, as on a late machine: what that may hide is no contradiction.
        hides_ns = fit.bound_ns + drift_ppb * (now_ns - fit.t_last_ns + abs(elapsed)) * 1e-9
        views.append(
            NeighbourView(
                peer_correction + offset,
                reply.line.rate_ppt * 1e-3 + fit.rate_ppb,
                fit.sigma_ns,
                reply.line.bound_ns + hides_ns,
                hides_ns,
            )
        )
    own_correction_ns = own.correction_ns if own is not None else None
    own_bound_ns = float(own.bound_ns) if own is not None else float("inf")
    said_ns = contradiction_ns(own_correction_ns, own_bound_ns, views)
    correction = average(
        now_ns,
        own_correction_ns,
        own.rate_ppt * 1e-3 if own is not None else 0.0,
        own_bound_ns,
        views,
        doubt_ns=max(said_ns, doubt.doubt_ns if doubt is not None else 0.0),
    )
    agreed = correction is not None and agree(correction.correction_ns, views)
    if correction is not None:
        # Until averaging has brought them together the rates of neighbours that go on with this host are not its own.
        near = [v for v in views if abs(v.correction_ns - correction.correction_ns) <= v.bound_ns]
        unsure_ppb += max((abs(v.rate_ppb - correction.rate_ppb) for v in near), default=0.0)
        correction = replace(correction, drift_ppb=math.ceil(max(unsure_ppb - drift_ppb, 0.0)))
    return correction, remember(doubt, said_ns, there, now_ns * 1e-9, agreed=agreed)
