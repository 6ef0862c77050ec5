"""The processes of this host that have loaded the plugin, and how to talk to them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fabricpulse.core.control_socket import ControlClient, ControlError
from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import plugin_dir

# Plugin commands that change something: they carry an operation id and a generation.
CHANGES = ("lane.disable", "lane.enable", "lane.weight", "lane.repath", "nic.avoid", "nic.restore", "detail")
READS = ("hello", "status", "events")


@dataclass(frozen=True)
class Job:
    """A process with a control socket."""

    pid: int
    socket: Path

    def call(self, message: dict[str, Any], timeout_s: float = 2.0) -> dict[str, Any]:
        """One request and its answer. Raises ControlError."""
        with ControlClient(self.socket, timeout_s) as client:
            return client.call(message)

    def status(self, timeout_s: float = 2.0) -> dict[str, Any]:
        """The answer to `status` with all connections, however many messages that takes. Raises ControlError."""
        with ControlClient(self.socket, timeout_s) as client:
            whole = page = client.call({"op": "status"})
            while page.get("next") is not None:
                page = client.call({"op": "status", "after": page["next"]})
                if not page.get("ok"):
                    return page
                whole = {**page, "connections": [*whole["connections"], *page["connections"]]}
            return whole


def find_jobs(folder: Path | None = None) -> list[Job]:
    """The processes with a control socket, by pid; sockets of processes that are gone are left out."""
    paths = [path for path in (folder or plugin_dir()).glob("*.sock") if path.stem.isdigit()]
    jobs = [Job(int(path.stem), path) for path in paths if process_exists(int(path.stem))]
    return sorted(jobs, key=lambda job: job.pid)


def process_exists(pid: int) -> bool:
    """Whether a process `pid` exists, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def select(pid: int | None) -> list[Job]:
    """The job of one process, or all jobs for None. Raises UserError when there is none."""
    jobs = find_jobs()
    if pid is not None:
        jobs = [job for job in jobs if job.pid == pid]
        if not jobs:
            raise UserError(
                f"process {pid} has no plugin control socket in {plugin_dir()}; is its run directory another?"
            )
    elif not jobs:
        raise UserError(
            f"no process with the plugin found in {plugin_dir()}; set FABRICPULSE_RUN_DIR if it is another"
        )
    return jobs


def change_message(
    operation: str, arguments: dict[str, Any], op_id: str | None, generation: int
) -> dict[str, Any]:
    """The request for a change."""
    return {"op": operation, "op_id": op_id or str(uuid4()), "generation": generation, **arguments}


def present_generation(status: dict[str, Any]) -> int:
    """The newest generation that a job has accepted, from its answer to `status`."""
    return int(status.get("generation", 0))


__all__ = [
    "CHANGES",
    "READS",
    "ControlError",
    "Job",
    "change_message",
    "find_jobs",
    "present_generation",
    "process_exists",
    "select",
]
