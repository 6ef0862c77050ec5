"""One rank of a ring over the fleet: `fabricpulse-ring`, which drives the NCCL plugin as NCCL does, without a GPU.

It runs in a run directory of its own, so that it is not taken for a job, for a bounded time, and ends with `stop`. What
it receives is checked: the agent starts no other program.
"""

import os
import subprocess
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from fabricpulse.audit.model import clip
from fabricpulse.audit.node.wire import RingAnswer, RingRequest
from fabricpulse.core.run_dir import RUN_DIR_ENV

PROGRAM = "fabricpulse-ring"
# All ranks must be there within this; after the time of the ring, a round and the close have as long.
CONNECT_S = 15
_TICK_S = 0.05
# Beyond its own end, before it is killed.
_KILL_S = 2.0


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


def run_ring(request: RingRequest, stop: threading.Event, path: Path | None = None) -> RingAnswer:
    """Runs one rank to its end. Blocks; raises nothing: why it failed is in the answer."""
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
        *("--seconds", f"{request.seconds:g}", "--interval-ms", "60000", "--bytes", str(request.size << 20)),
    ]
    with tempfile.TemporaryDirectory(prefix="fabricpulse-ring-") as folder:
        output = Path(folder) / "output"
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            RUN_DIR_ENV: folder,
            "FABRICPULSE_NICS": ",".join(request.devices),
            "FABRICPULSE_MAX_LANES": str(request.lanes),
        }
        try:
            with output.open("wb") as out:
                process = subprocess.Popen(
                    arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env
                )
        except OSError as error:
            return RingAnswer(error=clip(f"{PROGRAM}: {error}"))
        try:
            stopped = _wait(process, stop, 2 * CONNECT_S + request.seconds)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        with output.open("rb") as said:
            text = said.read(1 << 16)
    return _answer(text, stopped)


def _wait(process: "subprocess.Popen[bytes]", stop: threading.Event, patience_s: float) -> str:
    """Until it has ended, and why it was stopped, "" if it was not."""
    deadline = time.monotonic() + patience_s
    why = ""
    while process.poll() is None:
        if not why and (stop.is_set() or time.monotonic() > deadline):
            why = "stopped" if stop.is_set() else "it did not end in time"
            process.terminate()
            deadline = time.monotonic() + _KILL_S
        elif why and time.monotonic() > deadline:
            process.kill()
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
