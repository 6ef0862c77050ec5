"""One rank of an all-reduce by NCCL itself, where the host has a GPU and torch: torch_rank.py under the bounds of
`fabricpulse-ring`."""

import os
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from fabricpulse.audit.host.nvml import NvmlAnswer
from fabricpulse.audit.node.ring import PREFIX, run_rank
from fabricpulse.audit.node.wire import RingAnswer, RingRequest
from fabricpulse.core.run_dir import RUN_DIR_ENV

# torch and CUDA load for seconds, from a cold disk for more.
START_S = 60
# What a rank has of the agent's environment: where programs and libraries are, and what the operator sets for NCCL.
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")
_KEPT_PREFIXES = ("NCCL_", "CUDA_", "NVIDIA_")
_RANK = Path(__file__).with_name("torch_rank.py")


def why_not(vendors: Iterable[str], nvml: NvmlAnswer) -> str:
    """Why no rank can run here, "" if one can. vendors : of the host's GPUs. A GPU that somebody computes on is not
    shared: a job could run out of its memory."""
    if "nvidia" not in vendors:
        return "no NVIDIA GPU"
    if nvml.gpus is None:
        return f"not known whether the GPU is in use: {nvml.reason}"
    if nvml.refused:
        return f"not known whether a GPU is in use: no permission to ask {nvml.refused} of them"
    for gpu in nvml.gpus:
        if gpu.processes is None:
            return f"not known whether GPU {gpu.address} is in use: NVML does not say what computes on it"
        if gpu.processes:
            return f"in use: {gpu.processes} processes compute on GPU {gpu.address}"
    return ""


def run_torch(request: RingRequest, stop: threading.Event, python: str = "") -> RingAnswer:
    """Runs one rank to its end. python : an interpreter that has torch, "" for this one. Blocks; raises nothing: why it
    failed is in the answer."""
    if request.rank >= request.size:
        return RingAnswer(error=f"rank {request.rank} of {request.size}")
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        env = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or name.startswith(_KEPT_PREFIXES)
        }
        env.setdefault("NCCL_SOCKET_IFNAME", "=" + ",".join(request.devices))
        env[RUN_DIR_ENV] = folder
        arguments = [
            *(python or sys.executable, "-I", str(_RANK)),
            *("--rank", str(request.rank), "--size", str(request.size), "--rendezvous", request.rendezvous),
            *("--seconds", f"{request.seconds:g}", "--connect-seconds", str(START_S)),
        ]
        return run_rank(arguments, env, Path(folder), stop, START_S + 2 * request.seconds + 15)
