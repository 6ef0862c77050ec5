"""File descriptors of this process: the limit, and how many are open."""

import resource
from pathlib import Path

_MAX_FILES = 65_536


def raise_file_limit() -> int:
    """Raises the soft limit RLIMIT_NOFILE to the hard one, at most 65,536; a service starts with 1,024.

    Returns the soft limit in force.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return _MAX_FILES if soft == resource.RLIM_INFINITY else soft


def files_in_use() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
