"""A rank is late because its GPU is slow: throttled by heat or power, or at a lower clock than its siblings.

Told as a straggler rank is, and by dcgm-exporter: the SM clock of a GPU of that host against the median of the job's
GPUs, and the reasons for throttling that the driver gives.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes.straggler_rank import late_ranks
from fabricpulse.why.finding import Evidence, Finding, finding

TITLE = "straggler GPU"
DO = (
    "The network is not the reason: look at `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` of this GPU.",
    "Take the host out of the job and run a burn-in (dcgmi diag) before it comes back.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a late rank with a slow GPU on its host."""
    for late in late_ranks(a):
        rank = late.rank
        evidence = []
        for gpu in a.facts.gpus:
            if gpu.host != rank.host:
                continue
            if gpu.throttled:
                evidence.append(Evidence(f"GPU {gpu.gpu} of {gpu.host} is throttled", 0.85, "gpu_throttled"))
            if gpu.clock is not None and gpu.clock < 0.9:
                evidence.append(
                    Evidence(
                        f"GPU {gpu.gpu} of {gpu.host} runs at {gpu.clock:.0%} of the usual clock",
                        0.85,
                        "gpu_clock",
                    )
                )
        if evidence:
            evidence.append(
                Evidence(
                    f"rank {rank.rank} on this host enters each collective {late.late_s * 1e3:.1f} ms late",
                    0.8,
                    "rank_duration",
                )
            )
            subjects = [("rank", rank.communicator, str(rank.rank)), ("host", rank.host)]
            yield finding("straggler_gpu", f"rank {rank.rank} on {rank.host}", evidence, subjects, "qp")
