"""Queue pairs of jobs: what is taken from telemetry that anybody may write, what is traced, what is reported."""

import errno

import numpy as np
import pytest
from tests.fixtures.plugin.telemetry_file import TelemetryFile
from tests.fixtures.plugin.verbs_file import VerbsFile, gid

from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.diagnosis.wire.queue_pairs import MOST_QUEUE_PAIR_FLOWS, QueuePairFlow, QueuePairPath
from fabricpulse.mesh.config import Probe
from fabricpulse.mesh.fleet_view import FleetView
from fabricpulse.mesh.rdma_plane.hop_probe import ROCE_PORT, Found
from fabricpulse.mesh.rdma_plane.queue_pairs import (
    MOST_OF_A_USER,
    Carried,
    FleetNics,
    QueuePairSource,
    flows_of,
)
from fabricpulse.mesh.rdma_plane.reported_paths import RETRY_S, ReportedPaths
from fabricpulse.mesh.rdma_plane.tracing import QueuePairTracing
from fabricpulse.plugin_ipc.verbs import VerbsTable

HOSTS = tuple(
    Host(name=f"h{n}.example.com", nics=(Nic(device="rail0", address=f"10.0.0.{n}", network="rail0"),))
    for n in range(4)
)
VIEW = FleetView("h0.example.com", HOSTS[0].nics, (), 4)
MEMBERSHIP = Membership(HOSTS)
VERBS, SENDS = 2, 1


def flow(port, peer=1, traffic_class=0):
    return QueuePairFlow(
        "rail0", "10.0.0.0", f"h{peer}.example.com", "rail0", f"10.0.0.{peer}", port, traffic_class
    )


def test_lanes_of_the_plugin(tmp_path):
    """Lanes over queue pairs that send and are up, by the port that selects their path; of a peer by its short name."""
    file = TelemetryFile(tmp_path)
    lane = {"transport": VERBS, "direction": SENDS, "entropy": 0xC001, "queue_pair": 77 << 24 | 5}
    file.lane(0, 0, "h1", **lane)
    file.lane(1, 0, "h1", **{**lane, "queue_pair": 78 << 24})  # the same port
    file.lane(2, 0, "h2", **{**lane, "direction": 2})
    file.lane(3, 0, "h2", **{**lane, "transport": 1})
    assert QueuePairSource(tmp_path).flows(VIEW, MEMBERSHIP) == {flow(0xC001): Carried([77, 78], ["train-7"])}


@pytest.mark.parametrize(
    "wrong",
    [
        {"entropy": 9620},  # no port of RoCE v2
        {"entropy": 0x1C001},
        {"state": 5},  # down
        {"peer": b"stranger"},
        {"peer": b"h0"},  # this host
        {"peer_device": b"rail7"},
        {"device": 1},  # rail1 takes no part in the mesh
    ],
)
def test_no_packet_is_made_that_is_none_of_a_job(tmp_path, wrong):
    file = TelemetryFile(tmp_path)
    fields = {"transport": VERBS, "direction": SENDS, "entropy": 0xC001}
    file.lane(0, 0, "h1", **fields)
    assert QueuePairSource(tmp_path).flows(VIEW, MEMBERSHIP)
    file.put(2, 0, **wrong)
    assert not QueuePairSource(tmp_path).flows(VIEW, MEMBERSHIP)


def test_queue_pairs_of_other_programs(tmp_path):
    """By the addresses in their GIDs; those that are connected and have sent."""
    file = VerbsFile(tmp_path)
    file.queue_pair(0, "10.0.0.2")
    pair = {
        "qp_state": 3,
        "source_port": 0xC0DE,
        "traffic_class": 106,
        "last_post_raw_ns": 5,
        "local_gid": gid("10.0.0.0"),
    }
    file.put(VerbsTable.QUEUE_PAIRS, 0, **pair)
    source = QueuePairSource(tmp_path)
    assert source.flows(VIEW, MEMBERSHIP) == {flow(0xC0DE, 2, 106): Carried([100], ["train-7"])}
    for wrong in (
        {"source_port": 0},
        {"source_port": 9620},
        {"qp_state": 6},
        {"type": 4},
        {"last_post_raw_ns": 0},
        {"peer_gid": gid("10.9.9.9")},
        {"peer_gid": gid("10.0.0.0")},
        {"netdev": b"ctl"},
        {"local_gid": gid("10.0.0.3")},  # of another host
        {"local_gid": gid("10.7.0.0")},  # of no NIC
    ):
        file.queue_pair(0, "10.0.0.2")
        file.put(VerbsTable.QUEUE_PAIRS, 0, **{**pair, **wrong})
        assert not source.flows(VIEW, MEMBERSHIP), wrong
    file.end()


