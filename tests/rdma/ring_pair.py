"""fabricpulse-ring on the two hosts of the fleet, for tests inside the guest."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fabricpulse.lab.rdma.fleet import HOSTS
from fabricpulse.plugin_ipc.control import ControlClient, ControlError

_PROGRAM = Path(os.environ.get("FABRICPULSE_TEST_RING", Path(sys.executable).with_name("fabricpulse-ring")))
INTERVAL_MS = 50
UP = ("up", "slow_start")
_PORT = 7000
STATUS_TRIES = 3


class RingPair:
    """One rank a host, over queue pairs. `arguments` : of the ring; `env` : of both ranks. Ends with the block."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int = _PORT,
    ) -> None:
        self._run_dirs: list[Path] = []
        self._outputs: list[Path] = []
        # Of each rank: how much of its output has been read, and the JSON lines in it. The guest is too slow to read
        # all of it again at each look.
        self._read = [0] * len(HOSTS)
        self._entries: list[list[dict[str, Any]]] = [[] for _ in HOSTS]
        self._moved = [0] * len(HOSTS)
        self._processes: list[subprocess.Popen[bytes]] = []
        for number, host in enumerate(HOSTS):
            output = folder / f"ring-{host}.out"
            run_dir = folder / f"run-{host}"
            run_dir.mkdir(exist_ok=True)
            self._run_dirs.append(run_dir)
            command = [
                *(
                    "ip",
                    "netns",
                    "exec",
                    host,
                    str(_PROGRAM),
                    "--rank",
                    str(number),
                    "--size",
                    str(len(HOSTS)),
                ),
                *(
                    "--rendezvous",
                    f"10.8.0.1:{port}",
                    "--json",
                    "--interval-ms",
                    str(INTERVAL_MS),
                    *arguments,
                ),
            ]
            environment = {
                **os.environ,
                "FABRICPULSE_NICS": "rail*",
                "FABRICPULSE_HOST": host,
                "FABRICPULSE_RANK": str(number),
                "FABRICPULSE_RUN_DIR": str(run_dir),
                **(env or {}),
            }
            with output.open("wb") as stream:
                self._processes.append(
                    subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)
                )
            self._outputs.append(output)

    def __enter__(self) -> "RingPair":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """Of the ranks."""
        return [process.pid for process in self._processes]

    def run_dir(self, rank: int) -> Path:
        """Where a rank's telemetry is."""
        return self._run_dirs[rank]

    def lines(self, rank: int, kind: str) -> list[dict[str, Any]]:
        """A rank's JSON lines of one type so far."""
        self._take_in(rank)
        return [entry for entry in self._entries[rank] if entry["type"] == kind]

    def _take_in(self, rank: int) -> None:
        with self._outputs[rank].open("rb") as stream:
            stream.seek(self._read[rank])
            fresh = stream.read()
        fresh = fresh[: fresh.rfind(b"\n") + 1]
        self._read[rank] += len(fresh)
        entries = [json.loads(line) for line in fresh.splitlines() if line.startswith(b"{")]
        self._moved[rank] += sum(entry["bytes"] for entry in entries if entry["type"] == "interval")
        self._entries[rank] += entries

    def said(self) -> str:
        """What the ranks wrote that is not JSON."""
        return "\n".join(
            f"{host}: {line}"
            for host, output in zip(HOSTS, self._outputs, strict=True)
            for line in output.read_text(errors="replace").splitlines()
            if not line.startswith("{")
        )

    def moved(self) -> list[int]:
        """Bytes that each rank has received so far."""
        for rank in range(len(HOSTS)):
            self._take_in(rank)
        return list(self._moved)

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Waits for a condition. Fails with what the ranks said when a rank has ended or the time is over. The
        guest cannot see how busy its machine is, so that the time is a hundred times what it takes on an idle one.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [process.poll() for process in self._processes]
            assert ended == [None] * len(ended), f"a rank has ended: {ended}\n{self.said()}"
            assert time.monotonic() < deadline, f"{self.moved()} bytes have moved\n{self.said()}"
            time.sleep(0.1)  # ranks write files: there is no event to wait for

    def until_moved(self, more: int, seconds: float = 60.0) -> None:
        """Until every rank has received so many bytes more."""
        before = self.moved()
        self.until(
            lambda: all(now - old >= more for now, old in zip(self.moved(), before, strict=True)), seconds
        )

    def status(self, rank: int) -> dict[str, Any]:
        """What a rank's control socket says of its connections."""
        (socket,) = self._run_dirs[rank].glob("plugin/*.sock")
        for left in reversed(range(STATUS_TRIES)):
            try:
                with ControlClient(socket, timeout_s=30.0) as client:
                    return client.call({"op": "status"})
            except ControlError:
                # Who has asked nothing for 2 s is hung up on, and a busy machine's guest stands still for longer.
                if left == 0 or self._processes[rank].poll() is not None:
                    raise
        raise AssertionError

    def wait(self, seconds: float = 60.0) -> list[int]:
        """Waits for the end of the ranks; their exit statuses."""
        return [process.wait(seconds) for process in self._processes]

    def finish(self, seconds: float = 60.0) -> list[dict[str, Any]]:
        """Asks the ranks to end; their summaries. Fails on an error, or on a byte that is not what was sent."""
        for process in self._processes:
            process.terminate()
        return self.summaries(seconds)

    def summaries(self, seconds: float = 60.0) -> list[dict[str, Any]]:
        """Waits for the end of the ranks. Fails as finish()."""
        codes = self.wait(seconds)
        assert codes == [0] * len(codes), self.said()
        found = []
        for rank in range(len(HOSTS)):
            (summary,) = self.lines(rank, "summary")
            assert (summary["errors"], summary["corrupt_bytes"]) == (0, 0), self.said()
            found.append(summary)
        return found

    def lanes(self, direction: str = "send") -> list[dict[str, Any]]:
        """What the control sockets say of all ranks' lanes in one direction; `rank` says whose."""
        return [
            {**lane, "rank": rank}
            for rank in range(len(HOSTS))
            for connection in self.status(rank)["connections"]
            if connection["direction"] == direction
            for lane in connection["lanes"]
        ]

    def up(self, rail: int) -> bool:
        """Whether all connections of all ranks send over this rail's queue pair."""
        states = [
            (lane["rank"], lane["state"])
            for lane in self.lanes()
            if lane["device"] == lane["peer_device"] == f"rail{rail}" and lane["transport"] == "verbs"
        ]
        ranks = {rank for rank, _ in states}
        return len(ranks) == len(HOSTS) and all(state in UP for _, state in states)

    def on_last_resort(self) -> bool:
        """Whether all ranks send over TCP because none of their queue pairs passes anything."""
        ranks = {lane["rank"] for lane in self.lanes() if lane["state"] == "last_resort"}
        return len(ranks) == len(HOSTS)

    def stall_ms(self, since_ns: int) -> float:
        """Longest time without a byte that a rank has seen since that CLOCK_REALTIME."""
        return max(
            float(line["stall_ms"])
            for rank in range(len(HOSTS))
            for line in self.lines(rank, "interval")
            if line["real_ns"] >= since_ns
        )
