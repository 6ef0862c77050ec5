"""Captures of jobs that are well, hang or disagree: what Flight Recorder, NCCL's RAS, Inspector and the exporter say.

The files under tests/captures/hang come from here. A part writes its files to a folder of its own name.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.job import Job, eventually
from tests.gpu.session import LOADED, Session, right, scrape

from fabricpulse.core.errors import UserError

# After this torch takes a collective for one that hangs, and dumps.
LIMIT_S = 8.0
SIZE = 1 << 20
# Nobody answers there, and nobody has to.
NO_PROMETHEUS = {"FABRICPULSE_PROMETHEUS": "http://127.0.0.1:1"}
_ASK_RAS = """
import socket, sys
with socket.create_connection(("127.0.0.1", 28028), 5) as ras:
    ras.settimeout(20)
    ras.sendall(sys.argv[1].encode())
    while part := ras.recv(65536):
        sys.stdout.buffer.write(part)
"""
_RAS = {
    "text": "STATUS\n",
    "verbose": "VERBOSE STATUS\n",
    "json": "TIMEOUT 5\nSET FORMAT json\nSTATUS\n",
    "json_later": "TIMEOUT 5\nSET FORMAT json\nSTATUS\n",
}


def recorder(prefix: Path) -> dict[str, str]:
    """Variables by which torch dumps at a time-out, of its older and newer names."""
    return {
        **dict.fromkeys(("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"), "64"),
        **dict.fromkeys(("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"), str(prefix)),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": "0",
        "FABRICPULSE_DETAIL": "1",
    }


def ask_ras(session: Session, folder: Path, forms: tuple[str, ...] = tuple(_RAS)) -> dict[str, Any]:
    """Answers of RAS where rank 0 runs, into files; their sizes, or what was said instead."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for form in forms:
        asked = [*session.rails.command(0), sys.executable, "-c", _ASK_RAS, _RAS[form]]
        done = subprocess.run(asked, capture_output=True, timeout=40, check=False)
        (folder / form).write_bytes(done.stdout)
        found[form] = len(done.stdout) or done.stderr.decode(errors="replace")[-300:]
    return found


