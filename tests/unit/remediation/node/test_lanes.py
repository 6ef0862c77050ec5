"""The agent's side of rebalancing: what it reads from telemetry, and how it carries out an operation on a lane."""

import os
from pathlib import Path

import pytest
from tests.fixtures.plugin.telemetry_file import TelemetryFile

from fabricpulse.core.config import parse_config
from fabricpulse.core.subordinate_ids import SubordinateIds
from fabricpulse.plugin_ipc.telemetry import Table
from fabricpulse.remediation.node import plugins
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.control_calls import Failure
from fabricpulse.remediation.node.lanes import LaneSampler
from fabricpulse.remediation.node.limits import LocalLimits
from fabricpulse.remediation.node.plugins import Plugins
from fabricpulse.remediation.protocol import LaneOrder


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A second passes with each file that is read."""
    now = [1000.0]
    monkeypatch.setattr("fabricpulse.remediation.node.lanes.time.monotonic", lambda: now[0])
    return now


def file_with_lanes(folder: Path) -> TelemetryFile:
    file = TelemetryFile(folder)
    file.put(Table.CONNECTIONS, 3, state=1, id=0x5F0C9A7BE1D20001, direction=1)
    for slot, direction in ((0, 1), (1, 2)):
        file.lane(slot, slot, "h1", connection=3, index=slot, direction=direction, entropy=40_000)
    return file


def test_rates_between_two_samples(tmp_path, clock):
    """Bytes acknowledged a second, the mean delay, troubles; sending lanes only, and only from the second time on."""
    file = file_with_lanes(tmp_path)
    file.put(Table.DEVICES, 0, speed_mbps=400_000)
    sampler = LaneSampler(tmp_path)
    assert sampler.sample() == []
    file.lane(
        0, 0, "h1", {2: 4}, connection=3, index=0, direction=1, entropy=40_000,
        acknowledged_bytes=5_000, delivery_rate=9_000, retransmits=2, ecn_marked=1, repaths=7,
    )  # fmt: skip
    clock[0] += 2
    (sample,) = sampler.sample()
    assert (sample.connection, sample.lane, sample.device) == ("5f0c9a7be1d20001", 0, "rail0")
    assert (sample.goodput, sample.capacity, sample.troubles, sample.repaths) == (2_500, 9_000, 3, 7)
    assert sample.delay_s == pytest.approx(file.header["delay_bounds_ns"][0][2] * 1e-9)
    assert (sample.workload, sample.entropy, sample.nic_speed) == ("train-7", 40_000, 5e10)
    assert sample.user == os.geteuid()
    file.lane(0, 0, "h1", connection=3, index=0, direction=1, acknowledged_bytes=10)
    clock[0] += 2
    (sample,) = sampler.sample()
    assert (sample.goodput, sample.delay_s) == (0, -1), "a counter that went back is no rate"
    sampler.close()


def test_for_how_much_of_the_time_a_lane_is_busy(tmp_path, clock):
    """By looks between two samples, at least five; an idle lane has 0, and each sample counts anew."""
    file = file_with_lanes(tmp_path)
    sampler = LaneSampler(tmp_path)
    sampler.sample()
    for under_way in (4096, 0, 1, 0, 9, 9):
        file.lane(0, 0, "h1", connection=3, index=0, direction=1, in_flight_bytes=under_way)
        assert sampler.poll() >= 0.1
    clock[0] += 2
    (sample,) = sampler.sample()
    assert sample.busy == pytest.approx(5 / 8), "with the looks of both samples"
    clock[0] += 2
    (sample,) = sampler.sample()
    assert sample.busy == -1
    sampler.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give the file another owner")
def test_lanes_of_a_users_containers_are_his(tmp_path, clock):
    """Their uids differ from host to host: by these one job was those of several users."""
    file = file_with_lanes(tmp_path)
    os.chown(file.path, 100_007, -1)
    subuid = tmp_path / "subuid"
    subuid.write_text("1000:100000:65536\n")
    sampler = LaneSampler(tmp_path, ids=SubordinateIds(subuid))
    sampler.sample()
    clock[0] += 2
    assert [sample.user for sample in sampler.sample()] == [1000]
    subuid.write_text("no-such-user-here:100000:65536\n")
    clock[0] += 2
    assert [sample.user for sample in sampler.sample()] == [-1], "not known"
    sampler.close()


def test_files_of_others_and_nonsense_are_passed_over(tmp_path):
    """Another user's file where job_users are given, a name that is no process, a file that is no telemetry."""
    file = file_with_lanes(tmp_path)
    (tmp_path / "x.telemetry").write_bytes(b"x")
    (tmp_path / "77.telemetry").write_bytes(b"x" * 5000)
    file.path.rename(tmp_path / "4711-effffffc.telemetry")
    os.chown(tmp_path / "4711-effffffc.telemetry", 12345, -1) if os.geteuid() == 0 else None
    sampler = LaneSampler(tmp_path, frozenset({4242}))
    assert sampler.sample() == []
    assert not sampler._before or os.geteuid() != 0
    sampler.close()


ORDER = LaneOrder("4711", "5f0c9a7be1d20001", 2, "rail0", "lane.repath", 40_000, 9, "lane-9-0")


