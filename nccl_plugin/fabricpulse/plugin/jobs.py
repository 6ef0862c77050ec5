"""The processes of this host that have loaded the plugin, and how to talk to them."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import named
from fabricpulse.core.run_dir import plugin_dir
from fabricpulse.plugin_ipc.control import ControlClient, ControlError
from fabricpulse.plugin_ipc.process import is_stale, parse_name, refuses

# Operations that change nothing; all others carry an operation id and a generation.
READS = ("hello", "status", "events")


@dataclass(frozen=True)
class Job:
    """A process with a control socket. pid : in its own PID namespace."""

    pid: int
    socket: Path

    @property
    def name(self) -> str:
        """`4711-effffffc`: distinguishes it from a process with the same pid in another PID namespace."""
        return self.socket.stem

    def call(self, message: dict[str, Any], timeout_s: float = 2.0) -> dict[str, Any]:
        """One request and its answer. Raises ControlError."""
        with ControlClient(self.socket, timeout_s) as client:
            return client.call(message)

    def status(self, timeout_s: float = 2.0) -> dict[str, Any]:
        """The answer to `status` with all connections, however many messages that takes. Raises ControlError, also
        when the last of them is not there five time-outs after the first was asked for."""
        limit = time.monotonic() + 5 * timeout_s
        with ControlClient(self.socket, timeout_s) as client:
            whole = page = client.call({"op": "status"})
            while page.get("next") is not None:
                if time.monotonic() > limit:
                    raise ControlError(f"{self.socket}: the answer does not come to an end")
                page = client.call({"op": "status", "after": page["next"]})
                if not page.get("ok"):
                    return page
                whole = {**page, "connections": [*whole["connections"], *page["connections"]]}
            return whole


def find_jobs(folder: Path | None = None) -> list[Job]:
    """The processes with a control socket, by pid; sockets without a listener are left out. Raises UserError where the
    folder cannot be read."""
    jobs = []
    folder = folder or plugin_dir()
    try:
        paths = named(folder, ".sock")
    except OSError as error:
        raise UserError(f"cannot read the folder of control sockets {folder}: {error.strerror}") from error
    for path in paths:
        process = parse_name(path.stem)
        if process is not None and not is_stale(path) and not refuses(path):
            jobs.append(Job(process.pid, path))
    return sorted(jobs, key=lambda job: (job.pid, job.name))


def labels(jobs: list[Job]) -> dict[Job, str]:
    """What people call each job: its pid, or its whole name where several containers have that pid."""
    pids = Counter(job.pid for job in jobs)
    return {job: str(job.pid) if pids[job.pid] == 1 else job.name for job in jobs}


def select(which: str | None) -> list[Job]:
    """The job of one process, by pid or name, or all jobs for None. Raises UserError when there is none, or several."""
    jobs = find_jobs()
    if which is not None:
        jobs = [job for job in jobs if which in (str(job.pid), job.name)]
        if not jobs:
            raise UserError(
                f"process {which} has no plugin control socket in {plugin_dir()}; is its run directory another?"
            )
        if len(jobs) > 1:
            names = ", ".join(job.name for job in jobs)
            raise UserError(f"several containers have a process {which}; give the name of one: {names}")
    elif not jobs:
        raise UserError(
            f"no process with the plugin found in {plugin_dir()}; set FABRICPULSE_RUN_DIR if it is another"
        )
    return jobs


def ask_all(jobs: Sequence[Job], ask: Callable[[Job], dict[str, Any]]) -> list[dict[str, Any]]:
    """What `ask` returned for each job, in their order. All are asked at the same time, so that those that do not
    answer cost one time-out together; their answer is an error with the code `silent`."""

    def answer(job: Job) -> dict[str, Any]:
        try:
            return ask(job)
        except ControlError as error:
            return {"ok": False, "error": {"code": "silent", "message": f"did not answer: {error}"}}

    with ThreadPoolExecutor(max_workers=min(max(len(jobs), 1), 128)) as pool:
        return list(pool.map(answer, jobs))


def change_message(
    operation: str, arguments: dict[str, Any], op_id: str | None, generation: int
) -> dict[str, Any]:
    """The request for a change."""
    return {"op": operation, "op_id": op_id or str(uuid4()), "generation": generation, **arguments}


def present_generation(status: dict[str, Any]) -> int:
    """The newest generation that a job has accepted, from its answer to `status`."""
    return int(status.get("generation", 0))


__all__ = [
    "READS",
    "ControlError",
    "Job",
    "ask_all",
    "change_message",
    "find_jobs",
    "labels",
    "present_generation",
    "select",
]
