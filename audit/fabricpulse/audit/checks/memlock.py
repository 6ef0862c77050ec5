"""Memory that jobs may lock."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

LAUNCHERS = ("slurmd", "slurmstepd", "containerd", "dockerd", "sshd")
MEMORY = re.compile(r"^MemTotal: +([0-9]{1,15}) kB$", re.MULTILINE)

CHECK = Check(
    id="memlock",
    category="node",
    severity="error",
    title="Memory that jobs may lock",
    proves="Jobs may lock as much memory as they like, so registering memory with a NIC does not fail.",
    how=(
        "`Max locked memory` in /proc/PID/limits of the processes that start jobs: slurmd, slurmstepd, "
        "containerd, dockerd; that of sshd says nothing of its sessions unless it is unlimited."
    ),
    fix=(
        "Set `LimitMEMLOCK=infinity` in the unit of the service named, or `memlock unlimited` in "
        "/etc/security/limits.d for logins, and restart it."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    limits = host.limits(LAUNCHERS, "Max locked memory")
    memory = 1024 * int(hit[1]) if (hit := MEMORY.search(host.text("/proc/meminfo") or "")) else 0
    if not limits:
        yield unknown("no process that starts jobs is seen: " + ", ".join(LAUNCHERS))
    for name in sorted({limit.process for limit in limits}):
        own = [limit for limit in limits if limit.process == name]
        # What is as much as there is holds nobody back.
        small = [limit for limit in own if limit.value is not None and not 0 < memory <= limit.value]
        worst = min(small, key=lambda limit: limit.value or 0, default=None)
        if worst is None:
            most = min((limit.value for limit in own if limit.value is not None), default=None)
            yield passed(f"{name}: {'unlimited' if most is None else f'{most} bytes, all memory'}", name)
        elif name == "sshd":
            # Its own is systemd's default; PAM (limits.conf) sets that of a session.
            text = f"sshd itself may lock {worst.value} bytes; what its sessions may, PAM decides"
            yield unknown(text, name, pid=worst.pid, limit=worst.value)
        else:
            yield failed(f"{name} may lock {worst.value} bytes only", name, pid=worst.pid, limit=worst.value)
