"""The kernel's log, read whole and within bounds."""

import errno
import os
import stat
from pathlib import Path

from fabricpulse.hostinfo.kernel_log import parse_record

# Lines that are kept, newest last; of a copied log, what is read of it.
MOST_MESSAGES = 20_000
MOST_BYTES = 16 << 20


def kernel_messages(path: Path) -> list[str] | None:
    """The kernel's own lines of /dev/kmsg, or of a copy; None if they may not be read, or it is no log."""
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
    return lines[-MOST_MESSAGES:]


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
