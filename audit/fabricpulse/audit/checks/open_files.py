"""Files that jobs may open."""

from collections.abc import Iterator

from fabricpulse.audit.check import Check
from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

LAUNCHERS = ("slurmd", "slurmstepd", "containerd", "dockerd", "kubelet")
LEAST = 65_536

CHECK = Check(
    id="open-files",
    category="node",
    severity="warning",
    title="Files that jobs may open",
    proves=(
        "Jobs may open at least 65,536 files: NCCL needs some for each peer, and fails in the middle of a "
        "large job without."
    ),
    how=(
        "`Max open files` (soft limit) in /proc/PID/limits of slurmd, slurmstepd, containerd, dockerd and "
        "kubelet."
    ),
    fix="Set `LimitNOFILE=1048576` in the unit of the service named and restart it.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    limits = host.limits(LAUNCHERS, "Max open files")
    if not limits:
        yield unknown("no process that starts jobs is seen: " + ", ".join(LAUNCHERS))
    for name in sorted({limit.process for limit in limits}):
        least = min(
            (limit.value for limit in limits if limit.process == name and limit.value is not None),
            default=None,
        )
        if least is not None and least < LEAST:
            yield failed(f"{name} may open {least} files only", name, limit=least, needed=LEAST)
        else:
            yield passed(f"{name}: {'unlimited' if least is None else least}", name)
