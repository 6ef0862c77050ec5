"""The edges of a host: who fits which, and what is kept of those that the other end fits."""

import ctypes
import mmap
import platform
import threading
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.integration.clocksync.synthetic_fleet import RingWriter

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, SampleReader, Samples
from fabricpulse.clocksync.sidecar import host_edges
from fabricpulse.clocksync.sidecar.host_edges import HostEdges
from fabricpulse.clocksync.wire.messages import EdgeResidual
from fabricpulse.core._atomic import wait_changed
from fabricpulse.core.shm.mapping import create_mapping
from fabricpulse.core.shm.probe_ring import EDGE, EDGES_SEQUENCE_OFFSET, HEADER, INBOUND, OUTBOUND

NS = 10**9
FUTEX = {"x86_64": 202}.get(platform.machine(), 98)  # its number as a system call
T0 = 1_700_000_000 * NS
PEERS = [f"h{k}" for k in range(1, 7)]


class Probes:
    """A ring with six edges whose peers' clocks are 300 ns ahead."""

    def __init__(self, path: Path) -> None:
        self.ring = RingWriter(path, "h0", [("rail0", peer, "rail0") for peer in PEERS])

    def write(self, begin_s: float, end_s: float) -> int:
        """50 trains a second each way on every edge; returns the host's clock at the end."""
        for k in range(round((end_s - begin_s) * 50)):
            at = T0 + round((begin_s + k / 50) * NS)
            for edge in range(len(PEERS)):
                tx = [at + p * 20_000 for p in range(3)]
                self.ring.write(edge, k, OUTBOUND, tx, [t + 1_800 + (k + p) % 7 for p, t in enumerate(tx)])
                back = [t + 300 for t in tx]
                self.ring.write(edge, k, INBOUND, back, [t + 1_500 + k % 5 for t in tx])
        return T0 + round(end_s * NS)


@pytest.fixture
def probes(tmp_path: Path) -> Probes:
    return Probes(tmp_path / "probes")


def test_half_of_the_edges_are_left_to_their_other_ends(probes: Probes, tmp_path: Path) -> None:
    """Only ours are reported, all when all are wanted, at once, with the offset that is there."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    edges.read()
    ours = {number for number, edge in enumerate(edges) if edge.ours}
    assert 0 < len(ours) < len(PEERS)
    now = probes.write(0, 4)
    edges.read()
    edges.fit(now, 4 * NS, everything=False)
    assert {report.edge for report in edges.reports()} == ours
    edges.fit(now, 4 * NS, everything=True)
    reports = edges.reports()
    assert {report.edge for report in reports} == set(range(len(PEERS)))
    assert all(abs(report.offset_ns - 300) < 10 for report in reports)


def test_a_window_that_is_not_fitted_does_not_grow(probes: Probes, tmp_path: Path) -> None:
    """Minutes of trains of somebody else's edges: only the last seconds are kept, and they are enough at once."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    for second in range(40):
        now = probes.write(second, second + 1)
        edges.read()
        edges.fit(now, 4 * NS, everything=False)
    for edge in edges:
        if not edge.ours:
            window = edge.window
            kept = sum(len(trains) for trains in window._kept.values())
            new = sum(len(block) for block in window._new) // SAMPLE_DTYPE.itemsize
            assert 2 * 4 * 50 <= kept + new <= 2 * 8 * 50
    edges.fit(now, 4 * NS, everything=True)
    assert len(edges.fits()) == len(PEERS)


def test_residuals_find_their_edges_and_one_too_many_is_ignored(probes: Probes, tmp_path: Path) -> None:
    """The coordinator may still speak of an edge that has just gone."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    edges.read()
    edges.take_residuals([EdgeResidual(-5, 2, fits=True), EdgeResidual(9, 60, fits=False)])
    assert [edge.residual.residual_ns if edge.residual else None for edge in edges][:4] == [
        None,
        None,
        -5,
        None,
    ]


def test_no_engine_is_no_error(tmp_path: Path) -> None:
    """The sidecar may start first; the edges come when the ring does."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    edges.read()
    assert not edges.engine_seen
    assert len(edges) == 0
    Probes(tmp_path / "probes")
    edges.read()
    assert edges.engine_seen
    assert len(edges) == len(PEERS)
    assert edges.host == "h0"


def test_samples_written_before_a_clock_step_are_dropped(probes: Probes, tmp_path: Path) -> None:
    """Also not what the engine has written since its ring was last read."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    edges.read()
    probes.write(0, 2)
    edges.read()
    now = probes.write(2, 3)
    edges.clear()
    edges.read()
    edges.fit(now, 4 * NS, everything=True)
    assert edges.fits() == []
    now = probes.write(3, 4)
    edges.read()
    edges.fit(now, 4 * NS, everything=True)
    assert len(edges.fits()) == len(PEERS)
    assert all(fit.window_s < 1.1 for fit in edges.fits())


@pytest.mark.usefixtures("probes")
def test_the_name_that_the_mesh_has_for_the_host_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others measure their edges to that name; settings that say another are named, and used until there is a ring."""
    edges = HostEdges(tmp_path / "none", EstimatorParameters(), "h9")
    edges.read()
    assert edges.host == "h9"
    edges = HostEdges(tmp_path / "probes", EstimatorParameters(), "h9")
    edges.read()
    edges.read()
    assert edges.host == "h0"
    unnamed = HostEdges(tmp_path / "probes", EstimatorParameters())
    unnamed.read()
    assert [edge.ours for edge in edges] == [edge.ours for edge in unnamed]
    assert caplog.text.count("remove host from the sidecar's settings") == 1


