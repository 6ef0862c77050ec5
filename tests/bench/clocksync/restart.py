"""A coordinator is killed and started again: how long until all its sidecars are placed again, and what bounds do.

The coordinator is a real one, and so is every request: each simulated sidecar reports once a second, at the same moment
of fleet time as the others, by datagram while it has a channel and else over a TCP connection of its own, and gives up
after 3 s, as the real one does. It does not ask its neighbours meanwhile. Clocks are up to 5 s and 50 ppm apart, and
known exactly; edges are measured with 20 ns of noise.
"""

import asyncio
import math
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.load import HttpConnection, cpu_s, rss_mb

from fabricpulse.clocksync.wire.datagram import Reset, pack_request, unpack_reply
from fabricpulse.clocksync.wire.messages import (
    EDGE_DTYPE,
    PROTOCOL,
    Channel,
    EdgeName,
    HostInfo,
    Line,
    Quorum,
    RoundReply,
    RoundReport,
    reply_decoder,
    report_encoder,
)

_NS = 10**9
_PORT = 29_616
_EDGES = 5
_STEP_S, _TIMEOUT_S, _READING_S = 1.0, 3.0, 0.1
# How bounds grow: with a correction, and when that is older than so many seconds (FleetClockParameters).
_DRIFT_PPB, _HOLDOVER_PPB, _HOLDOVER_AFTER_S = 250, 1_000, 4.0


@dataclass
class _Counts:
    """posts, posts_lost : reports by HTTP, and those without an answer in time. datagrams, datagrams_lost : likewise.
    resets : answers of a coordinator that does not know the channel.
    """

    posts: int = 0
    posts_lost: int = 0
    datagrams: int = 0
    datagrams_lost: int = 0
    resets: int = 0


@dataclass
class _Readings:
    """Readings of all clocks together, and in how many of them every two clocks agreed within their bounds."""

    taken: int = 0
    held: int = 0
    widest_ns: float = 0.0
    widths: list[float] = field(default_factory=list)


