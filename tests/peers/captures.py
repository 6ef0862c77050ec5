"""`make captures`: the tests that read what others have captured of real machines and jobs, with what they need.

Their data is not in this repository. Each variable names a checkout of where it is published, a bare one too.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

# What is read -> where it is published.
SOURCES: Mapping[str, str] = {
    "PROCFS_SOURCE": "https://github.com/prometheus/procfs",
    "NODE_EXPORTER_SOURCE": "https://github.com/prometheus/node_exporter",
    "HWLOC_SOURCE": "https://github.com/open-mpi/hwloc",
    "RAY_SOURCE": "https://github.com/ray-project/ray",
    "DATADOG_SOURCE": "https://github.com/DataDog/datadog-agent",
}


def missing(environment: Mapping[str, str]) -> list[str]:
    """A line for each source that is not given, or not there."""
    found = []
    for name, url in SOURCES.items():
        place = environment.get(name, "")
        if not place:
            found.append(f"{name} is not set: git clone --depth 1 {url}, and give its folder")
        elif not Path(place).exists():
            found.append(f"{name}={place} is not there: give a checkout of {url}")
    return found


def main() -> int:
    """Exit code 2 where nothing can be tested; what can be is, and what cannot is said."""
    lines = missing(os.environ)
    for line in lines:
        print(f"not tested: {line}", file=sys.stderr)
    if len(lines) == len(SOURCES):
        return 2
    here = Path(__file__).parent
    return int(pytest.main(["-rs", *sys.argv[1:], *map(str, sorted(here.glob("test_*_captures.py")))]))


if __name__ == "__main__":
    sys.exit(main())
