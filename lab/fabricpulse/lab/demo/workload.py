"""The workload of the demo: `fabricpulse-ring` on every host, a rank each, and what it prints."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab, LabProcess
from fabricpulse.lab.demo.lateness import longest_wait_s, run_queue_waits
from fabricpulse.lab.demo.observed import REPORT_S, Observed
from fabricpulse.lab.demo.scenario_run import PATIENCE
from fabricpulse.lab.demo.watch import Watch
from fabricpulse.plugin.locate import library, ring

WORKLOAD = "demo-ring"
# What its processes are called in the lab.
RING = "ring"
START_TIMEOUT_S = 30.0
# A slice takes milliseconds here, and several are under way: a rank that looked more often would take the two cores,
# which all of the fleet runs on, for nothing.
POLL_US = 1000

_RENDEZVOUS_PORT = 29500


@dataclass(frozen=True)
class Job:
    """What the job does. compute_ms : pause between rounds.

    pattern : of `fabricpulse-ring`. hot : index of the host to which a skewed all-to-all sends `skew` times as much as
    to the others; None = none. rails : how many of each host's NICs the job uses; None = all.
    round_bytes : size of a round; None = a third of a second of one NIC, so that the ring fills all NICs. slice_bytes :
    of one send; None = a 64th of the round. depth : sends that are under way at once. env : variables of its processes,
    beside those of every demo.
    """

    compute_ms: int = 0
    pattern: str = "ring"
    hot: int | None = None
    skew: int = 1
    rails: int | None = None
    round_bytes: int | None = None
    slice_bytes: int | None = None
    depth: int = 8
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What a person reads."""
        return "ring all-reduce" if self.pattern == "ring" else self.pattern


class Workload(Watch):
    """A verified collective over all hosts, for ever. As a watch it reads what the ranks print."""

    name = "ring"
    interval_s = 0.1

    def __init__(self, lab: Lab, nic_mbit: float, job: Job) -> None:
        """nic_mbit : speed of each NIC; the size of a round follows from it where the job names none.

        Raises UserError when the plugin or the ring is not installed.
        """
        self._lab = lab
        self._job = job
        self._program = ring()
        self._library = library()
        self._ranks: list[LabProcess] = []
        self._read: dict[str, int] = {}
        self._latest: dict[str, dict[str, Any]] = {}
        # A round of about a third of a second on one rail, and slices of which one takes a few milliseconds.
        per_s = nic_mbit * 1e6 / 8
        self._bytes = job.round_bytes or int(per_s / 3) // (1 << 20) * (1 << 20) or 1 << 20
        self._slice = job.slice_bytes or max(64 << 10, self._bytes // 64)

    async def start(self) -> None:
        """Starts all ranks; returns when each has printed its first result. Raises UserError with its last words."""
        hosts = self._lab.fabric.host_names
        rails = self._lab.fabric.rail_names[: self._job.rails]
        hot = () if self._job.hot is None else ("--hot", str(self._job.hot), "--skew", str(self._job.skew))
        for rank, host in enumerate(hosts):
            argv: list[str | Path] = [
                *(self._program, "--rank", str(rank), "--size", str(len(hosts))),
                *("--rendezvous", f"{self._lab.address(hosts[0], 'fe0')}:{_RENDEZVOUS_PORT}"),
                *("--plugin", self._library, "--bytes", str(self._bytes), "--slice", str(self._slice)),
                *(
                    "--channels",
                    str(len(rails)),
                    "--json",
                    "--compute-ms",
                    str(self._job.compute_ms),
                    "--depth",
                    str(self._job.depth),
                    "--interval-ms",
                    str(round(REPORT_S * 1e3)),
                    "--poll-us",
                    str(POLL_US),
                    "--profile",  # without it the job has no collectives
                    "--pattern",
                    self._job.pattern,
                ),
                *hot,
            ]
            env = {
                "FABRICPULSE_NICS": ",".join(rails),
                "FABRICPULSE_HOST": host,
                "FABRICPULSE_WORKLOAD": WORKLOAD,
                "FABRICPULSE_RANK": str(
                    rank
                ),  # a scheduler gives it; without ranks no alert says who is waited for
                **self._job.env,
            }
            self._ranks.append(await asyncio.to_thread(self._lab.popen, host, argv, env=env, name=RING))
        started = time.monotonic()
        for rank_process in self._ranks:
            while '"interval"' not in rank_process.output():
                if rank_process.returncode is not None:
                    code = rank_process.returncode
                    raise UserError(
                        f"{rank_process.describe()} ended with {code}: {last_words(rank_process)}"
                    )
                waited = time.monotonic() - started
                late = longest_wait_s({}, run_queue_waits(rank_process.outer_pid) or {})
                if waited - late > START_TIMEOUT_S or waited > PATIENCE * START_TIMEOUT_S:
                    raise UserError(
                        f"{rank_process.describe()} has not begun within {waited:.0f} s: "
                        f"{last_words(rank_process)}"
                    )
                await asyncio.sleep(0.05)

    def pids(self) -> dict[str, int]:
        """`ring on h0` -> PID outside the lab, of the ranks that run."""
        return {rank.describe(): rank.outer_pid for rank in self._ranks if rank.returncode is None}

    async def poll(self, observed: Observed) -> None:
        """Takes in what the ranks have printed since the last time."""
        for rank in self._ranks:
            for entry in self._new_lines(rank):
                self._take(observed, rank, entry)
            label = f"{rank.describe()} ended with {rank.returncode}: {last_words(rank)}"
            if rank.returncode is not None and label not in observed.workload.exited:
                observed.workload.exited.append(label)

    def _new_lines(self, rank: LabProcess) -> list[dict[str, Any]]:
        if rank.log is None:
            return []
        with rank.log.open("rb") as log:
            log.seek(self._read.get(rank.node, 0))
            data = log.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._read[rank.node] = self._read.get(rank.node, 0) + len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]

    def _take(self, observed: Observed, rank: LabProcess, entry: dict[str, Any]) -> None:
        workload = observed.workload
        # The moment that the rank measured, not the one at which the demo came round to reading it.
        at = entry["mono_ns"] * 1e-9 if entry["type"] == "interval" else time.monotonic()
        self._latest[rank.node] = entry
        workload.errors = sum(latest["errors"] for latest in self._latest.values())
        workload.corrupt_bytes = sum(latest["corrupt_bytes"] for latest in self._latest.values())
        if entry["type"] != "interval":
            return
        workload.longest_gap.add(at, float(entry["stall_ms"]))
        if rank is self._ranks[0]:
            # All ranks of a ring move at one pace; the first one's clock gives the grid.
            latest = [entry["bus_bytes_per_second"] for entry in self._latest.values()]
            workload.bandwidth.add(at, sum(latest) / len(latest))
            workload.rounds = entry["rounds"]
            workload.round_history.add(at, workload.rounds)


def last_words(rank: LabProcess) -> str:
    """The last line that a rank has written that is no result."""
    lines = [line for line in rank.tail().splitlines() if line and not line.startswith("{")]
    return lines[-1] if lines else "it has written nothing"
