"""A rank is late because its GPU is slow: throttled by heat or power, or at a lower clock than its siblings.

Identified like a straggler rank, and by dcgm-exporter: the SM clock of a GPU of that host against the median of the
job's GPUs, and the reasons for throttling that the driver gives. Where the time that ranks spend in collectives is not
known, GPUs of a slow job that are slower than most of its GPUs are named as likely.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes.straggler_rank import late_ranks, why_not
from fabricpulse.why.facts import Gpu
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding

TITLE = "straggler GPU"
DO = (
    "The network is not the reason: look at `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER` of this GPU.",
    "Take the host out of the job and run a burn-in (dcgmi diag) before it comes back.",
)


_SLOW_CLOCK = 0.9


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a late rank with a slow GPU on its host."""
    if not any(r.duration_s is not None for r in a.facts.ranks):
        yield from _without_ranks(a)
    for late in late_ranks(a):
        rank = late.rank
        evidence = [e for gpu in a.facts.gpus if gpu.host == rank.host for e in _slow(gpu, 0.85)]
        if evidence:
            evidence.append(
                Evidence(
                    f"rank {rank.rank} on this host enters each collective {late.late_s * 1e3:.1f} ms late",
                    0.8,
                    "rank_busy",
                )
            )
            subjects = [("rank", rank.communicator, str(rank.rank)), ("host", rank.host)]
            found = finding("straggler_gpu", f"rank {rank.rank} on {rank.host}", evidence, subjects, "qp")
            yield as_hint(found, old) if (old := why_not(a, late)) else found


def _without_ranks(a: Analysis) -> Iterator[Finding]:
    slow = [(gpu, evidence) for gpu in a.facts.gpus if (evidence := list(_slow(gpu, 0.55)))]
    if not a.slow or not slow or len(slow) * 4 > len(a.facts.gpus):
        return
    for gpu, evidence in slow:
        evidence.append(Evidence("whether its rank is late is not known: the profiler is off", 0.0))
        subjects = [("host", gpu.host)]
        yield finding("straggler_gpu", f"GPU {gpu.gpu} of {gpu.host}", evidence, subjects)


def _slow(gpu: Gpu, strength: float) -> Iterator[Evidence]:
    if gpu.throttled:
        yield Evidence(f"GPU {gpu.gpu} of {gpu.host} is throttled", strength, "gpu_throttled")
    if gpu.clock is not None and gpu.clock < _SLOW_CLOCK:
        yield Evidence(
            f"GPU {gpu.gpu} of {gpu.host} runs at {gpu.clock:.0%} of the usual clock", strength, "gpu_clock"
        )
