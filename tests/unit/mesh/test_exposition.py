"""/metrics of the mesh exporter: golden file, promtool, number of series, speed."""

import dataclasses
import math
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.mesh.synthetic import edge_state, nic_state, pack_snapshot, view_and_snapshot

from fabricpulse.core.alerting.pusher import PushCounters
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.mesh.exposition import Counters, MeshExposition, recent_delays
from fabricpulse.mesh.metrics import METRICS, PROBE_OWD, RECENT_OWD
from fabricpulse.mesh.recent_disconnects import RecentDisconnects
from fabricpulse.mesh.snapshot import (
    PATH_FIELDS,
    UNKNOWN_OWD,
    Cause,
    HealthState,
    parse_snapshot,
    worst_path,
)

GOLDEN = Path(__file__).parents[2] / "fixtures" / "mesh" / "metrics.txt"


def render(view, snapshot, cap=20_000):
    out = Exposition(cap)
    pushes = PushCounters()
    pushes.requests, pushes.refused, pushes.taken = 4, 1, True
    counters = Counters(
        realtime=True,
        membership_ok=True,
        membership_changed_s=1_700_000_000.5,
        pushes={"http://am:9093": pushes},
        member=True,
        path_traces=96,
        path_traces_unanswered=3,
        paths_known=31,
        temporary_peers=7,
        events={"nic_disconnected": 1, "nic_connected": 1},
    )
    counters.front_end.update(True, True, 1.0)
    disconnects = RecentDisconnects(-math.inf)
    disconnects.disconnected(("rail1", "rail1"), 5.0)
    exposition = MeshExposition(view, 9620, disconnects=disconnects)
    none = [
        nic._replace(owd=nic.owd._replace(counts=(0,) * len(nic.owd.counts))) for nic in snapshot.nics
    ]  # a scrape before, for what has come since
    exposition.write(Exposition(), pack_snapshot(snapshot._replace(nics=none)), counters, 0.0)
    exposition.write(out, pack_snapshot(snapshot), counters, 15.0)
    return out.render()


def impaired():
    """Two NICs, one disconnected; an edge unknown, one elevated, one with a dead path."""
    view, snapshot = view_and_snapshot()
    snapshot.nics[1] = nic_state(1, HealthState.DOWN, Cause.LINK)
    snapshot.edges[0] = edge_state(0, 0, HealthState.UNKNOWN, latency=HealthState.UNKNOWN)._replace(
        window_count=0
    )
    snapshot.edges[1] = edge_state(1, 0, latency=HealthState.DOWN)
    raw = list(snapshot.edges[2].raw_paths)
    raw[PATH_FIELDS * 5 + 3] = HealthState.DOWN
    raw[PATH_FIELDS * 4 + 5 : PATH_FIELDS * 5] = 1, 1, 4_000
    snapshot.edges[2] = snapshot.edges[2]._replace(raw_paths=tuple(raw), black_hole_bytes=4200)
    for index in (3, 4, 5):
        snapshot.edges[index] = edge_state(index, 1, HealthState.DOWN)
    return view, snapshot