class Written:
    """A snapshot of the interposer with queue pairs from `count` source ports."""

    def __init__(self, tmp_path, owner, first, count):
        folder = tmp_path / f"of-{owner}"
        folder.mkdir()
        file = VerbsFile(folder)
        file.queue_pair(0, "10.0.0.1")
        file.put(VerbsTable.QUEUE_PAIRS, 0, qp_state=3, source_port=0xC000, last_post_raw_ns=1)
        file.put(VerbsTable.QUEUE_PAIRS, 0, local_gid=gid("10.0.0.0"))
        self.queue_pairs = file.tables[VerbsTable.QUEUE_PAIRS][:1].repeat(count)
        self.queue_pairs["source_port"] += np.arange(first, first + count, dtype=np.uint16)
        self.owner, self.workload = owner, f"of-{owner}"
        file.end()


def test_a_user_cannot_take_all_that_is_traced(tmp_path):
    """Thousands of made-up queue pairs of two users; the few of a third are all there, and all is bounded."""
    fleet = FleetNics(VIEW, MEMBERSHIP)
    few = Written(tmp_path, 3, 0, 20)
    found = flows_of([], [Written(tmp_path, 1, 100, 4000), Written(tmp_path, 2, 5000, 4000), few], fleet)
    assert len(found) == MOST_QUEUE_PAIR_FLOWS
    by_user = [sum(f"of-{user}" in carried.workloads for carried in found.values()) for user in (1, 2, 3)]
    assert by_user[2] == 20
    assert max(by_user) <= MOST_OF_A_USER


class Fabric:
    """Answers traces: the peers of `lengths` are so many switches away; 4791 by source port."""

    def __init__(self, lengths):
        self.lengths, self.asked, self.held = lengths, [], set()

    def __call__(self, ways):
        self.asked += ways
        return [self.answer(way) for way in ways]

    def answer(self, way):
        if way.port in self.held:
            return Found((), errno.EADDRINUSE)
        names = ("leaf", f"spine{way.port % 2}", "far")[: min(way.hops, self.lengths.get(way.far, 0))]
        return Found(names, 0, way.hops)


def tracing_of(fabric, *flows):
    tracing = QueuePairTracing(Probe(), lambda: (VIEW, None), fabric)
    tracing.follow({one: Carried([1], ["train-7"]) for one in flows})
    return tracing


def test_no_datagram_to_the_rdma_port_leaves_the_last_switch():
    """How far the peer is shows a trace to the probe port; where that is not known none is sent to the other."""
    fabric = Fabric({"10.0.0.1": 3, "10.0.0.2": 1})
    tracing = tracing_of(fabric, flow(0xC001), flow(0xC002), flow(0xC003, 2), flow(0xC004, 3))
    for second in range(20):
        tracing.step(float(second))
    assert tracing.known == {
        flow(0xC001): ("leaf", "spine1", "far"),
        flow(0xC002): ("leaf", "spine0", "far"),
        flow(0xC003, 2): ("leaf",),
    }
    limits = {(way.far, way.hops) for way in fabric.asked if way.to == ROCE_PORT}
    assert limits == {("10.0.0.1", 3), ("10.0.0.2", 1)}
    assert {way.port for way in fabric.asked if way.to != ROCE_PORT} == {0}
    assert {way.to for way in fabric.asked} == {ROCE_PORT, Probe().port}
    # Four flows, of which one is tried three times.
    assert len([way for way in fabric.asked if way.to == ROCE_PORT]) == 3
    assert tracing.packets == sum(way.hops for way in fabric.asked)


