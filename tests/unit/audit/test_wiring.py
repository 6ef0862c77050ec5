"""Where cables go: LLDP frames, and the plan."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.audit.compare.wiring import (
    LldpReports,
    Place,
    Wiring,
    is_at,
    planned_places,
    wiring_findings,
)
from fabricpulse.audit.fleet.plan import FleetOptions, plan_of, refuse
from fabricpulse.audit.host.lldp import Neighbour, parse
from fabricpulse.audit.model import Finding
from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.membership import Host, Membership, Nic
from fabricpulse.core.web.client_options import ClientOptions


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def frame(*tlvs: bytes) -> bytes:
    return bytes.fromhex("0180c200000e") + bytes(6) + b"\x88\xcc" + b"".join(tlvs) + b"\0\0"


CHASSIS, PORT, TTL = tlv(1, b"\x04\x02\0\0\0\0\x01"), tlv(2, b"\x05Ethernet7"), tlv(3, b"\0x")


def test_frames() -> None:
    """System name before chassis; a MAC address as one; the port by its identifier."""
    whole = frame(CHASSIS, PORT, TTL, tlv(4, b"gpu-001 eth1"), tlv(5, b"leaf-1.dc"))
    assert parse(whole) == Neighbour("leaf-1.dc", "Ethernet7", "gpu-001 eth1")
    assert parse(frame(CHASSIS, PORT, TTL)) == Neighbour("02:00:00:00:00:01", "Ethernet7")
    assert parse(frame(CHASSIS, tlv(2, b"\x03\x02\0\0\0\0\x09"), TTL)) == Neighbour(
        "02:00:00:00:00:01", "02:00:00:00:00:09"
    )


def test_what_is_no_frame_of_ours() -> None:
    """Cut off, another type, or without its identifiers: nothing is said."""
    whole = frame(CHASSIS, PORT, TTL)
    for broken in (
        b"",
        whole[:13],
        whole[:20],
        whole[:12] + b"\x08\0" + whole[14:],
        frame(CHASSIS),
        frame(PORT),
    ):
        assert parse(broken) is None


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    """Whoever sits on the cable writes what they like: names are short and printable, or nothing is said."""
    found = parse(bytes(12) + b"\x88\xcc" + data)
    if found is not None:
        for text in (found.switch, found.port, found.description):
            assert len(text) <= 128
            assert text.isprintable()


PLAN = {
    ("h0", "eth1"): Place("leaf-1", "p0"),
    ("h1", "eth1"): Place("leaf-1", "p1"),
    ("h1", "eth2"): Place("leaf-2"),
}


def reported(
    neighbours: dict[tuple[str, str], Neighbour], reasons: dict[tuple[str, str], str] | None = None
) -> list[Finding]:
    return wiring_findings(PLAN, LldpReports(neighbours, reasons or {}))


RIGHT = {
    ("h0", "eth1"): Neighbour("LEAF-1.dc.example", "p0"),
    ("h1", "eth1"): Neighbour("leaf-1", "Ethernet1", "p1"),
    ("h1", "eth2"): Neighbour("leaf-2", "whatever"),
}


def test_as_planned() -> None:
    """Names short or qualified; the port by identifier or description; any port where the plan has none."""
    assert reported(RIGHT) == []


def test_swapped_cables_name_both() -> None:
    """Each of the two, with the other; nobody else."""
    swapped = RIGHT | {("h0", "eth1"): Neighbour("leaf-1", "p1"), ("h1", "eth1"): Neighbour("leaf-1", "p0")}
    found = reported(swapped)
    assert [(f.check, f.host, f.subject) for f in found] == [
        ("wiring", "h0", "eth1"),
        ("wiring", "h1", "eth1"),
    ]
    assert "swapped with h1 eth1" in found[0].summary
    assert "swapped with h0 eth1" in found[1].summary


@pytest.mark.parametrize(
    ("planned", "seen", "same"),
    [
        ("leaf-1", "leaf-1.pod1.dc", True),
        ("leaf-1.pod1", "LEAF-1.pod1.dc.", True),
        ("leaf-1.pod1.dc", "leaf-1", True),
        ("leaf-1.pod1", "leaf-1.pod2", False),
        ("leaf-1.pod", "leaf-1.pod2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10", "10.0.0.1", False),
    ],
)
def test_names_of_switches(planned: str, seen: str, same: bool) -> None:
    """One may be the beginning of the other up to a dot; what follows tells them apart, and an address is no name."""
    assert is_at(Place(planned), Neighbour(seen, "p0")) is same


def test_swapped_cables_between_switches_of_one_short_name() -> None:
    """Planned by qualified names both are named; by a short name that two switches have nothing is known."""
    nics = ("h0", "eth1"), ("h1", "eth1")
    seen = dict(zip(nics, (Neighbour("leaf-1.b", "p"), Neighbour("leaf-1.a", "p")), strict=True))
    plan = dict(zip(nics, (Place("leaf-1.a", "p"), Place("leaf-1.b", "p")), strict=True))
    swapped = wiring_findings(plan, LldpReports(seen, {}))
    assert [(f.check, f.evidence["place_of"]) for f in swapped] == [
        ("wiring", "h1 eth1"),
        ("wiring", "h0 eth1"),
    ]
    unknown = wiring_findings(dict.fromkeys(nics, Place("leaf-1", "p")), LldpReports(seen, {}))
    assert {(f.check, f.host) for f in unknown} == {("wiring-unknown", "h0"), ("wiring-unknown", "h1")}


def test_a_cable_in_another_switch() -> None:
    """What is planned, and what is there."""
    [found] = reported(RIGHT | {("h1", "eth2"): Neighbour("leaf-9", "p3")})
    assert (found.host, found.subject, found.severity) == ("h1", "eth2", "error")
    assert found.summary == "hangs on leaf-9 p3, planned is leaf-2"


def test_silence_is_unknown() -> None:
    """No frame, and no right to listen, are reported as such and never pass."""
    found = reported({("h0", "eth1"): RIGHT["h0", "eth1"]}, {("h1", "eth2"): "the agent lacks CAP_NET_RAW"})
    assert [(f.check, f.host, f.subject) for f in found] == [
        ("wiring-unknown", "h1", "eth1"),
        ("wiring-unknown", "h1", "eth2"),
    ]
    assert "no LLDP frame" in found[0].summary
    assert "CAP_NET_RAW" in found[1].summary


def test_the_file_before_the_membership() -> None:
    """`leaf` of the membership where the file says nothing; hosts by either name."""
    nics = (
        Nic("eth1", "10.0.0.1", "rail0", "leaf-a"),
        Nic("eth2", "10.0.1.1", "rail1", "leaf-b"),
        Nic("eth3", "10.0.2.1", "rail2"),
    )
    fleet = Membership((Host("h0.example", nics),))
    wiring = Wiring({"h0": {"eth1": Place("leaf-z", "p1")}})
    assert planned_places(wiring, fleet) == {
        ("h0.example", "eth1"): Place("leaf-z", "p1"),
        ("h0.example", "eth2"): Place("leaf-b"),
    }


def test_a_plan_of_another_fleet_is_refused_and_a_silent_host_is_none(tmp_path: Path) -> None:
    """Before hosts are asked; that a host of the plan does not answer is its finding, not an error of the plan."""
    file = tmp_path / "wiring.yaml"
    fleet = Membership((Host("h0", (Nic("eth1", "10.0.0.1", "rail0"),)),))
    no = (None, None, "h0", "", ClientOptions(), None, 1, None, False, False, None)
    options = FleetOptions(*no, wiring_file=file)
    file.write_text("wiring: {h7: {eth1: {switch: leaf-1}}}")
    with pytest.raises(UserError, match="none of its hosts is one of this run's, h7 for instance"):
        refuse(options, fleet, None)
    file.write_text("wiring: {h0: {eth1: {switch: leaf-1}}}")
    refuse(options, fleet, None)
    assert plan_of(options, fleet, {}, (), (), ()).places == {}
    file.write_text("wiring: {}")
    with pytest.raises(UserError, match="no NIC has a plan"):
        refuse(options, fleet, None)
