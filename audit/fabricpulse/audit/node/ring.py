"""One rank of a ring over the fleet: `fabricpulse-ring`, which drives the NCCL plugin as NCCL does, without a GPU.

It runs in a run directory of its own, so that it is not taken for a job, for a bounded time, and ends with `stop`. What
it receives is checked: the agent starts no other program.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fabricpulse.audit.model import clip
from fabricpulse.audit.node.ring_delays import ClockCopy, least_delays, with_mesh
from fabricpulse.audit.node.wire import RING_STEP_BYTES, RingAnswer, RingDelay, RingRequest
from fabricpulse.core.run_dir import RUN_DIR_ENV, clock_page_path
from fabricpulse.plugin_ipc.process import process_exists

PROGRAM = "fabricpulse-ring"
# All ranks must be there within this; after the time of the ring, a round and the close have as long.
CONNECT_S = 15
_TICK_S = 0.05
# Beyond its own end, before it is killed.
_KILL_S = 2.0
# Ticks between two readings of its telemetry, which costs some milliseconds and is gone when it ends.
_READ_TICKS = 5
PREFIX = "fabricpulse-ring-"
# Has the kernel kill the rank when the agent is gone (PR_SET_PDEATHSIG, which outlasts execve): without its stop it
# would send on. The first argument is the agent, which may be gone already.
_WITH_AGENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
os.execv(sys.argv[2], sys.argv[2:]) if os.getppid() == int(sys.argv[1]) else sys.exit("the agent is gone")
"""


class _Summary(msgspec.Struct):
    """What a rank prints last."""

    type: str
    bus_bytes_per_second: float = 0.0
    rounds: int = 0
    corrupt_bytes: int = 0
    errors: int = 0
    error: str | None = None


def program() -> Path:
    """Where it is installed, beside the `fabricpulse` command."""
    return Path(sysconfig.get_path("scripts")) / PROGRAM


def remove_left_behind() -> None:
    """Removes the folders of ranks whose agent was killed. Raises nothing: anybody may make folders there."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        # Of a folder that is deeper than the interpreter's stack the rest stays.
        with suppress(OSError, OverflowError, RecursionError):
            # Those of other users stay, whatever this one may do.
            if folder.lstat().st_uid == os.geteuid() and pid.isdecimal() and not process_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def run_ring(
    request: RingRequest, stop: threading.Event, path: Path | None = None, mesh_url: str = ""
) -> RingAnswer:
    """Runs one rank to its end. mesh_url : of this host's mesh exporter, "" for none. Blocks; raises nothing: why it
    failed is in the answer."""
    path = path or program()
    if not path.is_file():
        return RingAnswer(
            error=f"{PROGRAM} is not installed: this fabricpulse was built without its NCCL plugin"
        )
    if request.rank >= request.size:
        return RingAnswer(error=f"rank {request.rank} of {request.size}")
    arguments = [
        *(str(path), "--rank", str(request.rank), "--size", str(request.size), "--json", "--channels", "1"),
        *("--rendezvous", request.rendezvous, "--connect-seconds", str(CONNECT_S)),
        *(
            "--seconds",
            f"{request.seconds:g}",
            "--interval-ms",
            "60000",
            "--bytes",
            str(request.size * RING_STEP_BYTES),
        ),
    ]
    # Ignored: it may be removed by who takes its agent for dead, in another PID namespace.
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        clock = ClockCopy(clock_page_path(), Path(folder))
        delays: tuple[RingDelay, ...] = ()
        ticks = 0

        def tick() -> None:
            nonlocal delays, ticks
            clock.renew()
            ticks += 1
            if clock.bound_ns is not None and ticks % _READ_TICKS == 0:
                delays = least_delays(Path(folder) / "plugin") or delays

        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            RUN_DIR_ENV: folder,
            "FABRICPULSE_NICS": ",".join(request.devices),
            "FABRICPULSE_MAX_LANES": str(request.lanes),
        }
        try:
            answer = run_rank(arguments, env, Path(folder), stop, 2 * CONNECT_S + request.seconds, tick)
        finally:
            clock.close()
    if answer.error:
        return answer
    seen = with_mesh(delays, request.peer, mesh_url)
    return msgspec.structs.replace(answer, delays=seen, clock_bound_ns=clock.bound_ns)


def run_rank(
    arguments: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    stop: threading.Event,
    patience_s: float,
    tick: Callable[[], None] = lambda: None,
) -> RingAnswer:
    """A program that prints a summary, to its end, or until `stop` is set or the patience is over; it ends with the
    agent, too. folder : for its output. tick : called some times a second. Raises nothing."""
    output = folder / "output"
    with_agent = [sys.executable, "-Ic", _WITH_AGENT, str(os.getpid())]
    try:
        with output.open("wb") as out:
            process = subprocess.Popen(
                [*with_agent, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env
            )
    except OSError as error:
        return RingAnswer(error=clip(f"{PROGRAM}: {error}"))
    try:
        stopped = _wait(process, stop, patience_s, tick)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    with output.open("rb") as said:
        return _answer(said.read(1 << 16), stopped)


def _wait(
    process: "subprocess.Popen[bytes]", stop: threading.Event, patience_s: float, tick: Callable[[], None]
) -> str:
    """Until it has ended, and why it was stopped, "" if it was not. tick : called some times a second."""
    deadline = time.monotonic() + patience_s
    why = ""
    while process.poll() is None:
        if not why and (stop.is_set() or time.monotonic() > deadline):
            why = "stopped" if stop.is_set() else "it did not end in time"
            process.terminate()
            deadline = time.monotonic() + _KILL_S
        elif why and time.monotonic() > deadline:
            process.kill()
        tick()
        time.sleep(_TICK_S)
    return why


def _answer(text: bytes, stopped: str) -> RingAnswer:
    said = ""
    for line in text.splitlines():
        if line.startswith(b"{"):
            try:
                found = msgspec.json.decode(line, type=_Summary)
            except msgspec.DecodeError:
                continue
            if found.type == "summary":
                error = stopped or found.error or ("errors" if found.errors else "")
                return RingAnswer(
                    found.bus_bytes_per_second * 8, found.rounds, found.corrupt_bytes, clip(error)
                )
        elif line.strip():
            said = line.decode("utf-8", "replace")
    return RingAnswer(error=clip(stopped or said or f"{PROGRAM} has said nothing"))
