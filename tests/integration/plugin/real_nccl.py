"""The released NCCL (PyPI `nvidia-nccl-cu13`, 344 MB), for tests and benchmarks that need the real one.

It needs no GPU and no driver to be loaded. What is wanted of it exports no symbol, so its place is looked up in the
table of local symbols.
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = "nvidia-nccl-cu13"
PEERS = Path(__file__).parents[3] / "build/peers/nccl"


class NoNcclError(Exception):
    """The library cannot be had; the text says why."""


@functools.cache
def nccl_library() -> Path:
    """The library: the installed package's (dependency group `nccl`), else one that pip puts into build/peers once.

    Raises NoNcclError.
    """
    for place in (*map(Path, sys.path), PEERS):
        found = place / "nvidia/nccl/lib/libnccl.so.2"
        if found.is_file():
            return found
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PEERS)]
    done = subprocess.run([*pip, PACKAGE], capture_output=True, text=True, check=False)
    found = PEERS / "nvidia/nccl/lib/libnccl.so.2"
    if not found.is_file():
        raise NoNcclError(f"pip cannot fetch {PACKAGE}: {done.stderr.strip()[-300:]}")
    return found


def places(library: Path, names: set[str]) -> dict[str, str]:
    """Offsets of local symbols in a library, as 0x text, by their plain names (C++ functions without arguments).

    Raises NoNcclError if one is missing.
    """
    listed = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=False).stdout
    found = {}
    for line in listed.splitlines():
        place, _, symbol = line.rpartition(" ")
        mangled = re.fullmatch(r"_Z(\d+)(\w+)", symbol)
        plain = mangled[2][: int(mangled[1])] if mangled else symbol
        if plain in names and (not mangled or "." not in symbol):
            found[plain] = f"0x{place.split(' ')[0]}"
    if missing := names - set(found):
        raise NoNcclError(f"this release of NCCL keeps {', '.join(sorted(missing))} to itself")
    return found
