"""Framing and control messages under libFuzzer (or a mutator of our own), with AddressSanitizer and
UndefinedBehaviorSanitizer; tests/fixtures/native/fuzzing.py says how to search for long."""

import json
import struct
from pathlib import Path

import pytest
from tests.fixtures.native.fuzzing import SECONDS, found_before, run_target
from tests.fixtures.native.programs import native

RUNS = 3_000

pytestmark = [
    pytest.mark.build,
    pytest.mark.slow,
    pytest.mark.timeout(900 + SECONDS),
]  # a sanitized build on a busy machine, and the search


def fuzz(directory: Path, target: str, corpus: dict[str, bytes], runs: int = RUNS) -> None:
    """Gives tests/native/plugin/<target>_fuzz.cc `runs` inputs that come from the corpus."""
    run_dir = directory / "run"
    run_dir.mkdir()
    binary = native(f"plugin_{target}_fuzz", "fuzz")
    try:
        tried = run_target(binary, corpus, directory, runs, environment={"FABRICPULSE_RUN_DIR": str(run_dir)})
    except SystemExit:
        pytest.skip("hardware: this machine has no NIC that is up")
    assert tried >= runs or SECONDS


def receive(capacity: int) -> bytes:
    """Step: NCCL posts a receive."""
    return struct.pack("<BH", 4, capacity)


def chunk(lane: int, number: int, message: int, size: int, offset: int, length: int) -> bytes:
    """Step: the peer sends a chunk with its payload."""
    return struct.pack("<BBBBHHHBB", 2, lane, number, message, size, offset, length, 0, 0)


def fence(lane: int, epoch: int, carrier: int) -> bytes:
    """Step: the peer says that a lane is dead."""
    return bytes((3, lane, epoch, carrier))


def held(base: int, bits: int, posted: int) -> bytes:
    """What a receiver says it holds."""
    return bytes((base, bits, posted, 0))


def state(base: int, bits: int, posted: int, carrier: int) -> bytes:
    """Step: the peer reports what it holds."""
    return bytes((1, 0)) + held(base, bits, posted) + bytes((carrier,))


def fenced(lane: int, epoch: int, report: bytes, carrier: int) -> bytes:
    """Step: the peer's report after a fault."""
    return bytes((1, 1, lane, epoch)) + report + bytes((carrier,))


def test_no_peer_breaks_a_connection(tmp_path: Path) -> None:
    """Whatever a peer sends, nothing is written outside a posted buffer, and no message is done with a size of its
    own."""
    receiver, sender = b"\0", b"\1"
    large = receive(50_000) + chunk(0, 0, 0, 50_000, 0, 30_000) + chunk(1, 1, 0, 50_000, 30_000, 20_000)
    early = chunk(0, 0, 0, 100, 0, 100) + receive(100) + chunk(1, 1, 1, 0, 0, 0) + receive(10)
    fault = receive(9000) + chunk(0, 0, 0, 9000, 0, 4000) + fence(0, 1, 1) + b"\5\0\2"
    sends = b"".join(struct.pack("<BH", 3, size) for size in (100, 40_000, 0, 5000))
    corpus = {
        "large": receiver + large,
        "early": receiver + early,
        "truncated": receiver + receive(10) + chunk(0, 0, 0, 100, 0, 100),
        "fault": receiver + fault + chunk(0, 1, 0, 9000, 4000, 5000) + b"\6\x64",
        "twice": receiver + receive(8) + chunk(0, 0, 0, 8, 0, 8) + receive(8) + chunk(1, 0, 0, 8, 0, 8),
        "torn": receiver + b"\0\0\0\x0a" + b"\x85\xfa\1\0\x10\0\0\0\0\0" + b"\0\0\1\x05" + b"hello",
        "greeting": receiver + b"\7" + struct.pack("<QIBBH", 0x314F4C4C48505046, 1, 1, 0, 80) + bytes(900),
        "acknowledged": sender + state(0, 0, 9, 0) + sends + state(4, 0, 9, 1),
        "gaps": sender
        + sends
        + state(0, 5, 4, 0)
        + fenced(0, 1, held(0, 2, 4), 1)
        + b"\4\5\0"
        + held(0, 3, 4),
        # Fleet time of the chunk: the least number of 64 bits.
        "long ago": receiver + receive(8) + chunk(0, 0, 0, 8, 0, 8)[:-2] + b"\1\xff\x08",
        "farewell": sender + sends + b"\0\2\0" + held(4, 0, 4) + b"\1",
        "stale": sender + sends + fenced(1, 0, held(200, 255, 255), 0) + b"\5\xff",
        "path": sender + sends + b"\6\0" + b"\4\1\0" + held(0, 0, 9) + state(4, 0, 9, 0),
    }
    fuzz(tmp_path, "wire", corpus | found_before("plugin_wire"))