def why(session: Session, *options: str) -> dict[str, Any]:
    """What `fabricpulse why` says where rank 0 runs: its answer, and all of it."""
    code = "from fabricpulse.core.cli import main; main()"
    done = subprocess.run(
        [
            *session.rails.command(0),
            sys.executable,
            "-c",
            code,
            "why",
            "gpu-test",
            "--output",
            "json",
            *options,
        ],
        env={**os.environ, **NO_PROMETHEUS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {"code": done.returncode, "error": (done.stdout + done.stderr)[-1500:]}
    return {
        "state": said.get("state"),
        "causes": [(c["cause"], c["where"], c["confidence"]) for c in said.get("causes", [])],
        "evidence": [e for c in said.get("causes", []) for e in c.get("evidence", [])],
        "unknown": said.get("unknown"),
    }


def torch_says(folder: Path) -> str:
    """What torch's own analyzer makes of dumps."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "rank_"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return (done.stdout + done.stderr)[-3000:]


def whole(folder: Path, ranks: tuple[int, ...]) -> Callable[[], bool]:
    """Whether these ranks have left dumps, and nothing has been written for a while."""

    def condition() -> bool:
        paths = [folder / f"rank_{rank}" for rank in ranks]
        return all(p.exists() and p.stat().st_size and time.time() - p.stat().st_mtime > 0.5 for p in paths)

    return condition


@contextmanager
def hanging(
    session: Session, name: str, op: str, plugin: bool, cut: bool, **options: Any
) -> Iterator[tuple[Job, Path]]:
    """A job in a hang, and where its dumps will be. cut : rank 1 has lost its NICs."""
    folder = session.raw / name
    (folder / "timeout").mkdir(parents=True)
    with session.job(plugin=plugin, limit_s=LIMIT_S, env=recorder(folder / "timeout" / "rank_")) as job:
        job.ready()
        job.ask("verify", 60, names=["all_reduce", "all_gather", "send_recv"], sizes=[SIZE], times=3)
        for device in session.rails.devices if cut else ():
            session.rails.link(1, device, "down")
        try:
            job.ask(op, 20, size=SIZE, **options)
            yield job, folder
        finally:
            for device in session.rails.devices if cut else ():
                session.rails.link(1, device, "up")


def play(
    session: Session,
    name: str,
    op: str,
    *,
    plugin: bool = True,
    ras: bool = True,
    cut: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """A hang with all that is captured of it."""
    found: dict[str, Any] = {}
    with hanging(session, name, op, plugin, cut, **options) as (job, folder):
        began = time.monotonic()
        time.sleep(1.5)  # what the hang leaves unfinished is all that is left
        try:
            found["asked"] = job.ask("flight_recorder", 20, folder=str(folder / "asked"))
        except (UserError, OSError) as error:  # NCCL may have ended a rank
            found["asked"] = [{"error": str(error)[:1000]}]
        if ras:
            found["ras"] = ask_ras(session, folder / "ras")
            found["why_ras"] = why(session, "--ras", "127.0.0.1", "--ras-seconds", "1")
        found["metrics"] = [
            line for line in scrape(session, job, name, 1) if "waiting" in line or "rank_" in line
        ]
        try:
            eventually(
                "dumps at the time-out",
                whole(folder / "timeout", (0, 1)),
                12 + LIMIT_S - (time.monotonic() - began),
            )
        except UserError as error:
            found["timeout"] = str(error)
        found["dumps"] = {p.name: p.stat().st_size for p in (folder / "timeout").iterdir()}
        found["log"] = [
            (folder.parent / job.folder.name / f"rank{r}.log").read_text()[-1500:] for r in (0, 1)
        ]
    for kind in ("timeout", "asked/pickle", "asked/json"):
        found[f"why {kind}"] = why(session, "--flight-recorder", str(folder / kind))
    found["torch"] = torch_says(folder / "timeout")
    return {"ok": bool(found["dumps"]) and right(*found["asked"]), **found}


def part_hang_skip(session: Session) -> dict[str, Any]:
    """Rank 1 leaves out an all-reduce."""
    return play(session, "skip", "skip")


def part_hang_observed(session: Session) -> dict[str, Any]:
    """The same beside NCCL's own sockets, with the profiler alone."""
    return play(session, "observed", "skip", plugin=False, ras=False)


def part_hang_kinds(session: Session) -> dict[str, Any]:
    """Rank 0 is in an all-reduce, rank 1 in a broadcast."""
    return play(session, "kinds", "mismatch", how="kinds")


def part_hang_sizes(session: Session) -> dict[str, Any]:
    """Both are in an all-reduce, of different sizes."""
    return play(session, "sizes", "mismatch", how="sizes")


def part_hang_roots(session: Session) -> dict[str, Any]:
    """Both are in a broadcast, each as one that receives."""
    return play(session, "roots", "mismatch", how="roots")


def part_hang_cut(session: Session) -> dict[str, Any]:
    """Both are in the same all-reduce, and rank 1 has lost all its NICs."""
    return play(session, "cut", "enter", cut=True)


def part_hang_receive(session: Session) -> dict[str, Any]:
    """Rank 0 receives what rank 1 never sends."""
    return play(session, "receive", "receive")


def part_healthy(session: Session) -> dict[str, Any]:
    """A job that is well, then one whose rank 1 is stopped, then killed."""
    folder = session.raw / "healthy"
    found: dict[str, Any] = {}
    with session.job(limit_s=LIMIT_S * 5, env=recorder(folder / "timeout_")) as job:
        folder.mkdir()
        job.ready()
        job.begin("healthy", size=SIZE, seconds=6.0, folder=str(folder))
        time.sleep(1)  # amid the loop
        found["ras"] = ask_ras(session, folder / "ras")
        found["why_ras"] = why(session, "--ras", "127.0.0.1", "--ras-seconds", "1")
        found["answers"] = job.answers("answer", 30)
        for kind in ("pickle", "json"):
            found[f"why {kind}"] = why(session, "--flight-recorder", str(folder / kind))
        job.ranks[1].send_signal(signal.SIGSTOP)
        found["ras_stopped"] = ask_ras(session, folder / "ras_stopped", ("text", "json"))
        job.ranks[1].kill()
        time.sleep(1)  # its sockets are closed
        found["ras_killed"] = ask_ras(session, folder / "ras_killed", ("text", "json", "json_later"))
        found["why_ras_killed"] = why(session, "--ras", "127.0.0.1", "--ras-seconds", "1")
    return {"ok": right(*found["answers"]), **found}


def part_inspector(session: Session) -> dict[str, Any]:
    """NCCL's Inspector (INSPECTOR names its library), a job that is well and then hangs."""
    library = os.environ.get("INSPECTOR")
    if not library:
        return {"ok": True, "skipped": "INSPECTOR names no library"}
    folder = session.raw / "inspector"
    folder.mkdir()
    env = {
        "NCCL_PROFILER_PLUGIN": library,
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "20000",
        "NCCL_INSPECTOR_DUMP_DIR": str(folder),
    }
    with session.job(env=env) as job:
        versions = job.ready()
        job.ask("healthy", 30, size=SIZE, seconds=3.0, folder=str(session.raw / "inspector_flight"))
        job.ask("verify", 60, names=["all_gather", "broadcast"], sizes=[8, SIZE], times=3)
        job.ask("skip", 20, size=SIZE)
        time.sleep(2)  # longer than its writer's pause
        said = why(session, "--inspector", str(folder))
        log = job.nccl_log(*LOADED)
    return {
        "ok": any(folder.iterdir()),
        "versions": versions,
        "files": {p.name: p.stat().st_size for p in folder.iterdir()},
        "why": said,
        "log": log,
    }


def part_unstarted(session: Session) -> dict[str, Any]:
    """Sends and receives of which NCCL never starts a part (NVIDIA/nccl#2056): what is in progress after them."""
    found: dict[str, Any] = {}
    for name, plugin in (("with_plugin", True), ("with_sockets", False)):
        with session.job(plugin=plugin, env={"FABRICPULSE_DETAIL": "1"}) as job:
            job.ready()
            names, sizes = ["send_recv", "all_to_all"], [8, 1024, 65536, SIZE]
            verified = job.ask("verify", 60, names=names, sizes=sizes, times=10)
            between = scrape(session, job, f"unstarted_{name}_between", 1)
            more = job.ask("verify", 60, names=["all_reduce"], sizes=[SIZE], times=5)
            after = scrape(session, job, f"unstarted_{name}_after", 1)
            found[name] = {
                "right": right(*verified, *more),
                **{key: in_progress(lines) for key, lines in (("between", between), ("after", after))},
                "metrics": [line for line in after if "collective_" in line or "rank_" in line],
                "exit_codes": job.quit(),
            }
    ok = all(one["right"] and not any(one["after"].values()) for one in found.values())
    return {"ok": ok, **found}


def in_progress(lines: list[str]) -> dict[str, float]:
    """Operations in progress by series."""
    own = [
        line.rpartition(" ") for line in lines if line.startswith("fabricpulse_rank_operations_in_progress")
    ]
    return {series: float(value) for series, _, value in own}


PARTS: dict[str, Callable[[Session], dict[str, Any]]] = {
    "unstarted": part_unstarted,
    "healthy": part_healthy,
    "hang_skip": part_hang_skip,
    "hang_observed": part_hang_observed,
    "hang_kinds": part_hang_kinds,
    "hang_sizes": part_hang_sizes,
    "hang_roots": part_hang_roots,
    "hang_receive": part_hang_receive,
    "hang_cut": part_hang_cut,
    "inspector": part_inspector,
}