class _Fleet(asyncio.DatagramProtocol):
    """`n` sidecars of a random graph of 2 * _EDGES edges each, half of which each reports."""

    def __init__(self, n: int) -> None:
        rng = self._rng = np.random.default_rng(1)
        self.n = n
        self._names = [f"gpu-{k:05d}" for k in range(n)]
        self._peers = (np.arange(n)[:, None] + rng.integers(1, n, (n, _EDGES))) % n
        self._infos = [
            HostInfo(
                1,
                f"http://10.0.{k >> 8}.{k & 255}:9613",
                (),
                tuple(EdgeName("rail0", self._names[p], "rail0") for p in row),
                "none",
            )
            for k, row in enumerate(self._peers)
        ]
        self._offset = rng.integers(-5 * _NS, 5 * _NS, n)
        self._rate = rng.uniform(-50e-6, 50e-6, n)
        self._began_ns = time.time_ns()
        # Lines as the last replies have them; NaN bounds where there is none.
        self.ref, self.correction, self.rate_ppt = np.zeros((3, n), np.int64)
        self.bound = np.full(n, np.nan)
        self.placed_s = np.full(n, -np.inf)
        # An answer by datagram has come.
        self.by_datagram = np.zeros(n, np.bool_)
        self._channels: list[Channel | None] = [None] * n
        self._informed = np.zeros(n, np.bool_)
        self._busy: list[asyncio.Task[None] | None] = [None] * n
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._sequence = 0
        self._root = ""
        self._quorum: Quorum | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self.counts, self.readings = _Counts(), _Readings()

    def _clock(self, hosts: NDArray[np.int64], now_ns: int) -> NDArray[np.int64]:
        """What the clocks of `hosts` show at the true moment `now_ns`."""
        turned = np.rint(self._rate[hosts] * (now_ns - self._began_ns)).astype(np.int64)
        return now_ns + self._offset[hosts] + turned

    def read(self) -> None:
        """Whether at this moment each two clocks agree within their bounds."""
        host = self._clock(np.arange(self.n), time.time_ns())
        known = ~np.isnan(self.bound)
        if not known.any():
            return
        age_s = (host - self.ref).astype(np.float64) * 1e-9
        # Relative to the first host's clock: float64 would cut nanoseconds off a time since 1970.
        fleet = (host - host[0] + self.correction + self.rate_ppt * age_s * 1e-3)[known]
        bound = (self.bound + self._grown(age_s))[known]
        self.readings.taken += 1
        self.readings.held += bool((fleet - bound).max() <= (fleet + bound).min())
        self.readings.widths.append(float(np.median(bound)))
        self.readings.widest_ns = max(self.readings.widest_ns, float(bound.max()))

    @staticmethod
    def _grown(age_s: NDArray[np.float64]) -> NDArray[np.float64]:
        over: NDArray[np.float64] = np.maximum(age_s - _HOLDOVER_AFTER_S, 0.0)
        return np.abs(age_s) * _DRIFT_PPB + over * (_HOLDOVER_PPB - _DRIFT_PPB)

    async def run(self) -> None:
        """Steps the fleet and reads the clocks until cancelled."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, remote_addr=("127.0.0.1", _PORT)
        )
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        reading = asyncio.create_task(self._read_forever())
        try:
            while True:
                began = time.monotonic()
                await self._step()
                await asyncio.sleep(max(0.0, _STEP_S - (time.monotonic() - began)))
        finally:
            reading.cancel()
            self._transport.close()

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(_READING_S)
            self.read()

    async def _step(self) -> None:
        """All that are not busy with their last report begin another."""
        self._sequence += 1
        for k in range(self.n):
            task = self._busy[k]
            if task is not None and not task.done():
                continue
            self._busy[k] = asyncio.create_task(self._report(k))
            # The loop takes what has come in between.
            if k % 64 == 63:
                await asyncio.sleep(0)

    def _measure(self, k: int, info: HostInfo | None) -> RoundReport:
        """What host `k` says now; its edges have been measured just before."""
        now_ns = time.time_ns()
        shown = self._clock(np.append(self._peers[k], k), now_ns)
        block = np.zeros(_EDGES, EDGE_DTYPE)
        block["edge"] = np.arange(_EDGES)
        block["t_ns"] = host = int(shown[-1])
        block["offset_ns"] = shown[:-1] - host + np.rint(self._rng.normal(0, 20, _EDGES)).astype(np.int64)
        block["rate_ppt"] = np.rint((self._rate[self._peers[k]] - self._rate[k]) * 1e12)
        block["sigma_ns"], block["rate_sigma_ppt"], block["bound_ns"] = 20, 5_000, 2_000
        line = None
        if self.bound[k] == self.bound[k]:
            age_s = np.float64(host - self.ref[k]) * 1e-9
            correction = self.correction[k] + round(self.rate_ppt[k] * age_s * 1e-3)
            bound = math.ceil(self.bound[k] + self._grown(np.array([age_s]))[0])
            line = Line(host, int(correction), int(self.rate_ppt[k]), bound)
        return RoundReport(
            PROTOCOL, self._names[k], 1, 1, host, block.tobytes(), line, None, self._root, 0, info,
            quorum=self._quorum, datagrams=True,
        )  # fmt: skip

    async def _report(self, k: int) -> None:
        channel = self._channels[k]
        if channel is not None and self._informed[k]:
            if await self._send(k, channel):
                return
            self._channels[k] = None
        await self._post(k)

    async def _send(self, k: int, channel: Channel) -> bool:
        if self._transport is None:
            return False
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[channel.number] = answer
        self.counts.datagrams += 1
        sequence = self._sequence
        for part in pack_request(channel, sequence, self._measure(k, None)):
            self._transport.sendto(part)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                data = await answer
            found = unpack_reply(channel, sequence, data, self._root, self._quorum)
        except (Reset, TimeoutError, OSError) as error:
            # As CoordinatorClient does: a coordinator that was restarted does not know the names either.
            self._informed[k] = False
            self.counts.resets += isinstance(error, Reset)
            self.counts.datagrams_lost += not isinstance(error, Reset)
            return False
        finally:
            self._answers.pop(channel.number, None)
        if found is None:
            return False
        self._take(k, found[0], by_datagram=True)
        return not found[1]

    async def _post(self, k: int) -> None:
        sent = self._measure(k, None if self._informed[k] else self._infos[k])
        self.counts.posts += 1
        self._informed[k] = True
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    HttpConnection, "127.0.0.1", _PORT
                )
                reply = reply_decoder.decode(await connection.send(report_encoder.encode(sent)))
        except (TimeoutError, OSError):
            self.counts.posts_lost += 1
            self._informed[k] = False
            return
        finally:
            if transport is not None:
                transport.abort()
        self._informed[k] = not reply.resend_info
        self._channels[k] = reply.channel
        self._take(k, reply, by_datagram=False)

    def _take(self, k: int, reply: RoundReply, *, by_datagram: bool) -> None:
        self._root, self._quorum = reply.root, reply.quorum
        self.by_datagram[k] |= by_datagram
        if reply.line is not None:
            line = reply.line
            self.ref[k], self.correction[k], self.rate_ppt[k] = (
                line.ref_host_ns,
                line.correction_ns,
                line.rate_ppt,
            )
            self.bound[k] = line.bound_ns
            self.placed_s[k] = time.monotonic()

    # Called by asyncio

    def error_received(self, exc: Exception) -> None:
        # Nobody listens: the socket of each sidecar would say so.
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(exc)

    def datagram_received(self, data: bytes, addr: object) -> None:
        answer = self._answers.get(struct.unpack_from("<I", data, 4)[0])
        if answer is not None and not answer.done():
            answer.set_result(data)


def bench_restart(report: Callable[..., None], n: int) -> None:
    """From the kill of a coordinator, at whose place another starts at once, until each has an answer by datagram."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < n + 200:
        raise SystemExit(f"clocksync: {n + 200} open files are needed, the limit is {hard}: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n + 200), hard))
    try:
        asyncio.run(_restart(report, n))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fabricpulse.core.cli", "clocksync", "coordinator"]
    # As systemd starts it: 1,024 open files, and as many as it likes if it asks.
    return subprocess.Popen(
        ["prlimit", "--nofile=1024:", *command, "--web.listen-address", f"127.0.0.1:{_PORT}"],
        stderr=subprocess.DEVNULL,
    )


async def _until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"clock_restart: not within {seconds:g} s: {what}")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _restart(report: Callable[..., None], n: int) -> None:
    fleet = _Fleet(n)
    coordinator = _start()
    running = asyncio.create_task(fleet.run())
    case = f"{n:,} sidecars, {_EDGES} edges in each report"
    try:
        await _until(lambda: bool(fleet.by_datagram.all()), 120, "all on datagrams")
        await asyncio.sleep(5)
        before_ns = float(np.median(fleet.readings.widths[-10:]))
        fleet.counts, fleet.readings = _Counts(), _Readings()
        coordinator.send_signal(signal.SIGKILL)
        coordinator.wait()
        killed_s = time.monotonic()
        fleet.by_datagram[:] = False
        coordinator = _start()
        half = await _until(lambda: bool((fleet.placed_s > killed_s).mean() >= 0.5), 120, "half placed again")
        await _until(lambda: bool((fleet.placed_s > killed_s).all()), 120, "all placed again")
        placed_s = time.monotonic() - killed_s
        spent, joined = cpu_s(coordinator.pid), fleet.counts.posts - fleet.counts.posts_lost
        await _until(lambda: bool(fleet.by_datagram.all()), 120, "all on datagrams again")
        datagrams_s = time.monotonic() - killed_s
        counts, readings = fleet.counts, fleet.readings
        report(case, "restart_half_placed_s", round(half, 2), "s")
        report(
            case,
            "restart_all_placed_s",
            round(placed_s, 2),
            "s",
            answered_posts=joined,
            cpu_s=round(spent, 2),
        )
        more = {"posts": counts.posts, "posts_lost": counts.posts_lost, "resets": counts.resets}
        report(case, "restart_all_datagrams_s", round(datagrams_s, 2), "s", **more)
        report(case, "restart_rss_mb", round(rss_mb(coordinator.pid), 1), "MB")
        widths = {"median_before_ns": round(before_ns), "widest_ns": round(readings.widest_ns)}
        report(case, "restart_bound_coverage", readings.held / readings.taken, "ratio", ">= 0.999", **widths)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        coordinator.terminate()
        coordinator.wait()
