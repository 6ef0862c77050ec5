"""A program of the demo's stack: started in a node of the lab, watched, killed and started again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab, LabProcess
from fabricpulse.lab.demo.lateness import longest_wait_s, run_queue_waits
from fabricpulse.lab.demo.scenario_run import PATIENCE

READY_TIMEOUT_S = 60.0


@dataclass
class Daemon:
    """One daemon.

    name : unique in its node. port : where it serves HTTP in its node. ready_path : answers 200 once it is ready.
    """

    lab: Lab
    node: str
    name: str
    argv: Sequence[str | Path]
    port: int
    ready_path: str = "/-/ready"
    process: LabProcess | None = None
    outside_port: int = 0
    _starts: int = field(default=0, repr=False)

    @property
    def label(self) -> str:
        """`mesh on h0`."""
        return f"{self.name} on {self.node}"

    @property
    def url(self) -> str:
        """Where it is reached from outside the lab."""
        if not self.outside_port:
            self.show(0)
        return f"http://127.0.0.1:{self.outside_port}"

    @property
    def address(self) -> str:
        """HOST:PORT inside the lab."""
        return f"{self.lab.resolve(self.node)}:{self.port}"

    def show(self, outside_port: int) -> None:
        """Shows it outside the lab on this port of 127.0.0.1, 0 = any. Raises UserError when the port is taken."""
        self.outside_port = self.lab.forward(self.node, self.port, outside_port=outside_port)

    def start(self) -> None:
        """Starts it. Its log is kept over starts."""
        self._starts += 1
        self.process = self.lab.popen(self.node, self.argv, name=self.name)

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    @property
    def ended(self) -> int | None:
        """Its exit code if it has ended."""
        return None if self.process is None else self.process.returncode

    async def wait_ready(self, session: aiohttp.ClientSession, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Returns once it says that it is ready. Raises UserError with its last words if it ends or is late.

        timeout_s : without the time for which this machine kept it waiting for a CPU, PATIENCE times as much in all.
        """
        started = time.monotonic()
        while True:
            if self.ended is not None:
                raise UserError(f"{self.label} ended with {self.ended} while it started: {self.last_words()}")
            if await self._answers(session):
                return
            waited = time.monotonic() - started
            if waited - self._waited_for_cpu_s() > timeout_s or waited > PATIENCE * timeout_s:
                raise UserError(f"{self.label} was not ready within {waited:.0f} s: {self.last_words()}")
            await asyncio.sleep(0.05)

    def _waited_for_cpu_s(self) -> float:
        waits = None if self.process is None else run_queue_waits(self.process.outer_pid)
        return longest_wait_s({}, waits or {})

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(
                self.url + self.ready_path, timeout=aiohttp.ClientTimeout(total=2)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.process.tail().splitlines() if self.process is not None else []
        return lines[-1] if lines else "it has written nothing"


async def start_all(
    daemons: Sequence[Daemon], session: aiohttp.ClientSession, progress: Callable[[str], None]
) -> None:
    """Starts daemons side by side and waits until all are ready. Raises UserError naming the first that is not."""
    for daemon in daemons:
        await asyncio.to_thread(daemon.start)
    names: dict[str, list[str]] = {}
    for daemon in daemons:
        names.setdefault(daemon.name, []).append(daemon.node)
    progress("starting " + ", ".join(f"{name} ({' '.join(nodes)})" for name, nodes in names.items()))
    await asyncio.gather(*(daemon.wait_ready(session) for daemon in daemons))
