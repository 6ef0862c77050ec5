"""The packet parser under libFuzzer, with AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fabricpulse.exporters._probe_engine import encode

ROOT = Path(__file__).parents[3]
RUNS = int(os.environ.get("FABRICPULSE_FUZZ_RUNS", "50000"))


def has_libfuzzer():
    return shutil.which("clang++") is not None


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    """The harness, compiled: with libFuzzer, or with a small mutator of its own where there is only g++."""
    binary = tmp_path_factory.mktemp("fuzz") / "probe_fuzz"
    kind: tuple[str, ...] = ("clang++", "-fsanitize=fuzzer,address,undefined")
    if not has_libfuzzer():
        kind = ("g++", "-fsanitize=address,undefined", "-DSTANDALONE")
    subprocess.run(
        [
            *(*kind, "-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"),
            *("-I", ROOT / "exporters" / "native", "-I", ROOT / "core" / "include"),
            *(ROOT / "tests" / "native" / "probe_fuzz.cc", ROOT / "exporters" / "native" / "wire.cc"),
            *("-o", binary),
        ],
        check=True,
    )
    return binary


def test_no_input_breaks_the_parser(fuzzer, tmp_path):
    """Strangers' bytes are never believed, broken members' packets never reach past a table, nothing is taken twice."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    packets = [
        encode(bytes(16), 5, train, position, 7, train) for train in range(1, 6) for position in range(3)
    ]
    for flag in (0, 1):
        (corpus / f"seed{flag}").write_bytes(b"".join(bytes((flag, len(p))) + p for p in packets))
    if has_libfuzzer():
        arguments = [corpus, f"-runs={RUNS}", "-seed=1", "-max_len=4096", "-print_final_stats=1"]
    else:
        arguments = [str(RUNS), *corpus.iterdir()]
    result = subprocess.run(
        [fuzzer, *arguments], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-4000:]
    if has_libfuzzer():
        assert f"stat::number_of_executed_units: {RUNS}" in result.stderr
