"""File descriptors of this process: how many it may have, and has."""

import resource
from pathlib import Path

_MOST_FILES = 65_536


def raise_file_limit() -> int:
    """Lets this process have as many open files as it may, at most 65,536: a service begins with 1,024 of them.

    Returns the limit in force.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def files_in_use() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
