"""One-way delay inside the NCCL plugin's ring beside that of probes: what is late, and what is not judged."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricpulse.audit.model import InBandDelay, Measurement, Ring
from fabricpulse.audit.node import ring_delays
from fabricpulse.audit.node.ring_delays import ClockCopy, least_delays, with_mesh
from fabricpulse.audit.node.wire import RingAnswer, RingDelay
from fabricpulse.audit.pair_tests.in_band import (
    DATAGRAMS,
    MESH,
    in_band_delays,
    in_band_findings,
    in_band_note,
)
from fabricpulse.core.shm.clock_page import (
    ClockLine,
    ClockPage,
    ClockPageReader,
    ClockPageWriter,
    ClockStatus,
    raw_now_ns,
)

HOSTS = ("h0", "h1")


def delay(least_us: float, **more: Any) -> RingDelay:
    known = {"chunks": 100, "rdma": True, "mesh_ns": 4000, "mesh_bound_ns": 500, **more}
    return RingDelay("e0", "e0", round(least_us * 1000), round(least_us * 2000), **known)


def found(
    to_h1: RingDelay,
    measured: tuple[Measurement, ...] = (),
    bound_ns: int | None = 500,
    bps: float = 4e11,
) -> list[InBandDelay]:
    """Of a ring of two hosts in which h0 has received nothing that was timed."""
    answers = {
        "h0": RingAnswer(bps, clock_bound_ns=500),
        "h1": RingAnswer(bps, delays=(to_h1,), clock_bound_ns=bound_ns),
    }
    return [*in_band_delays(HOSTS, answers, measured)]


def test_a_transport_that_goes_another_way_is_late() -> None:
    """94 us in the ring and 4 us of probes are late over queue pairs, and nothing is said of TCP, whose threads take as
    long; each way has its source and its target."""
    [one] = found(delay(94))
    assert (one.source_host, one.target_host, one.of, one.late) == ("h0", "h1", MESH, True)
    assert (one.least, one.probe) == pytest.approx((94e-6, 4e-6))
    assert [d.late for d in found(delay(94, rdma=False))] == [False]
    assert [d.late for d in found(delay(1000, rdma=False))] == [True]
    assert [d.late for d in found(delay(5))] == [False]


@pytest.mark.parametrize("gbit", [1, 10, 25, 40, 100])
@pytest.mark.parametrize("chunk", [1 << 15, 1 << 17, 1 << 20])
@pytest.mark.parametrize("rdma", [False, True])
def test_a_slow_link_is_no_other_way(gbit: int, chunk: int, rdma: bool) -> None:
    """A chunk takes as long as its bytes need, up to all of a step; the ring reaches nine tenths of the link, a test of
    the pair what it was asked for. What is late beyond that is late."""
    needs_us = 8 * chunk / gbit / 1e3
    step_us = 8 * (1 << 20) / gbit / 1e3
    own = delay(4 + needs_us, rdma=rdma)
    known = None if needs_us > (60 if rdma else 510) else False
    seen = Measurement("bandwidth", "rail0", "h0", "e0", "h1", "e0", 0.95e9 * gbit, True)
    assert [d.late for d in found(own, bps=0.9e9 * gbit)] == [known]
    assert [d.late for d in found(own, (seen,), bps=0)] == [known]
    far = delay(1000 + 2.2 * step_us, rdma=rdma)
    assert [d.late for d in found(far, (seen,), bps=0)] == [True]
    assert [d.late for d in found(far, bps=0.9e9 * gbit)] == [True]
    # A pair alone may be slow as it goes another way; a link that is slower than others explains it.
    back = Measurement("bandwidth", "rail0", "h1", "e0", "h0", "e0", 0.95e9 * gbit, True)
    for ok, late in ((None, True), (False, None)):
        slow = Measurement("bandwidth", "rail0", "h0", "e0", "h1", "e0", 1e8, ok)
        assert [d.late for d in found(far, (slow, back), bps=0)] == [late]
    # Both directions at once may share the pair's rate; of one that nobody knows nothing is said.
    [shared] = found(delay(4 + 2 * step_us, rdma=rdma), (seen,), bps=0)
    assert shared.late is not True
    assert [d.late for d in found(far, bps=0)] == [None]


def test_what_is_not_known_is_not_judged() -> None:
    """Few chunks, and a delay that only a wrong clock shows, decide nothing; without fleet time, or without a probe of
    the pair, there is nothing to compare."""
    assert [d.late for d in found(delay(94, chunks=3))] == [None]
    assert [d.late for d in found(delay(94, mesh_ns=-20_000))] == [None]
    assert found(delay(94), bound_ns=None) == []
    assert found(delay(94, mesh_ns=None)) == []
    owd = Measurement("owd", "rail0", "h0", "e0", "h1", "e0", 4e-6, True, bound=1e-6)
    assert [(d.of, d.late) for d in found(delay(94, mesh_ns=None), (owd,))] == [(DATAGRAMS, True)]


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6))
def test_bounds_are_in_its_favour(probe_ns: int, more_ns: int, bound_ns: int, mesh_bound_ns: int) -> None:
    """A way whose true delay is that of its probes is never late, wherever in their bounds both clocks are."""
    least_ns = max(0, probe_ns + bound_ns + 500 + mesh_bound_ns - more_ns % 1000)
    [one] = found(
        RingDelay("e0", "e0", least_ns, least_ns, 100, True, probe_ns, mesh_bound_ns), bound_ns=bound_ns
    )
    assert one.late is False


def ring(*late: bool | None) -> Ring:
    one = InBandDelay("h0", "e0", "h1", "e0", 9e-5, 2e-4, 4e-6, 1e-6, MESH, None)
    return Ring(
        "given", 1, HOSTS, 1e9, delays=tuple(msgspec.structs.replace(one, late=value) for value in late)
    )


def test_one_ring_proves_nothing() -> None:
    """A rank that had no processor is late once: all rings that judge a way must agree, and two must."""
    assert in_band_findings([ring(True)]) == []
    assert in_band_findings([ring(True), ring(None)]) == []
    assert in_band_findings([ring(True), ring(True), ring(False)]) == []
    [finding] = in_band_findings([ring(True), ring(True), ring(None)])
    assert (finding.check, finding.host, finding.subject, finding.evidence["target"]) == (
        "nccl-delay",
        "h0",
        "e0",
        "h1 e0",
    )
    assert "2 " not in finding.summary and finding.evidence["rings"] == "2"


def test_the_note_says_what_was_compared() -> None:
    """Nothing without a ring; the largest difference, or that nothing was."""
    assert in_band_note([Ring("given", 1, HOSTS, None)]) == []
    [none] = in_band_note([Ring("given", 1, HOSTS, 1e9)])
    assert "not compared" in none and "no fleet time" in none
    [unknown] = in_band_note([ring(None), ring(None)])
    assert "not compared" in unknown and "slow link" in unknown
    [some] = in_band_note([ring(False), ring(False)])
    assert "delay of 1 ways" in some and "h0 e0 to h1 e0" in some


def test_probes_of_the_mesh_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the edges to the host that the rank receives from; an exporter that says something else says nothing."""
    edge = {"device": "e0", "peer": "h0", "peer_device": "e0", "owd_ns": {"min": 4100, "error_bound": 700}}
    texts: dict[str, Any] = {
        "http://own:1/api/v1/edges": {
            "edges": [{**edge, "peer": "h7", "owd_ns": {"min": 1, "error_bound": 1}}, edge]
        },
        "http://odd:1/api/v1/edges": {
            "edges": [7, {"owd_ns": {"min": "4", "error_bound": None}, "peer": "h0"}, None]
        },
    }
    monkeypatch.setattr(ring_delays, "fetch", lambda url, **_: (200, json.dumps(texts[url]).encode()))
    bare = (RingDelay("e0", "e0", 90_000, 100_000, 7),)
    assert [(d.mesh_ns, d.mesh_bound_ns, d.chunks) for d in with_mesh(bare, "h0", "http://own:1/")] == [
        (4100, 700, 7)
    ]
    assert with_mesh(bare, "h1", "http://own:1") == bare
    assert with_mesh(bare, "h0", "http://odd:1") == bare
    assert with_mesh(bare, "h0", "") == bare

    for odd in (
        '{"edges": [' + "[" * 100_000,
        json.dumps({"edges": [{**edge, "owd_ns": {"min": 10**30, "error_bound": 0}}]}),
    ):
        monkeypatch.setattr(ring_delays, "fetch", lambda _, odd=odd, **__: (200, odd.encode()))
        assert with_mesh(bare, "h0", "http://own:1") == bare

    def refuses(_: str, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(ring_delays, "fetch", refuses)
    assert with_mesh(bare, "h0", "http://own:1") == bare


def test_the_clock_of_the_host_is_copied_as_long_as_it_holds(tmp_path: Path) -> None:
    """The rank's page says what the host's says, and nothing once that says nothing."""
    raw, own = raw_now_ns(), tmp_path / "own"
    own.mkdir()
    line, page = ClockLine(raw, 5 * 10**17, 0), ClockPageWriter(tmp_path / "clock")
    good = ClockPage(ClockStatus.SYNCHRONIZED, line, line, raw, 500, 0, raw + 10**12, line, line, raw, 0, 0)
    page.write(good)
    copy = ClockCopy(tmp_path / "clock", own)
    reader = ClockPageReader(own / "clock")
    assert reader.now().status is ClockStatus.SYNCHRONIZED
    assert copy.bound_ns == 500
    page.write(good._replace(status=ClockStatus.UNKNOWN))
    copy.renew()
    assert reader.now().status is ClockStatus.UNKNOWN
    assert copy.bound_ns is None
    copy.close()
    assert ClockCopy(tmp_path / "nosuch", own).bound_ns is None
    # No room for the copy: the ring goes on without a clock.
    without = ClockCopy(tmp_path / "clock", tmp_path / "nosuch")
    without.renew()
    assert without.bound_ns is None
    assert least_delays(tmp_path / "nosuch") == ()
