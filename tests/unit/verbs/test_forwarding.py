"""Programs find every function of libibverbs, whichever way the interposer is loaded."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fabricpulse.verbs.locate import nccl_library, preload_library

INTERPOSED = {
    ("ibv_open_device", "IBVERBS_1.1"),
    ("ibv_close_device", "IBVERBS_1.1"),
    ("ibv_import_device", "IBVERBS_1.10"),
    ("ibv_create_qp", "IBVERBS_1.1"),
    ("ibv_modify_qp", "IBVERBS_1.1"),
    ("ibv_destroy_qp", "IBVERBS_1.1"),
    ("ibv_destroy_cq", "IBVERBS_1.1"),
}
REAL = "libibverbs.so.1"
# Prints "name version" of what the handle of a library finds elsewhere than the real library does.
ASK = """
import ctypes, sys
real, other = (ctypes.CDLL(name)._handle for name in sys.argv[1:3])
find = ctypes.CDLL(None).dlvsym
find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
count = 0
for line in sys.stdin:
    name, version = line.encode().split()
    count += 1
    if find(real, name, version) != find(other, name, version):
        print(name.decode(), version.decode(), find(other, name, version) is not None)
print(count, "asked")
"""


@pytest.fixture(scope="module")
def symbols() -> list[tuple[str, str]]:
    """What the distribution's libibverbs exports: names with their versions."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    try:
        path = _path(ctypes.CDLL(REAL))
    except OSError:
        pytest.skip("hardware: no libibverbs1 on this machine")
    done = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True)
    found = re.findall(r"^\S+ .*?\(?(IBVERBS_\w+(?:\.\d+)?)\)?\s+(\w+)$", done.stdout, re.MULTILINE)
    return [(name, version) for version, name in found]


def _path(library: ctypes.CDLL) -> str:
    return next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libibverbs.so" in line
    )


def _elsewhere(
    symbols: list[tuple[str, str]], *libraries: str, preload: str = ""
) -> dict[tuple[str, str], bool]:
    """The symbols for which the two libraries give different addresses -> whether the second one has it at all."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *libraries],
        input="".join(f"{name} {version}\n" for name, version in symbols),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"LD_PRELOAD": preload},
    )
    *lines, last = done.stdout.splitlines()
    assert last == f"{len(symbols)} asked"
    return {(line.split()[0], line.split()[1]): line.split()[2] == "True" for line in lines}


def test_the_copy_for_nccl_has_every_versioned_symbol(symbols: list[tuple[str, str]]) -> None:
    """dlvsym() finds all that the real library has, and the real one's own function but for those interposed."""
    assert len(symbols) > 150
    assert {("ibv_query_pkey", "IBVERBS_1.1"), ("ibv_reg_dmabuf_mr", "IBVERBS_1.12")} <= set(symbols)
    assert _elsewhere(symbols, REAL, str(nccl_library())) == dict.fromkeys(INTERPOSED, True)


@pytest.mark.usefixtures("symbols")
def test_a_version_that_the_real_library_lacks_is_not_there() -> None:
    """The lookup of a function that this libibverbs does not have fails, as without the interposer."""
    library = ctypes.CDLL(str(nccl_library()))
    with pytest.raises(AttributeError):
        _ = library.ibv_of_a_later_version


def test_preloaded_it_has_the_same_functions_and_needs_no_libibverbs(symbols: list[tuple[str, str]]) -> None:
    """Exactly those that are interposed come from it; a program without libibverbs starts with it."""
    done = subprocess.run(["objdump", "-T", preload_library()], capture_output=True, text=True, check=True)
    own = re.findall(r"^\S+ .*?\.text.*?\(?(IBVERBS_[\d.]+)\)?\s+(\w+)$", done.stdout, re.MULTILINE)
    assert {(name, version) for version, name in own} == INTERPOSED
    needed = subprocess.run(["objdump", "-p", preload_library()], capture_output=True, text=True, check=True)
    assert "libibverbs" not in needed.stdout
    assert _elsewhere(symbols, REAL, REAL, preload=str(preload_library())) == {}
    silent = subprocess.run(
        ["/bin/true"], env={"LD_PRELOAD": str(preload_library())}, capture_output=True, check=True
    )
    assert (silent.stdout, silent.stderr) == (b"", b"")