def test_golden():
    """The whole text, byte for byte. `FABRICPULSE_UPDATE_GOLDEN=1` writes it anew."""
    text = render(*impaired()).decode()
    if os.environ.get("FABRICPULSE_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_leaf_of_a_nic_is_a_label():
    """Alerts on NICs take it from here, so that the one on a dead leaf mutes them; empty where it is not known."""
    view, snapshot = impaired()
    nics = (msgspec.structs.replace(view.nics[0], leaf="leaf-7"), view.nics[1])
    text = render(replace(view, nics=nics), snapshot).decode()
    for family in ("fabricpulse_nic_connected", "fabricpulse_nic_disconnects_total"):
        assert f'{family}{{device="rail0",network="rail0",leaf="leaf-7"}}' in text
        assert f'{family}{{device="rail1",network="rail1",leaf=""}}' in text


def test_promtool_finds_nothing(tools):
    """`promtool check metrics` is content with names, help texts and types."""
    result = subprocess.run(
        [tools.promtool, "check", "metrics"], input=render(*impaired()), capture_output=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_every_family_is_in_the_catalogue_and_parses():
    """A strict parser reads it; every metric of the catalogue occurs with its type."""
    families = {f.name: f for f in text_string_to_metric_families(render(*impaired()).decode())}
    for spec in METRICS:
        name = spec.name.removesuffix("_total")
        assert families[name].type == spec.type
        assert families[name].documentation == spec.help


def test_unknown_is_not_down():
    """What was not measured has no sample."""
    text = render(*impaired()).decode()
    unknown = 'device="rail0",peer="h1",peer_device="rail0"'
    for name in ("fabricpulse_edge_up", "fabricpulse_edge_inbound_up", "fabricpulse_edge_latency_elevated"):
        assert f"{name}{{{unknown}}}" not in text
    view, snapshot = view_and_snapshot()
    snapshot.nics[0] = nic_state(0, HealthState.UNKNOWN, Cause.PEER_GONE)
    text = render(view, snapshot).decode()
    assert 'fabricpulse_nic_connected{device="rail0"' not in text
    assert 'fabricpulse_nic_state{device="rail0",network="rail0",state="unknown"} 1' in text
    assert 'fabricpulse_nic_disconnects_total{device="rail0",network="rail0",leaf=""} 0' in text


def test_series_of_a_full_host():
    """8 NICs with 10 peers each: little more than 2,000 series."""
    lines = [line for line in render(*view_and_snapshot(8, 10)).splitlines() if not line.startswith(b"#")]
    assert len(lines) <= 2_110


def test_of_nics_that_are_well_only_the_recent_are_said_to_be_connected():
    """Rules read fabricpulse_nic_disconnected of each NIC that has it: of those that are well for long there is none,
    and of those of unknown health neither.
    """
    view, snapshot = view_and_snapshot(2, 1)
    disconnects = RecentDisconnects(0.0)
    disconnects.disconnected(("rail1", "rail1"), 1000.0)
    disconnects.connected(("rail1", "rail1"), 1100.0)
    exposition = MeshExposition(view, 9620, disconnects=disconnects)

    def text(now_s):
        out = Exposition()
        exposition.write(out, pack_snapshot(snapshot), Counters(), now_s)
        return [line for line in out.render().decode().splitlines() if line.startswith("fabricpulse_nic_")]

    zero = 'fabricpulse_nic_disconnected{device="rail1",network="rail1",leaf=""} 0'
    assert [line for line in text(1699.0) if "_disconnected{" in line] == [zero]
    assert not [line for line in text(1701.0) if "_disconnected{" in line]
    age = 'fabricpulse_nic_recent_disconnect_age_seconds{device="rail1",network="rail1",leaf="",nth="1"} 701'
    assert [line for line in text(1701.0) if "_age_" in line] == [age]
    snapshot.nics[1] = nic_state(1, HealthState.UNKNOWN, Cause.PEER_GONE)
    assert zero not in text(1699.0)


def test_the_cap_cuts_edges_before_nics():
    """A sample cap takes from what comes last and says so; NICs stay."""
    view, snapshot = view_and_snapshot(8, 10)
    text = render(view, snapshot, cap=700).decode()
    assert text.count("\nfabricpulse_nic_connected{") == 8
    assert 'fabricpulse_exporter_dropped_samples{family="fabricpulse_edge_owd_seconds"} 400' in text


def test_ten_thousand_series_are_quick():
    """A scrape of 10,000 series takes some milliseconds of a core (a benchmark has the gate, this is generous)."""
    view, snapshot = view_and_snapshot(8, 65)
    exposition = MeshExposition(view, 9620, "all")
    raw = pack_snapshot(snapshot)
    times = []
    for _ in range(5):
        start = time.thread_time()
        out = Exposition()
        exposition.write(out, raw, Counters(), time.monotonic())
        text = out.render()
        times.append(time.thread_time() - start)
    assert len(text.splitlines()) > 10_000
    assert min(times) < 0.06


@pytest.mark.parametrize("dead", [None, 3])
def test_worst_path(dead):
    """Best, median and worst of the source ports; a dead one is the worst, and unmeasured ones do not count."""
    view, snapshot = view_and_snapshot()
    edge = edge_state(0, 0, paths=6)
    raw = list(edge.raw_paths)
    raw[2] = UNKNOWN_OWD
    if dead is not None:
        raw[PATH_FIELDS * dead + 3] = HealthState.DOWN
    snapshot.edges[0] = edge._replace(raw_paths=tuple(raw))
    assert worst_path(snapshot.edges[0]) == (5 if dead is None else 3)
    text = render(view, snapshot).decode()
    labels = 'device="rail0",peer="h1",peer_device="rail0"'
    for path, seconds in (("best", "2.01e-06"), ("worst", "2.05e-06")):
        assert f'fabricpulse_edge_path_owd_seconds{{{labels},path="{path}"}} {seconds}\n' in text
    assert f"fabricpulse_edge_paths_down{{{labels}}} {0 if dead is None else 1}\n" in text


def test_a_dead_path_is_the_worst_without_fleet_time():
    """Which source port is dead is reported, by scrape and JSON alike, where no delay can be known."""
    view, snapshot = view_and_snapshot()
    edge = edge_state(0, 0, paths=6)
    raw = list(edge.raw_paths)
    for path in range(6):
        raw[PATH_FIELDS * path + 2] = UNKNOWN_OWD
    snapshot.edges[0] = edge._replace(raw_paths=tuple(raw))
    assert worst_path(snapshot.edges[0]) is None
    raw[PATH_FIELDS * 4 + 3] = HealthState.DOWN
    snapshot.edges[0] = edge._replace(raw_paths=tuple(raw))
    assert worst_path(snapshot.edges[0]) == 4
    text = render(view, snapshot).decode()
    labels = '{device="rail0",peer="h1",peer_device="rail0"}'
    assert f"fabricpulse_edge_worst_path_port{labels} 9624\n" in text


def test_lossy_and_slow_paths_are_degraded():
    """Share of the paths that suffer, the loss of the worst, its port; nothing of it while all are well."""
    view, snapshot = view_and_snapshot()
    assert b"_paths_degraded_ratio{" not in render(view, snapshot)
    assert b"_worst_path" not in b"".join(
        line for line in render(view, snapshot).splitlines(True) if not line.startswith(b"#")
    )
    edge = snapshot.edges[0]
    raw = list(edge.raw_paths)
    for path, ppm in ((2, 4_000), (4, 15_000)):
        raw[PATH_FIELDS * path + 5 : PATH_FIELDS * (path + 1)] = 1, 0, ppm
    raw[PATH_FIELDS * 6 + 4] = HealthState.DOWN
    snapshot.edges[0] = edge._replace(raw_paths=tuple(raw))
    assert worst_path(snapshot.edges[0]) == 4
    text = render(view, snapshot).decode()
    labels = '{device="rail0",peer="h1",peer_device="rail0"}'
    assert f"fabricpulse_edge_paths_degraded_ratio{labels} 0.375\n" in text
    assert f"fabricpulse_edge_worst_path_loss_ratio{labels} 0.015\n" in text
    assert f"fabricpulse_edge_worst_path_port{labels} 9624\n" in text


@pytest.mark.parametrize(
    ("per_edge", "hosts", "edges"),
    [("all", 900, 6), ("worst", 2, 3), ("none", 2, 0), ("auto", 64, 6), ("auto", 65, 3)],
)
def test_series_of_single_edges_on_request(per_edge, hosts, edges):
    """All, only those that suffer, none, or by the size of the fleet; what a NIC's edges sum up to is always there."""
    view, snapshot = view_and_snapshot()
    view = dataclasses.replace(view, members=hosts)
    raw = list(snapshot.edges[1].raw_paths)
    raw[PATH_FIELDS * 2 + 5] = 1
    snapshot.edges[1] = snapshot.edges[1]._replace(raw_paths=tuple(raw))
    snapshot.edges[3] = edge_state(3, 1, HealthState.DOWN)
    snapshot.edges[5] = edge_state(5, 1, latency=HealthState.DOWN)
    out = Exposition()
    MeshExposition(view, 9620, per_edge).write(out, pack_snapshot(snapshot), Counters(), 0.0)
    text = out.render().decode()
    assert text.count("\nfabricpulse_edge_up{") == edges
    # Of one that is slow and loses nothing no counts of packets, and of those without a dead path no count of paths:
    # rules would read them of each edge of a slow network.
    counted = edges - 1 if edges == 3 else edges
    for way in ("sent", "received", "lost"):
        assert text.count(f"\nfabricpulse_edge_probes_{way}_total{{") == counted
    assert text.count("\nfabricpulse_edge_paths_down{") == (edges if edges == 6 else 0)
    # Of one that is well its usual delay, with which that of a job's flow is compared.
    assert text.count("\nfabricpulse_edge_owd_baseline_seconds{") == (0 if per_edge == "none" else 6)
    assert ("fabricpulse_edge_evidence{" in text) == (per_edge != "none")
    assert 'fabricpulse_nic_edges{device="rail0",network="rail0",state="degraded"} 1\n' in text
    assert 'fabricpulse_nic_edges{device="rail1",network="rail1",state="down"} 1\n' in text


def test_few_slow_edges_of_a_nic_stand_for_all():
    """Of a NIC all of whose edges are slow three are exported, and as many of those with a slow source port;
    beside them each that loses packets.
    """
    view, snapshot = view_and_snapshot(nics=2, peers=8)
    slow_port, lossy_port = (list(snapshot.edges[0].raw_paths) for _ in range(2))
    slow_port[PATH_FIELDS + 4] = int(HealthState.DOWN)
    lossy_port[PATH_FIELDS + 5] = 1
    for index in range(8):
        snapshot.edges[index] = snapshot.edges[index]._replace(latency=HealthState.DOWN)
    snapshot.edges[7] = snapshot.edges[7]._replace(raw_paths=tuple(lossy_port))
    for index in range(8, 16):
        snapshot.edges[index] = snapshot.edges[index]._replace(raw_paths=tuple(slow_port))
    snapshot.edges[12] = snapshot.edges[12]._replace(latency=HealthState.DOWN)
    out = Exposition()
    MeshExposition(view, 9620, "worst").write(out, pack_snapshot(snapshot), Counters(), 0.0)
    exported = re.findall(
        r'^fabricpulse_edge_latency_elevated\{device="(.*)",peer="(.*)",peer_device=.*\} (.)$',
        out.render().decode(),
        re.M,
    )
    assert exported == [
        *(("rail0", peer, "1") for peer in ("h1", "h2", "h3", "h8")),
        *(("rail1", peer, "0") for peer in ("h1", "h2", "h3")),
        ("rail1", "h5", "1"),
    ]
    assert out.render().decode().count("\nfabricpulse_edge_owd_baseline_seconds{") == 16


def test_recent_delays_of_a_nic():
    """Quantiles of what came between two scrapes, also over a change of the membership; none without probes."""
    view, snapshot = view_and_snapshot()
    delays = recent_delays()

    def reported(now_s, counts, view=view):
        owd = snapshot.nics[0].owd._replace(counts=tuple(counts))
        nics = [snapshot.nics[0]._replace(owd=owd), *snapshot.nics[1:]]
        out = Exposition()
        exposition = MeshExposition(view, 9620, "none", delays)
        exposition.write(out, pack_snapshot(snapshot._replace(nics=nics)), Counters(), now_s)
        lines = [line.split() for line in out.render().decode().splitlines() if line[0] != "#"]
        return {name: float(value) for name, value in lines if name.startswith(RECENT_OWD.name + "{")}

    counts = [0] * (len(PROBE_OWD.buckets) + 1)
    counts[4] = 1000
    assert reported(0.0, counts) == {}
    counts[3] += 100
    low, high = PROBE_OWD.buckets[2:4]
    expected = {
        f'{RECENT_OWD.name}{{device="rail0",network="rail0",quantile="{q}"}}': pytest.approx(
            low + q * (high - low)
        )
        for q in (0.5, 0.99)
    }
    assert reported(30.0, counts, dataclasses.replace(view)) == expected
    for now_s in range(60, 330, 30):
        assert reported(now_s, counts) == expected
    assert reported(330.0, counts) == {}


def test_no_path_measured():
    """An edge without paths has no worst one."""
    assert worst_path(edge_state(0, 0, paths=0)) is None


def test_snapshot_round_trip():
    """A snapshot that the engine has packed is read as it was, with every fault in it."""
    _, snapshot = impaired()
    assert parse_snapshot(pack_snapshot(snapshot)) == snapshot


def test_a_snapshot_of_another_membership_is_refused():
    """A scrape between two memberships never gives one edge the numbers of another."""
    view, _ = view_and_snapshot(2, 3)
    _, other = view_and_snapshot(2, 4)
    with pytest.raises(ValueError, match="another configuration"):
        MeshExposition(view, 9620).write(Exposition(), pack_snapshot(other), Counters(), 0.0)


def test_summary_of_edges():
    """What decides whether a scrape looks at single edges: an edge or a path that is down; send errors by NIC."""
    view, snapshot = view_and_snapshot()
    text = MeshExposition(view, 9620, "all")._edge_text
    nics = len(snapshot.nics)
    fields = ("send_errors", "sent", "received", "lost", "outbound_lost")
    expected = [
        [3, 0, 0, 0, *(sum(getattr(e, name) for e in snapshot.edges if e.nic == nic) for name in fields)]
        for nic in range(nics)
    ]
    assert expected[0][4] > 0
    assert text.summarize(pack_snapshot(snapshot), nics) == (expected, False)

    well = snapshot.edges[2]
    raw = list(well.raw_paths)
    raw[PATH_FIELDS * 5 + 3] = HealthState.DOWN
    cases = (
        (well._replace(raw_paths=tuple(raw)), [3, 0, 0, 1], True),
        (well._replace(state=HealthState.DOWN), [2, 1, 0, 0], True),
        (well._replace(state=HealthState.UNKNOWN), [2, 0, 1, 0], False),
    )
    for edge, counts, impaired_now in cases:
        snapshot.edges[2] = edge
        summary, reported = text.summarize(pack_snapshot(snapshot), nics)
        assert (summary[0][:4], reported) == (counts, impaired_now)
        assert [nic[4:] for nic in summary] == [nic[4:] for nic in expected]
    with pytest.raises(ValueError, match="names a NIC"):
        text.summarize(pack_snapshot(snapshot), nics - 1)


def test_mtu_black_hole_is_reported_with_its_size_and_port():
    """The edge has a series only while it drops large packets; the port that does is the worst one, and degraded."""
    view, snapshot = view_and_snapshot(1, 1)
    assert b"\nfabricpulse_edge_mtu_black_hole_bytes{" not in render(view, snapshot)
    edge = snapshot.edges[0]
    raw = list(edge.raw_paths)
    raw[PATH_FIELDS * 2 + 6] = 1
    snapshot.edges[0] = edge._replace(raw_paths=tuple(raw), black_hole_bytes=4200)
    text = render(view, snapshot).decode()
    labels = '{device="rail0",peer="h1",peer_device="rail0"}'
    assert worst_path(snapshot.edges[0]) == 2
    assert f"fabricpulse_edge_mtu_black_hole_bytes{labels} 4200\n" in text
    assert f"fabricpulse_edge_worst_path_port{labels} 9622\n" in text
    assert f"fabricpulse_edge_paths_degraded_ratio{labels} 0.125\n" in text