def put_in_place(probes: Probes, index: int, peer: str) -> None:
    """As the engine: another edge takes the place `index` in the other table, which comes into force."""
    file = probes.ring.map
    sequence = int.from_bytes(file[EDGES_SEQUENCE_OFFSET : EDGES_SEQUENCE_OFFSET + 8], "little")
    size = len(PEERS) * EDGE.size
    old, new = (HEADER.size + (number & 1) * size for number in (sequence, sequence + 1))
    file[new : new + size] = file[old : old + size]
    EDGE.pack_into(
        file, new + index * EDGE.size, 1, 2, *(t.encode() for t in ("rail0", "", peer, "rail0", ""))
    )
    file[EDGES_SEQUENCE_OFFSET : EDGES_SEQUENCE_OFFSET + 8] = (sequence + 1).to_bytes(8, "little")


def test_an_engine_that_died_in_a_change_leaves_edges_that_can_be_read(
    probes: Probes, tmp_path: Path
) -> None:
    """It had begun to write the table that is not in force."""
    for _ in range(3):
        put_in_place(probes, 2, "h9")
        sequence = probes.ring.map[EDGES_SEQUENCE_OFFSET]
        spoilt = HEADER.size + (~sequence & 1) * len(PEERS) * EDGE.size
        probes.ring.map[spoilt : spoilt + EDGE.size] = b"\xff" * EDGE.size
        edges = HostEdges(tmp_path / "probes", EstimatorParameters())
        edges.read()
        assert edges.refused == ""
        assert [edge.name.peer for edge in edges] == ["h1", "h2", "h9", "h4", "h5", "h6"]


def test_samples_of_an_edge_whose_place_another_takes_are_not_the_other_s(
    probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table changes while samples are read: those that were of the old edge are nobody's."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    edges.read()
    now = probes.write(0, 4)
    read = SampleReader.read

    def read_and_change(reader: SampleReader) -> Samples:
        samples = read(reader)
        put_in_place(probes, 2, "h9")
        return samples

    monkeypatch.setattr(SampleReader, "read", read_and_change)
    edges.read()
    edges.fit(now, 4 * NS, everything=True)
    fitted = {edge.name.peer for edge in edges if edge.fit is not None}
    assert fitted == {"h1", "h2", "h4", "h5", "h6"}


def test_a_table_that_changes_all_the_time_is_read_later(
    probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: the samples wait in the ring until it is known whose they are."""
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    now = probes.write(0, 4)
    with monkeypatch.context() as patched:
        patched.setattr(SampleReader, "edges", lambda _: None)
        edges.read()
    assert (len(edges), edges.refused) == (0, "")
    edges.read()
    edges.fit(now, 4 * NS, everything=True)
    assert len(edges.fits()) == len(PEERS)


def test_what_the_engine_notices_wakes_the_watch(
    probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for a ring that appears; then a contradiction, and a jump that queues may hide. It ends when it is to, and
    does not wait until it would ask for another ring.
    """
    monkeypatch.setattr(host_edges, "_OTHER_RING_S", 1e5)
    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    notices: SimpleQueue[None] = SimpleQueue()
    stopped = threading.Event()
    thread = threading.Thread(target=edges.watch, args=(lambda: notices.put(None), stopped))
    thread.start()
    try:
        edges.read()
        notices.get(timeout=60)
        for offset, value in ((16, 1), (32, 700)):  # contradictions, hidden_jump_ns
            assert (edges.contradicted(), edges.hidden_jump_ns()) == (False, 0)
            at = EDGES_SEQUENCE_OFFSET + offset
            probes.ring.map[at : at + 8] = value.to_bytes(8, "little")
            edges.end_watch()  # as the engine does: by the futex
            notices.get(timeout=60)
            assert (edges.contradicted(), edges.hidden_jump_ns()) == (
                (True, 0) if offset == 16 else (False, 700)
            )
    finally:
        stopped.set()
        while thread.is_alive():
            edges.end_watch()
            thread.join(0.01)
    assert notices.empty()


def test_a_writer_wakes_who_waits(tmp_path: Path) -> None:
    """As the engine does: by the futex at the first word, through another mapping of the file."""
    writer = create_mapping(tmp_path / "words", 4096)
    with (tmp_path / "words").open("rb") as file:
        words = np.frombuffer(mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ), np.uint64, 2)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(wait_changed(words, np.zeros(2, np.uint64), 1e5)))
    thread.start()
    writer[8:16] = (5).to_bytes(8, "little")
    libc, first = ctypes.CDLL(None), ctypes.c_uint64.from_buffer(writer)
    while thread.is_alive():  # it may not wait yet
        libc.syscall(FUTEX, ctypes.byref(first), 1, 1, None, None, 0)
        thread.join(0.01)
    assert woken == [True]


def test_a_ring_is_followed_once_its_trains_say_how_far_apart_they_are(
    probes: Probes, tmp_path: Path
) -> None:
    """From one train of each edge that is not known; another engine has its own."""
    followed: list[tuple[int, int]] = []

    def follow(samples: NDArray[np.uint64], interval_ns: int) -> None:
        followed.append((int(samples[0]), interval_ns))

    edges = HostEdges(tmp_path / "probes", EstimatorParameters())
    edges.follow = follow
    probes.write(0, 0.02)
    edges.read()
    assert not followed
    for begin_s in 0.02, 0.1:
        probes.write(begin_s, begin_s + 0.08)
        edges.read()
    assert followed == [(12 * 5, 20_000_000)]
    (tmp_path / "probes").unlink()
    Probes(tmp_path / "probes").write(1, 2)
    edges.read()
    assert followed[1:] == [(12 * 50, 20_000_000)]
