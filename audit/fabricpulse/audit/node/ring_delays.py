"""What one rank of the ring sees of one-way delay, beside what the mesh exporter of its host sees of the same NICs.

The plugin times its chunks on fleet time, which it reads from its run directory; that of the audit's ring is its own,
so the page of the host is copied there as long as the ring lasts.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from fabricpulse.audit.node.transfer import SYNCHRONIZED
from fabricpulse.audit.node.wire import RingDelay
from fabricpulse.core.files import named
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockPageWriter, ClockStatus
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.core.web.client import fetch
from fabricpulse.plugin_ipc.telemetry import DelaySource, PluginTelemetryReader, Table, TornReadError, text

# enum fp_lane_transport.
_VERBS = 2
_MESH_PATIENCE_S = 3.0
# Names as documents carry them, and pairs of NICs of one rank: what a telemetry file may say is bounded.
_MOST_NAME, _MOST_PAIRS = 128, 64
# Some days.
_MOST_NS = 10**15


class ClockCopy:
    """The clock page of this host, for a process with another run directory. It says what the page says when `renew`
    was called last, or nothing; with the bound of the clock then, ns, None without fleet time."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.bound_ns: int | None = None
        self._reader: ClockPageReader | None = None
        with suppress(OSError, LayoutError):
            reader = ClockPageReader(page)
            self._writer = ClockPageWriter(folder / page.name)
            self._reader = reader
            self.renew()

    def renew(self) -> None:
        """To be called some times a second: the ring's clock must not outlive the sidecar's by more."""
        if self._reader is None:
            return
        try:
            now, page = self._reader.now(), self._reader.read()
        except (OSError, ValueError, LayoutError):
            return
        known = now.status in SYNCHRONIZED
        self.bound_ns = now.bound_ns if known else None
        self._writer.write(page if known else page._replace(status=ClockStatus.UNKNOWN))

    def close(self) -> None:
        """Unmaps the page of the host."""
        if self._reader is not None:
            self._reader.close()


def least_delays(plugin: Path) -> tuple[RingDelay, ...]:
    """Of each pair of NICs that the rank receives over, from its telemetry; () where there is none, or no fleet time.

    plugin : folder of the rank's telemetry, in which nothing else is.
    """
    found: dict[tuple[str, str, bool], tuple[int, int, int]] = {}
    with suppress(OSError, LayoutError, TornReadError):
        for path in named(plugin, ".telemetry"):
            reader = PluginTelemetryReader(path)
            try:
                snapshot = reader.read()
            finally:
                reader.close()
            names, bounds = snapshot.device_names(), (0, *snapshot.delay_bounds_ns)
            for lane in snapshot.tables[Table.LANES]:
                buckets = np.flatnonzero(lane["delay"]["buckets"])
                device = names.get(int(lane["device"]), "")
                if int(lane["delay_source"]) != DelaySource.FLEET or not len(buckets) or not device:
                    continue
                key = device, text(lane["peer_device"]), int(lane["transport"]) == _VERBS
                first = int(buckets[0])
                least, most = bounds[first], bounds[min(first + 1, len(bounds) - 1)]
                old = found.get(key, (least, most, 0))
                chunks = old[2] + int(lane["delay"]["count"])
                found[key] = (*min(old[:2], (least, most)), chunks)
    return tuple(
        RingDelay(device[:_MOST_NAME], peer[:_MOST_NAME], least, most, chunks, rdma)
        for (device, peer, rdma), (least, most, chunks) in sorted(found.items())[:_MOST_PAIRS]
    )


def with_mesh(delays: tuple[RingDelay, ...], peer: str, url: str) -> tuple[RingDelay, ...]:
    """With the smallest delay that the mesh exporter of this host has seen on each pair, where it probes it.

    peer : the host that the rank receives from, as the fleet calls it. url : of the exporter. Blocks for some seconds
    at most; raises nothing.
    """
    if not delays or not peer or not url:
        return delays
    known: dict[tuple[str, str], tuple[int, int]] = {}
    # Any user of the host may listen there while no exporter does.
    with suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
        timeout = aiohttp.ClientTimeout(total=_MESH_PATIENCE_S)
        status, body = fetch(url.rstrip("/") + "/api/v1/edges", timeout=timeout)
        if status == 200:
            known = dict(_edges(json.loads(body), peer))
    return tuple(
        RingDelay(d.device, d.peer_device, d.least_ns, d.most_ns, d.chunks, d.rdma, *known[d.device, d.peer_device])
        if (d.device, d.peer_device) in known
        else d
        for d in delays
    )  # fmt: skip


def _edges(document: Any, peer: str) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    """(device, peer's device), (smallest delay, bound) of the edges to a host; docs/mesh-api.md. What is no such
    document has none."""
    edges = document.get("edges") if isinstance(document, dict) else None
    for edge in edges if isinstance(edges, list) else ():
        owd = edge.get("owd_ns") if isinstance(edge, dict) else None
        if not isinstance(owd, dict) or edge.get("peer") != peer:
            continue
        least, bound = owd.get("min"), owd.get("error_bound")
        if isinstance(least, int) and isinstance(bound, int) and abs(least) <= _MOST_NS and bound <= _MOST_NS:
            yield (str(edge.get("device")), str(edge.get("peer_device"))), (least, max(0, bound))