def test_an_operation_and_its_answers(tmp_path, monkeypatch):
    """The request as the control protocol has it; applied, refused with the plugin's code, failed without an answer."""
    known = Plugins(tmp_path, 1, 1)
    asked = []

    def answer_with(answer):
        def ask(names, message):
            asked.append((list(names), message))
            return {"4711": answer}

        monkeypatch.setattr(known, "_ask", ask)
        return known.change_lane(ORDER)

    assert answer_with({"ok": True, "result": "applied"}).outcome == "applied"
    assert asked[0] == (
        ["4711"],
        {"op": "lane.repath", "op_id": "lane-9-0", "generation": 9, "connection": "5f0c9a7be1d20001", "lane": 2,
         "entropy": 40_000},
    )  # fmt: skip
    refused = answer_with({"ok": False, "error": {"code": "unknown_lane", "message": "gone"}})
    assert (refused.outcome, refused.message) == ("refused", "unknown_lane: gone")
    failed = answer_with(Failure("silent", "timed out"))
    assert (failed.outcome, failed.message) == ("failed", "pid 4711: timed out")
    assert known.calls["applied"] == 1
    assert plugins.CALL_RESULTS


def test_local_limits_of_lanes():
    """The allow-list of NICs and the rate hold whatever the receiver says; the rate is of a window."""
    text = "devices: [rail1]\n"
    limits = LocalLimits(parse_config(text, NodeConfig, "test"))
    assert "not in devices" in limits.lane_refusal(ORDER, 0.0)
    limits = LocalLimits(parse_config("max_lane_operations: 2\nfailovers_window_s: 10\n", NodeConfig, "test"))
    assert [limits.lane_refusal(ORDER, at) for at in (0.0, 1.0)] == ["", ""]
    assert "operations on lanes" in limits.lane_refusal(ORDER, 2.0)
    assert limits.lane_refusal(ORDER, 10.5) == ""


def owned(path: Path, user: int) -> None:
    """Gives the file to a user."""
    os.chown(path, user, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_flood_of_files_of_one_user_keeps_out_no_other_user(tmp_path, clock):
    """By number, by lanes and by time: names that come first, a full report, and files that are never at rest."""
    for pid in range(1, 41):
        flood = TelemetryFile(tmp_path, pid)
        flood.put(Table.CONNECTIONS, 0, state=1, id=pid, direction=1)
        for slot in range(32):
            flood.lane(slot, 0, "h1", connection=0, index=slot, direction=1)
        owned(flood.path, 12345)
    for pid in range(41, 300):
        (tmp_path / f"{pid}.telemetry").write_bytes(b"x" * 5000)
        owned(tmp_path / f"{pid}.telemetry", 12345)
    name = "9999999"
    file_with_lanes(tmp_path).path.rename(tmp_path / f"{name}.telemetry")
    sampler = LaneSampler(tmp_path)
    sampler.sample()
    for _ in range(6):
        sampler.poll()
    clock[0] += 2
    samples = sampler.sample()
    assert len(samples) == 1024
    own = [sample for sample in samples if sample.process == name]
    assert [(sample.lane, sample.busy) for sample in own] == [(0, 0.0)]
    sampler.close()


def test_files_that_are_never_at_rest_use_up_their_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left to the files of another user is half of it."""
    waited: dict[str, float] = {}
    now = [0.0]
    monkeypatch.setattr("fabricpulse.remediation.node.lanes.time.monotonic", lambda: now[0])
    sampler = LaneSampler(tmp_path)
    monkeypatch.setattr(sampler, "_chosen", lambda: {Path("1"): 7, Path("2"): 7, Path("3"): 8})

    def read(path: Path, patience_s: float) -> None:
        waited[path.name] = patience_s
        now[0] += patience_s

    monkeypatch.setattr(sampler, "_read", read)
    sampler.poll()
    assert waited == pytest.approx({"1": 0.025, "2": 0.0, "3": 0.025})


@pytest.mark.parametrize(
    ("most", "cpu_s", "read"), [(40, 0.0, [32, 8]), (4096, 0.2, [32, 32])], ids=["lanes", "time"]
)
def test_what_one_user_has_is_bounded(tmp_path, monkeypatch, most, cpu_s, read):
    """A host's report has 1,024 lanes: 256 files of 16 MB must not be read, and held, for it."""
    now = [0.0]

    def thread_time() -> float:
        now[0] += cpu_s
        return float(now[0])

    for pid in (1, 2, 3, 4):
        file = TelemetryFile(tmp_path, pid)
        file.put(Table.CONNECTIONS, 0, state=1, id=pid, direction=1)
        for slot in range(32):
            file.lane(slot, 0, "h1", connection=0, index=slot, direction=1)
    monkeypatch.setattr("fabricpulse.remediation.node.lanes._MOST_OF_USER", most)
    monkeypatch.setattr("fabricpulse.remediation.node.lanes.time.thread_time", thread_time)
    sampler = LaneSampler(tmp_path)
    found = [snapshot for _, _, snapshot in sampler._snapshots()]
    assert [len(snapshot.tables[Table.LANES]) for snapshot in found] == read
    assert all(Table.PAIRS not in snapshot.tables for snapshot in found)
    sampler.close()
