"""Files that jobs may open."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader, ProcessLimit
from fabricpulse.audit.model import Outcome, failed, passed, unknown

LAUNCHERS = ("slurmd", "slurmstepd")
# Programs in Go raise their own limit to the hard one as they start, and give what they start the one that they had.
CONTAINER_LAUNCHERS = ("containerd", "dockerd", "kubelet")
CONTAINERS = "containers"
LEAST = 65_536
_LIMIT = "Max open files"

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
        "`Max open files` in /proc/PID/limits: the soft limit of slurmd and slurmstepd, the hard limit of containerd, "
        "dockerd and kubelet, and the soft limit of the first process of each running container (by /proc/PID/cgroup), "
        "more than half of which must have enough. What these daemons' own soft limit says is not what containers get."
    ),
    fix=(
        "Set `LimitNOFILE=1048576` in the unit of the service named and restart it; for containers also "
        "`default-ulimits` of dockerd, or the base runtime specification of containerd."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    limits = host.limits((*LAUNCHERS, *CONTAINER_LAUNCHERS), _LIMIT)
    if not limits:
        yield unknown("no process that starts jobs is seen: " + ", ".join((*LAUNCHERS, *CONTAINER_LAUNCHERS)))
    runtimes = sorted({limit.process for limit in limits if limit.process in CONTAINER_LAUNCHERS})
    containers = host.container_limits(_LIMIT) if runtimes else []
    for name in sorted({limit.process for limit in limits}):
        own = [limit for limit in limits if limit.process == name]
        least = min((files for limit in own if (files := _files(limit)) is not None), default=None)
        if least is not None and least < LEAST:
            yield failed(f"{name} may open {least} files only", name, limit=least, needed=LEAST)
        elif name not in runtimes:
            yield passed(f"{name}: {'unlimited' if least is None else least}", name)
        elif not containers:
            yield unknown(f"no container runs: what {name} gives one is not seen", name)
    if containers:
        yield _of_containers(containers)


def _files(limit: ProcessLimit) -> int | None:
    return limit.most if limit.process in CONTAINER_LAUNCHERS else limit.value


def _of_containers(limits: list[ProcessLimit]) -> Outcome:
    """Of some a person may want so few."""
    small = [limit for limit in limits if limit.value is not None and limit.value < LEAST]
    least = min((limit.value for limit in small if limit.value is not None), default=None)
    if 2 * len(small) > len(limits):
        text = f"{len(small)} of {len(limits)} containers may open {least} files only"
        return failed(text, CONTAINERS, limit=least, needed=LEAST, process=small[0].process, pid=small[0].pid)
    return passed(
        f"{len(limits) - len(small)} of {len(limits)} containers may open {LEAST} files", CONTAINERS
    )
