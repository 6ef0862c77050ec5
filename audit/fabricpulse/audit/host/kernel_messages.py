"""The kernel's log, read whole and within bounds."""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.hostinfo.kernel_log import parse_record

# Lines that are kept, newest last; of a copied log, what is read of it.
MOST_MESSAGES = 20_000
MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class KernelMessages:
    """lines : the kernel's own. whole : since it started; else it has forgotten the oldest."""

    lines: Sequence[str]
    whole: bool

    @property
    def none(self) -> str:
        """What is said of a log without what was looked for."""
        return "none" if self.whole else "none in what the kernel still has of its log"


def kernel_messages(path: Path) -> KernelMessages | None:
    """What is in /dev/kmsg, or in a copy; None if it may not be read, or is no log."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    lines: list[str] = []
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            records = (os.read(descriptor, MOST_BYTES)).split(b"\n")
        else:
            records = _records(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # A kernel has always logged something: what gives nothing is not its log, but a console or /dev/null, which
    # containers have in its place.
    if not any(records):
        return None
    for record in records:
        text = parse_record(record)
        if text:
            lines.append(text)
    # Records are numbered from 0 on.
    first = records[0].split(b",", 2)[1:2]
    return KernelMessages(lines[-MOST_MESSAGES:], first == [b"0"] and len(lines) <= MOST_MESSAGES)


def _records(descriptor: int) -> list[bytes]:
    """Of /dev/kmsg from its oldest record on. Raises OSError when it cannot be read."""
    found: list[bytes] = []
    # One that logs as fast as we read must not keep us.
    for _ in range(10 * MOST_MESSAGES):
        try:
            record = os.read(descriptor, 8192)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EINVAL):
                continue
            raise
        if not record:
            break
        found.append(record)
    return found
