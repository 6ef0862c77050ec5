"""Memory that jobs may lock."""

from collections.abc import Iterator

from fabricpulse.audit.check import Check
from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

LAUNCHERS = ("slurmd", "slurmstepd", "containerd", "dockerd", "kubelet", "sshd")

CHECK = Check(
    id="memlock",
    category="node",
    severity="error",
    title="Memory that jobs may lock",
    proves="Jobs may lock as much memory as they like, so registering memory with a NIC does not fail.",
    how=(
        "`Max locked memory` in /proc/PID/limits of the processes that start jobs: slurmd, slurmstepd, "
        "containerd, dockerd, kubelet, sshd."
    ),
    fix=(
        "Set `LimitMEMLOCK=infinity` in the unit of the service named, or `memlock unlimited` in "
        "/etc/security/limits.d for logins, and restart it."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    limits = host.limits(LAUNCHERS, "Max locked memory")
    if not limits:
        yield unknown("no process that starts jobs is seen: " + ", ".join(LAUNCHERS))
    for name in sorted({limit.process for limit in limits}):
        small = [limit for limit in limits if limit.process == name and limit.value is not None]
        if small:
            worst = min(small, key=lambda limit: limit.value or 0)
            yield failed(f"{name} may lock {worst.value} bytes only", name, pid=worst.pid, limit=worst.value)
        else:
            yield passed(f"{name}: unlimited", name)
