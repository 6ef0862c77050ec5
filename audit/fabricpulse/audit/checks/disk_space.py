"""Disk space."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

GIB = 1 << 30
# Of diskless hosts and of distributions with an immutable root.
IMAGES = ("squashfs", "erofs", "iso9660", "cramfs")

CHECK = Check(
    id="disk-space",
    category="node",
    severity="error",
    title="Disk space",
    proves=(
        "The file systems that a job and the system write to have room: 5 % and 1 GiB, and /dev/shm at "
        "least 1 GiB in all."
    ),
    how="statvfs of /, /var, /tmp and /dev/shm.",
    fix=(
        "Remove what fills it (old logs, core files, files of jobs that ended in /dev/shm); mount a "
        "larger /dev/shm."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    seen = set()
    for path in ("/", "/var", "/tmp", "/dev/shm"):  # noqa: S108 - measured, not written to
        space = host.disk(host.place(path))
        if space is None:
            continue
        if (space.size, space.free) in seen:
            continue
        seen.add((space.size, space.free))
        if path == "/" and is_image(host.text("/proc/mounts") or ""):
            # Full by nature, and nobody writes to it.
            yield not_applicable("an image that is only read", path)
            continue
        if not space.size:
            yield unknown("its file system does not report its size", path)
            continue
        share = space.free / space.size
        evidence = {"free_bytes": space.free, "size_bytes": space.size}
        if path == "/dev/shm" and space.size < GIB:  # noqa: S108
            yield failed(f"{space.size >> 20} MiB in all", path, **evidence)
        elif path == "/dev/shm" and share >= 0.05:  # noqa: S108
            yield passed(f"{space.free >> 20} MiB free", path)
        elif share < 0.05 or space.free < GIB:
            yield failed(f"{share:.1%} free ({space.free >> 20} MiB)", path, **evidence)
        else:
            yield passed(f"{share:.0%} free", path)
    if not seen:
        yield unknown("no file system can be measured")


def is_image(mounts: str) -> bool:
    """Whether the root file system is one of those that cannot be written to, by /proc/mounts."""
    roots = [fields for line in mounts.splitlines() if len(fields := line.split()) >= 4 and fields[1] == "/"]
    return bool(roots) and (roots[-1][2] in IMAGES or roots[-1][0] == "composefs")
