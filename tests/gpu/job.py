"""A job of two ranks of rank.py, and what can be asked of it while it runs."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.gpu.rails import Rails

from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns
from fabricpulse.plugin.jobs import Job as Process
from fabricpulse.plugin.jobs import change_message, find_jobs

WORLD = 2
START_S = 90.0  # torch and CUDA are slow to load
RANK = Path(__file__).with_name("rank.py")


class Job:
    """Two ranks, each a process. folder : run directory, logs and the ranks' meeting place; in it, not made yet.

    env : of both, beside what makes NCCL take them for two hosts; an empty value takes a variable away.
    options : of rank.py. python : their interpreter. apart : each rank has a run directory of its own, as on a host of
    its own; run_dirs has them.
    """

    def __init__(
        self,
        folder: Path,
        rails: Rails,
        env: Mapping[str, str],
        options: tuple[str, ...] = (),
        python: str = sys.executable,
        *,
        apart: bool = False,
    ) -> None:
        self.folder = folder
        self.run_dirs = [folder / (f"run{rank}" if apart else "run") for rank in range(WORLD)]
        self.run_dir = self.run_dirs[0]
        for run_dir in set(self.run_dirs):
            run_dir.mkdir(parents=True)
        self._pages = [fleet_time(run_dir) for run_dir in set(self.run_dirs)]
        self.ranks = [self._start(rank, rails, env, options, python) for rank in range(WORLD)]
        self._unread = [b""] * WORLD

    def _start(
        self, rank: int, rails: Rails, env: Mapping[str, str], options: tuple[str, ...], python: str
    ) -> "subprocess.Popen[bytes]":
        own = {
            "NCCL_HOSTID": f"gpu-test-{rank}",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,PROFILE",
            "NCCL_DEBUG_FILE": str(self.folder / f"rank{rank}.nccl.log"),
            "NCCL_SOCKET_IFNAME": f"={rails.control}",
            "GLOO_SOCKET_IFNAME": rails.control,
            "FABRICPULSE_RUN_DIR": str(self.run_dirs[rank]),
            "FABRICPULSE_NICS": ",".join(rails.devices),
            "FABRICPULSE_RANK": str(rank),
            "FABRICPULSE_HOST": f"gpu-test-{rank}",
            "FABRICPULSE_WORKLOAD": "gpu-test",
            "PYTHONUNBUFFERED": "1",
        }
        command = [*rails.command(rank), python, str(RANK), "--rank", str(rank)]
        command += ["--store", str(self.folder / "store"), *options]
        with (self.folder / f"rank{rank}.log").open("w") as log:
            return subprocess.Popen(
                command,
                env={name: value for name, value in {**os.environ, **own, **env}.items() if value},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            for pipe in (rank.stdin, rank.stdout):
                if pipe is not None:
                    pipe.close()

    def tell(self, rank: int, line: str) -> None:
        """One line to a rank's standard input."""
        pipe = self.ranks[rank].stdin
        assert pipe is not None
        pipe.write(line.encode() + b"\n")
        pipe.flush()

    def begin(self, op: str, **options: Any) -> None:
        """A request to both ranks, whose answers `answers` reads."""
        for rank in range(WORLD):
            self.tell(rank, json.dumps({"op": op, **options}))

    def ask(self, op: str, timeout_s: float, **options: Any) -> list[dict[str, Any]]:
        """A request and both answers. Raises UserError."""
        self.begin(op, **options)
        return self.answers("answer", timeout_s)

    def answers(self, key: str, timeout_s: float) -> list[dict[str, Any]]:
        """The next answer of each rank. Raises UserError when one has ended, or does not answer in time."""
        deadline = time.monotonic() + timeout_s
        return [self.answer(rank, key, deadline - time.monotonic()) for rank in range(WORLD)]

    def answer(self, rank: int, key: str, timeout_s: float) -> dict[str, Any]:
        """The next answer of one. Raises UserError."""
        pipe = self.ranks[rank].stdout
        assert pipe is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._unread[rank].partition(b"\n")
                if newline:
                    self._unread[rank] = rest
                    if line.startswith(b"{") and key in (said := json.loads(line)):
                        return dict(said if key == "ready" else said[key])
                    continue
                if not selector.select(0.2):
                    if time.monotonic() > deadline or any(other.poll() for other in self.ranks):
                        raise UserError(f"rank {rank} has not answered in {timeout_s:.0f} s; {self.logs()}")
                    continue
                read = os.read(pipe.fileno(), 1 << 16)
                if not read:
                    raise UserError(f"rank {rank} has ended with {self.ranks[rank].wait(5)}; {self.logs()}")
                self._unread[rank] += read

    def logs(self) -> str:
        """The end of what the ranks and their NCCL have said."""
        return "; ".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.folder.glob("rank*.log"))
        )

    def ready(self) -> dict[str, Any]:
        """Once both have connected: the versions of NCCL and torch. Raises UserError."""
        return self.answers("ready", START_S)[0]

    def quit(self) -> list[int | None]:
        """Ends both in good order; their exit codes, None of one that does not end."""
        self.begin("quit")
        codes: list[int | None] = []
        for rank in self.ranks:
            try:
                codes.append(rank.wait(30))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    # The plugin in it

    def process(self, rank: int) -> Process:
        """What the plugin of a rank answers. Raises UserError where none is."""
        found = [p for p in find_jobs(self.run_dir / "plugin") if p.pid == self.ranks[rank].pid]
        if not found:
            raise UserError(f"rank {rank} has not loaded the plugin; {self.logs()}")
        return found[0]

    def lanes(self, rank: int) -> list[tuple[str, dict[str, Any]]]:
        """(connection, lane) of all that a rank sends over."""
        return [
            (connection["connection"], lane)
            for connection in self.process(rank).status()["connections"]
            if connection["direction"] == "send"
            for lane in connection["lanes"]
        ]

    def change(self, rank: int, op: str, generation: int, connection: str, lane: int) -> None:
        """One command. Raises UserError when it is refused."""
        said = self.process(rank).call(
            change_message(op, {"connection": connection, "lane": lane}, None, generation)
        )
        if not said.get("ok"):
            raise UserError(f"{op} was refused: {said}")

    def nccl_log(self, *needles: str, most: int = 40) -> list[str]:
        """The lines of rank 0's NCCL that have one of these, without the host and process before them."""
        try:
            text = (self.folder / "rank0.nccl.log").read_text(errors="replace")
        except OSError:
            return []
        lines = [line.partition("NCCL ")[2] for line in text.splitlines()]
        return [line for line in dict.fromkeys(lines) if any(needle in line for needle in needles)][:most]


def fleet_time(run_dir: Path) -> ClockPageWriter:
    """A page of fleet time for ten minutes: both ranks are of one machine, so its own clock is right for both."""
    now, raw = time.time_ns(), raw_now_ns()
    line, stamps = ClockLine(raw, now, 0), ClockLine(now, raw, 0)
    page = ClockPageWriter(run_dir / "clock")
    page.write(
        ClockPage(
            *(ClockStatus.SYNCHRONIZED, line, line, raw, 1_000, 0, raw + 600_000_000_000),
            *(stamps, stamps, now, 0, 0),
        )
    )
    return page


def eventually(what: str, condition: Any, timeout_s: float) -> float:
    """Seconds until a condition holds. Raises UserError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise UserError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.02)  # the resolution of what is timed
    return time.monotonic() - began


def command(
    *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 30.0
) -> tuple[int, str]:
    """`fabricpulse …`: its exit code and what it has printed."""
    run = [sys.executable, "-c", "from fabricpulse.core.cli import main; main()", *arguments]
    done = subprocess.run(
        run,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
