"""How many sidecars can report to one coordinator: a real one, and thousands of connections that report as sidecars do.

Every simulated host reports `EDGES` edges once a round, over a connection of its own, and waits for the answer. What is
said is consistent (all clocks agree), so that the solve is an ordinary one.
"""

import asyncio
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fabricpulse.clocksync.wire.messages import (
    EDGE_DTYPE,
    PROTOCOL,
    ROUND_PATH,
    EdgeName,
    HostInfo,
    Line,
    RoundReport,
    reply_decoder,
    report_encoder,
)

EDGES = 10


class HttpConnection(asyncio.Protocol):
    """One keep-alive connection; `answer` is the body of the reply to the last request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bytes] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def send(self, body: bytes) -> "asyncio.Future[bytes]":
        self.answer = asyncio.get_running_loop().create_future()
        head = f"POST {ROUND_PATH} HTTP/1.1\r\nHost: c\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        if self.transport is None:
            raise ConnectionError("not connected")
        self.transport.write(head + body)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) >= length and self.answer is not None:
            self._buffer = body[length:]
            if head.split(b" ", 2)[1] != b"200":
                self.answer.set_exception(ConnectionError(body.decode("utf-8", "replace")))
            else:
                self.answer.set_result(body[:length])

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionError("closed"))


class SimulatedSidecars:
    """`n` hosts in a random graph of 2 * EDGES edges each, half of which each reports."""

    def __init__(self, n: int, port: int) -> None:
        rng = np.random.default_rng(1)
        self.n, self._port = n, port
        self._names = [f"gpu-{k:05d}" for k in range(n)]
        peers = (np.arange(n)[:, None] + rng.integers(1, n, (n, EDGES))) % n
        self._infos = [
            HostInfo(1, "", (), tuple(EdgeName("rail0", self._names[p], "rail0") for p in row), "none")
            for row in peers
        ]
        self._block = np.zeros(EDGES, EDGE_DTYPE)
        self._block["edge"] = np.arange(EDGES)
        self._block["sigma_ns"], self._block["rate_sigma_ppt"], self._block["bound_ns"] = 20, 5_000, 2_000
        self._connections: list[HttpConnection] = []
        self._lines: list[Line | None] = [None] * n
        self._informed = False

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self.n):
            _, connection = await loop.create_connection(HttpConnection, "127.0.0.1", self._port)
            self._connections.append(connection)

    def _bodies(self) -> list[bytes]:
        now = time.time_ns()
        self._block["t_ns"] = now - 10**9
        edges = self._block.tobytes()
        return [
            report_encoder.encode(
                RoundReport(
                    PROTOCOL, name, 1, 1, now, edges, line, None, "", 0, None if self._informed else info
                )
            )
            for name, line, info in zip(self._names, self._lines, self._infos, strict=True)
        ]

    async def play_round(self) -> float:
        """All report at once; returns the seconds until the last has its answer."""
        bodies = self._bodies()
        began = time.monotonic()
        waiting = [c.send(body) for c, body in zip(self._connections, bodies, strict=True)]
        answers = await asyncio.gather(*waiting)
        took = time.monotonic() - began
        self._informed = True
        self._lines = [reply_decoder.decode(answer).line for answer in answers]
        return took

    @property
    def reached(self) -> int:
        """Hosts that the last solve has placed."""
        return sum(line is not None for line in self._lines)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """The most memory that the process has had at once."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def _solve_s(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("fabricpulse_clocksync_solve_seconds ")
    )


def bench_load(report: Callable[..., None], sizes: list[int], steps: int = 10) -> None:
    """CPU of a coordinator for each report, and for the solve of all of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(sizes) + 200
    if hard < wanted:
        raise SystemExit(f"clocksync: {wanted} open files are needed, the limit is {hard}: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    for n in sizes:
        port = 29_614
        coordinator = subprocess.Popen(
            [
                *(sys.executable, "-m", "fabricpulse.core.cli", "clocksync", "coordinator"),
                *("--web.listen-address", f"127.0.0.1:{port}"),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            asyncio.run(_load(report, n, steps, port, coordinator.pid))
        finally:
            coordinator.terminate()
            coordinator.wait()


async def _load(report: Callable[..., None], n: int, steps: int, port: int, pid: int) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            break
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
    fleet = SimulatedSidecars(n, port)
    await fleet.connect()
    for _ in range(3):
        await fleet.play_round()
    before, took, solves = cpu_s(pid), [], []
    for _ in range(steps):
        took.append(await fleet.play_round())
        solves.append(_solve_s(port))
    spent_s = (cpu_s(pid) - before) / steps
    case = f"{n} sidecars x {EDGES} edges"
    solve = float(np.median(solves))
    more = {"reached": fleet.reached, "rss_mb": round(rss_mb(pid), 1)}
    report(case, "coordinator_cpu_s_per_step", round(spent_s, 3), "s", solve_s=round(solve, 3), **more)
    report(case, "coordinator_us_per_report", round((spent_s - solve) / n * 1e6, 1), "us")
    report(case, "step_s_p50", round(float(np.median(took)), 3), "s")
