"""What the parts of the GPU run share: how a job is made, whether its answers are right, what the exporter says."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.gpu import rails as network
from tests.gpu.job import Job, eventually

from fabricpulse.plugin.environment import job_environment
from fabricpulse.plugin.locate import library

NAMES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
LOADED = ("Plugin", "plugin", "PROFILER", "Profiler", "Using network", "via NET", "GDR", "Failed", "WARN")


class Session:
    """What the parts share. raw : folder for raw files. cpu : run the script itself without a GPU."""

    def __init__(self, raw: Path, rails: network.Rails, cpu: str | None) -> None:
        self.raw, self.rails, self.cpu = raw, rails, cpu
        self._jobs = 0

    def job(
        self,
        *,
        plugin: bool = True,
        profiler: bool = True,
        env: dict[str, str] | None = None,
        eager: bool = False,
        limit_s: float | None = None,
        apart: bool = False,
    ) -> Job:
        """Two ranks with the variables that `fabricpulse plugin env` prints, or with some of them. limit_s : after
        which torch takes a collective for one that hangs. apart : as on two hosts, each with its run directory."""
        recommended = {setting.name: setting.value for setting in job_environment(library(), None).settings}
        if not plugin:
            recommended = {"NCCL_PROFILER_PLUGIN": recommended["NCCL_PROFILER_PLUGIN"], "NCCL_NET": "Socket"}
        if not profiler:
            del recommended["NCCL_PROFILER_PLUGIN"]
        self._jobs += 1
        options: tuple[str, ...] = () if limit_s is None else ("--limit", str(limit_s))
        options += ("--backend", "gloo", "--device", "cpu") if self.cpu else ("--eager",) if eager else ()
        return Job(
            self.raw / f"job{self._jobs}",
            self.rails,
            {**recommended, **(env or {})},
            options,
            self.cpu or sys.executable,
            apart=apart,
        )


def right(*answers: dict[str, Any]) -> bool:
    """Whether no rank has seen an error or a wrong element, at any depth."""
    for answer in answers:
        if "error" in answer or answer.get("wrong_elements", 0):
            return False
        if not all(right(value) for value in answer.values() if isinstance(value, dict)):
            return False
    return True


def scrape(session: Session, job: Job, name: str, seconds: float = 3.0) -> list[str]:
    """What the qp exporter says of a job that runs: the whole into a file, the families of the job returned."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    run = [sys.executable, "-c", "from fabricpulse.core.cli import main; main()"]
    exporter = subprocess.Popen(
        [*run, "qp", "--web.listen-address", f"127.0.0.1:{port}"],
        env={**os.environ, "FABRICPULSE_RUN_DIR": str(job.run_dir)},
        stdout=subprocess.DEVNULL,
        stderr=(session.raw / f"{name}.qp.log").open("w"),
    )
    texts: list[str] = []

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as said:
                texts.append(said.read().decode())
        except OSError:
            return False
        return True

    try:
        eventually("the qp exporter answers", answers, 20)
        time.sleep(seconds)  # rates need two readings some time apart
        answers()
    finally:
        exporter.terminate()
        exporter.wait(10)
    (session.raw / f"{name}.metrics").write_text(texts[-1])
    families = (
        "fabricpulse_collective",
        "fabricpulse_rank",
        "fabricpulse_qp_sent",
        "fabricpulse_qp_worst",
        "fabricpulse_lane",
        "fabricpulse_qp_recent",
        "fabricpulse_qp_owd_seconds_count",
        "fabricpulse_qp_owd_seconds_sum",
        "fabricpulse_qp_processes",
        "fabricpulse_request",
        "fabricpulse_qp_telemetry",
        "fabricpulse_workload",
    )
    return [line for line in texts[-1].splitlines() if line.startswith(families)]