def test_no_client_breaks_the_control_socket(tmp_path: Path) -> None:
    """Whatever a client sends is answered by one object, and who may not change something does not."""
    change = {"op_id": "1", "generation": 7}
    lane = {"connection": "0000000000001234", "lane": 1, **change}
    messages: list[dict[str, object]] = [
        {"op": "hello"},
        {"op": "status"},
        {"op": "status", "op_id": "1"},
        {"op": "status", "connections": False, "limit": 2},
        {"op": "events", "since": 0},
        {"op": "nic.avoid", "device": "eth0", **change},
        {"op": "nic.restore", "device": "eth0", **change},
        {"op": "lane.disable", **lane},
        {"op": "lane.enable", **lane},
        {"op": "lane.weight", "weight": 500, **lane},
        {"op": "lane.repath", **lane},
        {"op": "detail", "level": 2, **change},
        {"op": '\u00fc\n"\\', "op_id": "\u0000\ud83d\ude00"},
    ]
    corpus = {
        f"{rights}-{number}": bytes((rights,)) + json.dumps(message).encode()
        for rights in (0, 1, 3)
        for number, message in enumerate(messages)
    }
    fuzz(tmp_path, "control", corpus)


def test_no_peer_breaks_a_queue_pair_lane(tmp_path: Path) -> None:
    """Whatever a peer says of its queue pair, and writes into the slots of the lane: nothing is read or written outside
    of what belongs to the lane, and no receive that cannot be is believed."""
    receiver, sender, well = b"\0", b"\1", b"\0"

    def chunk(number: int, message: int, size: int, place: int) -> bytes:
        return struct.pack("<BBBHBBBBB", 1, number, message, size, 1, 1, 0, 0, place)

    def control(kind: int, base: int, posted: int, receives: int, keys: int) -> bytes:
        head = bytes((0, kind - 1, 0, 0, 0, 0)) + bytes((base, 0, posted, 0, receives, keys))
        return head + b"".join(struct.pack("<BHBB", n, 5000, 1, 101) for n in range(4)) + bytes((base,))

    def slot(receives: int, keys: int) -> bytes:
        return struct.pack("<BHH", 5, receives, keys) + bytes(range(64))

    def placed(number: int, message: int, end: int) -> bytes:
        """96 bytes that are announced by their own write."""
        return b"\2\x60" + bytes(96) + bytes((1, 6, number, message, end))

    def post(size: int) -> bytes:
        return struct.pack("<BH", 4, size)

    damaged = {
        f"setup-{at}-{end[0]}": end + bytes((1, at, 255)) + post(100) + chunk(0, 0, 100, 2) + b"\6\5\7\0"
        for at in (0, 4, 7, 8, 12, 16, 24, 32, 40, 56, 60)
        for end in (receiver, sender)
    }
    corpus = damaged | {
        "in-slot": receiver + well + post(100) + chunk(0, 0, 100, 2) + post(9) + chunk(1, 1, 9, 2),
        "in-slot-too-long": receiver + well + post(9000) + chunk(0, 0, 9000, 2),
        "early": receiver + well + chunk(0, 0, 16384, 3) + post(16384) + chunk(1, 1, 16385, 3),
        "direct": receiver + well + post(9000) + chunk(0, 0, 9000, 1) + chunk(1, 1, 9000, 1),
        "too-large": receiver + well + post(10) + chunk(0, 0, 100, 4) + chunk(1, 0, 100, 0),
        "fence": receiver + well + post(10) + control(3, 0, 0, 0, 0) + b"\6\40\7\0" + chunk(0, 0, 10, 2),
        "raw": receiver + well + b"\2\x30" + bytes(48) + b"\1\1" + b"\3\0\0\0\x30" + b"\3\xff\xff\xff\xff",
        "placed": receiver + well + post(96) + placed(0, 0, 1) + post(9) + placed(1, 1, 1),
        "placed-reversed": receiver + well + post(9000) + placed(1, 0, 3) + placed(0, 0, 0),
        "placed-too-far": receiver + well + post(95) + placed(0, 0, 1) + post(9000) + placed(1, 1, 255),
        "placed-nowhere": receiver + well + placed(0, 0, 1) + post(96) + placed(0, 0, 1) + placed(0, 0, 1),
        "placed-at-sender": sender + well + b"\4" + post(5000) + placed(0, 0, 1),
        "immediate": receiver + well + post(100) + b"\2\x30" + bytes(48) + b"\1\5\0\0\3\0",
        "named": sender + well + b"\4" + post(5000) + control(2, 0, 4, 4, 1) + post(5000) + b"\6\1",
        "held": sender + well + b"\4" + post(100) + control(2, 1, 4, 0, 0) + control(2, 9, 4, 0, 0),
        "keys": sender + well + b"\4" + post(30000) + control(2, 0, 4, 32, 16) + control(2, 0, 4, 1, 255),
        "bye": sender + well + b"\4" + post(100) + control(7, 0, 4, 0, 0) + b"\7\x40\0\4",
        "credits": sender + well + b"\4" + b"\3\1\0\0\x30" + b"\3\0\0\0\x30",
        "slots": receiver + well + slot(32, 1) + slot(33, 1) + slot(28, 16) + slot(1, 17) + slot(65535, 0),
    }
    fuzz(tmp_path, "verbs", corpus, RUNS // 5)  # each has an arena of 400 KiB at both ends
