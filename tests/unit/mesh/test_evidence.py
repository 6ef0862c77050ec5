"""What a host reports of its flows: only those that suffer, and how little a healthy host costs."""

from functools import partial

import msgspec
import pytest
from tests.unit.mesh.synthetic import view_and_snapshot

from fabricpulse.diagnosis.wire.messages import PROTOCOL, EvidenceReport, FlowEvidence, pack_flows
from fabricpulse.mesh import evidence
from fabricpulse.mesh.config import Evidence, MembershipSource, MeshConfig
from fabricpulse.mesh.evidence import EvidenceWindow, Rates, connections, url_of
from fabricpulse.mesh.link_count import carrier_losses
from fabricpulse.mesh.snapshot import PATH_FIELDS, HealthState


def changed(snapshot, edge, port=None, expected=0, lost=0, latency=None, **fields):
    """The snapshot with one edge changed; of one port more is expected and lost."""
    edges = list(snapshot.edges)
    raw = list(edges[edge].raw_paths)
    if port is not None:
        raw[PATH_FIELDS * port] += expected
        raw[PATH_FIELDS * port + 1] += lost
        if latency is not None:
            raw[PATH_FIELDS * port + 4] = int(latency)
        fields = {"lost": edges[edge].lost + lost, **fields}
    edges[edge] = edges[edge]._replace(raw_paths=tuple(raw), **fields)
    return snapshot._replace(edges=edges)


@pytest.fixture
def window():
    """Two seconds after a report was taken, nothing has happened."""
    made = EvidenceWindow(Rates(135.0, 2.0))
    made.taken(view_and_snapshot()[1], 100.0)
    return made


def test_healthy_flows_are_not_reported(window):
    """Packets come, none is lost: nothing to report, and the report of a host with 8 NICs takes under 100 bytes."""
    snapshot = changed(view_and_snapshot()[1], 0, 0, expected=270)

    assert window.since_taken(snapshot, 102.0) == ([], False)
    report = EvidenceReport(PROTOCOL, "gpu-0001.example.com", 3, 8, 135.0, 2.14, b"")
    assert len(msgspec.msgpack.encode(report)) < 100


def test_lost_packets_are_reported_with_their_port(window):
    """Loss since the last report that was taken, once."""
    snapshot = changed(view_and_snapshot()[1], 4, 3, expected=12, lost=2)

    assert window.since_taken(snapshot, 102.0) == ([FlowEvidence(4, 3, False, 12, 2)], False)
    window.taken(snapshot, 102.0)
    assert window.since_taken(snapshot, 103.0) == ([], False)


def test_a_silent_peer_loses_on_every_port(window):
    """Nothing comes and no numbering shows it: as much as it would have sent since, at most since it was last seen."""
    snapshot = changed(
        view_and_snapshot()[1], 1, inbound=HealthState.DOWN, received_age_ns=1_500_000_000, lost=999
    )
    flows, stalled = window.since_taken(snapshot, 102.0)

    assert not stalled
    assert flows == [FlowEvidence(1, 0, False, 202, 202)] + [
        FlowEvidence(1, p, False, 3, 3) for p in range(1, 8)
    ]


def test_slow_ports_are_reported(window):
    """A port whose delay is elevated is evidence without any loss."""
    snapshot = changed(view_and_snapshot()[1], 2, 5, expected=6, latency=HealthState.DOWN, degraded_host_ns=1)

    assert window.since_taken(snapshot, 102.0)[0] == [FlowEvidence(2, 5, True, 6, 0)]


def test_a_stalled_host_says_so(window):
    """What was missed while this host was stalled, or its receive buffer full, proves nothing."""
    snapshot = view_and_snapshot()[1]
    assert window.since_taken(snapshot._replace(stalls=snapshot.stalls + 1), 102.0)[1]
    nics = [nic._replace(overflows=nic.overflows + 1) for nic in snapshot.nics]
    assert window.since_taken(snapshot._replace(nics=nics), 102.0)[1]


def test_another_membership_begins_anew(window):
    """Counters of other edges are not compared."""
    snapshot = changed(view_and_snapshot()[1], 0, 0, expected=9, lost=9)._replace(generation=2)

    assert window.since_taken(snapshot, 102.0) == ([], False)


def test_where_it_goes():
    """The coordinator that is named, else the one that the membership comes from, else nowhere."""
    source = MembershipSource(url="https://monitor:9614/api/v1/membership")
    assert url_of(MeshConfig(membership=source)) == "https://monitor:9614"
    assert url_of(MeshConfig(membership=source, evidence=Evidence(url="http://c:1/"))) == "http://c:1"
    assert url_of(MeshConfig(membership=MembershipSource(file="x"))) == ""


def test_counts_that_do_not_fit_are_cut():
    """A flow of a century is reported as 2^32 - 1 packets."""
    assert pack_flows([FlowEvidence(0, 0, False, 1 << 40, 1 << 40)])[4:] == b"\xff" * 8


def test_a_flow_that_drops_large_packets_is_reported(window):
    """Nothing is lost of the trains; the flow is reported with each report while it lasts."""
    before = view_and_snapshot()[1]
    raw = list(before.edges[2].raw_paths)
    raw[PATH_FIELDS * 3 + 6] = 1
    edges = list(before.edges)
    edges[2] = edges[2]._replace(raw_paths=tuple(raw), degraded_host_ns=1, black_hole_bytes=4200)
    snapshot = before._replace(edges=edges)

    assert window.since_taken(snapshot, 102.0) == ([FlowEvidence(2, 3, False, 0, 0, cut=True)], False)


def test_an_outage_that_no_probe_has_seen_is_reported(tmp_path, monkeypatch):
    """The cable of a NIC may have gone elsewhere while its host stalled, so that no disconnect was counted: the kernel
    has counted a lost carrier. Where it counts none, as of a device without a carrier, nothing is reported.
    """
    view, snapshot = view_and_snapshot(nics=2)
    first, second = (nic.device for nic in view.nics)
    for device in (first, second):
        (tmp_path / device).mkdir()
    count = tmp_path / first / "carrier_down_count"
    count.write_text("4\n")
    monkeypatch.setattr(evidence, "carrier_losses", partial(carrier_losses, root=tmp_path))
    before = connections(view, snapshot)
    assert before == {first: (0, 4), second: (1, -1)}
    assert connections(view, snapshot) == before
    count.write_text("5\n")
    assert connections(view, snapshot) == {first: (0, 5), second: (1, -1)}
    nics = [snapshot.nics[0], snapshot.nics[1]._replace(link=False)]
    assert connections(view, snapshot._replace(nics=nics)) == {first: (0, 5), second: (-1, -1)}
