"""The packet parser and the train tables under libFuzzer, with AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import shutil
import struct
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
            ROOT / "tests" / "native" / "probe_fuzz.cc",
            *(ROOT / "exporters" / "native" / name for name in ("wire.cc", "edge_trains.cc")),
            *("-o", binary),
        ],
        check=True,
    )
    return binary


def step(what, data=b""):
    """One step of the harness."""
    return bytes((what, len(data))) + data


def live_exchange(trains):
    """Both ends send trains, and report each other's stamps; a few stamps come late, twice, or never."""
    steps = []
    for train in range(1, trains + 1):
        steps.append(step(2, bytes((7, 10))))
        for position in range(3):
            packet = bytearray(encode(bytes(16), 5, train, position, 7, train))
            packet[7] = 8  # source ports
            if train > 1:
                told = train - 1
                struct.pack_into("<IBB", packet, 40, told, 0, 0b110)
                struct.pack_into("<qii", packet, 48, 1_700_000_000_000_000_000 + told, 0, 20_000)
                struct.pack_into("<IIBB", packet, 76, told, 7, 0, 0b111)
                struct.pack_into("<qii", packet, 88, 1_700_000_000_000_000_000 + told, 20_000, 40_000)
            if (train, position) in ((4, 2), (16, 2)):
                break
            steps.append(step(1 | 4, bytes(packet)))
            if position and train % 5:
                back = int(train % 4 == 0)
                steps.append(step(3, bytes((back, position)) + (5_000).to_bytes(4, "little")))
        if train in (12, 24):
            # What was thought lost comes when its train has just left the table.
            steps.append(step(1 | 4, encode(bytes(16), 5, train - 8, 2, 7, train)))
    return b"".join(steps)


def test_no_input_breaks_the_edge(fuzzer, tmp_path):
    """Strangers' bytes are never believed, broken members' packets never reach past a table, nothing counts twice."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    packets = [
        encode(bytes(16), 5, train, position, 7, train) for train in range(1, 6) for position in range(3)
    ]
    for kind in (0, 1):
        (corpus / f"seed{kind}").write_bytes(b"".join(step(kind, packet) for packet in packets))
    (corpus / "live").write_bytes(live_exchange(36))
    if has_libfuzzer():
        arguments = [corpus, f"-runs={RUNS}", "-seed=1", "-max_len=16384", "-print_final_stats=1"]
    else:
        arguments = [str(RUNS), *corpus.iterdir()]
    result = subprocess.run(
        [fuzzer, *arguments], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-4000:]
    if has_libfuzzer():
        assert f"stat::number_of_executed_units: {RUNS}" in result.stderr