def test_a_port_that_a_socket_has_is_left_to_it():
    """It is tried some times and named; the others are traced meanwhile, and it is when it is free and due again."""
    fabric = Fabric({"10.0.0.1": 2})
    fabric.held = {0xC001}
    tracing = tracing_of(fabric, flow(0xC001), flow(0xC002))
    for second in range(30):
        tracing.step(float(second))
    assert [(one["source_port"], one["error"]) for one in tracing.document()] == [
        (0xC001, "EADDRINUSE"),
        (0xC002, None),
    ]
    assert tracing.counts() == {"known": 1, "failed": 1, "unknown": 0}
    assert sum(way.port == 0xC001 for way in fabric.asked) == 3
    fabric.held = set()
    for second in range(30, 1300):
        tracing.step(float(second))
    assert tracing.counts() == {"known": 2, "failed": 0, "unknown": 0}


def test_what_stays_is_not_traced_again_when_a_job_comes_or_goes():
    fabric = Fabric({"10.0.0.1": 2})
    tracing = tracing_of(fabric, flow(0xC001), flow(0xC002))
    for second in range(5):
        tracing.step(float(second))
    tracing.follow({flow(0xC002): Carried([1], []), flow(0xC003): Carried([2], [])})
    for second in range(5, 10):
        tracing.step(float(second))
    assert sorted(way.port for way in fabric.asked if way.port) == [0xC001, 0xC002, 0xC003]
    assert set(tracing.known) == {flow(0xC002), flow(0xC003)}
    assert {path.port: path.numbers for path in tracing.paths().values()} == {0xC002: (1,), 0xC003: (2,)}


def test_the_coordinator_gets_what_changes_and_what_is_no_more():
    path = QueuePairPath("rail0", "h1", "rail0", 0xC001, (1,), ("train-7",), ("leaf", "spine"))
    other = QueuePairPath("rail0", "h1", "rail0", 0xC002, (2,), ("train-7",), ("leaf", "spine"))
    moved = QueuePairPath("rail0", "h1", "rail0", 0xC001, (1,), ("train-7",), ("leaf", "spine2"))
    known = {one.key: one for one in (path, other)}
    reported = ReportedPaths()
    assert reported.due(known, 0.0) == (path, other)
    reported.taken((path, other), (), 0.0)
    assert reported.due(known, 1000.0) == ()
    gone = QueuePairPath("rail0", "h1", "rail0", 0xC002, (), ("train-7",), ("leaf", "spine"))
    assert reported.due({moved.key: moved}, 0.0) == (gone, moved)
    reported.taken((gone, moved), (), 0.0)
    assert reported.due({moved.key: moved}, 1000.0) == ()
    reported.clear()
    assert reported.due({moved.key: moved}, 1000.0) == (moved,)


def test_what_the_coordinator_has_no_room_for_is_sent_again():
    """After a minute, again and again; not with each report. What else is new does not wait for it."""
    paths = tuple(
        QueuePairPath("rail0", "h1", "rail0", 0xC000 + n, (1,), ("train-7",), ("leaf",)) for n in range(3)
    )
    known = {one.key: one for one in paths}
    reported = ReportedPaths()
    reported.taken(paths[:2], (1, 7), 10.0)
    assert reported.due(known, 11.0) == paths[2:]
    reported.taken(paths[2:], (), 11.0)
    for minute in range(3):
        tried_s = 10.0 + minute * RETRY_S
        assert reported.due(known, tried_s + RETRY_S - 1.0) == ()
        assert reported.due(known, tried_s + RETRY_S) == paths[1:2]
        reported.taken(paths[1:2], (0,), tried_s + RETRY_S)
    reported.due(known, 1000.0)
    reported.taken(paths[1:2], (), 1000.0)
    assert reported.due(known, 2000.0) == ()


def test_without_rdma_devices_nothing_is_read(tmp_path, monkeypatch):
    """A TCP job's telemetry costs a host without RDMA devices no work."""
    from fabricpulse.mesh.rdma_plane import tracing as module

    monkeypatch.setattr(module, "_RDMA_DEVICES", tmp_path / "none")
    monkeypatch.setenv("FABRICPULSE_RUN_DIR", str(tmp_path))
    (tmp_path / "plugin").mkdir()
    TelemetryFile(tmp_path / "plugin").lane(0, 0, "h1", transport=VERBS, direction=SENDS, entropy=0xC001)
    tracing = QueuePairTracing(Probe(), lambda: (VIEW, MEMBERSHIP))
    assert not tracing._poll()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "mlx5_0").touch()
    assert set(tracing._poll()) == {flow(0xC001)}
