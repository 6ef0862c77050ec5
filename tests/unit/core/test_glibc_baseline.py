"""Native parts run where glibc is older than on the machine that built them (cmake/glibc_baseline.c)."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import fabricpulse
from fabricpulse.plugin.locate import library, ring

ROOT = Path(__file__).parents[3]
BASELINE = (2, 28)


def binaries() -> list[Path]:
    """Every ELF file that the wheel brings."""
    modules = {path.resolve() for folder in fabricpulse.__path__ for path in Path(folder).rglob("*.so")}
    return sorted({*modules, library(), ring()})


def too_new(binary: Path) -> list[str]:
    """Symbols that it needs of a newer glibc, or of a libstdc++ of the system."""
    done = subprocess.run(["objdump", "-T", str(binary)], capture_output=True, text=True, check=True)
    needed = re.findall(r"\*UND\*\s+\S+\s+\(?((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)\)?\s+(\S+)", done.stdout)
    assert needed, f"objdump shows no versions of {binary}"
    found = []
    for version, symbol in needed:
        name, number = version.split("_")
        if name != "GLIBC" or tuple(map(int, number.split("."))) > BASELINE:
            found.append(f"{symbol}@{version}")
    return found


@pytest.fixture(autouse=True)
def objdump() -> None:
    """Comes with the compiler."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")


@pytest.mark.parametrize("binary", binaries(), ids=lambda path: path.name)
def test_nothing_newer_than_the_baseline_is_needed(binary: Path) -> None:
    """A symbol that is too new belongs into the list of glibc_baseline.cmake, with a wrapper in glibc_baseline.c."""
    assert too_new(binary) == []


def test_a_symbol_that_is_too_new_is_detected(tmp_path: Path) -> None:
    """The check finds what a linker binds without the baseline."""
    if tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 34):
        pytest.skip("this glibc has no newer symbols")
    (tmp_path / "new.c").write_text(
        "#include <pthread.h>\nint main(void) { return pthread_join(pthread_self(), 0); }"
    )
    subprocess.run(["cc", "new.c", "-o", "new"], cwd=tmp_path, check=True)
    assert any(entry.startswith("pthread_join@") for entry in too_new(tmp_path / "new"))


@pytest.mark.thorough
def test_the_replacements_work(tmp_path: Path) -> None:
    """Constructors, exceptions, threads, conditions, file status, random numbers: as without the baseline."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(baseline LANGUAGES C CXX)\nset(CMAKE_CXX_STANDARD 17)\n"
        f"include({ROOT}/cmake/glibc_baseline.cmake)\n"
        f"add_executable(program {ROOT}/tests/native/baseline_program.cc)\nfabricpulse_glibc_baseline(program)\n"
    )
    for command in ([cmake, "-S", ".", "-B", "build"], [cmake, "--build", "build"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "five").write_text("12345")
    program = tmp_path / "build/program"
    assert too_new(program) == []
    done = subprocess.run([program, tmp_path / "five"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
