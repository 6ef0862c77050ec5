"""The file of the probe ring: made under a name that nobody can know (docs/run-directory.md), and its edge tables."""

import os
import random
from pathlib import Path

from fabricpulse.core.shm.probe_ring import EDGE, EDGE_ACTIVE, HEADER
from fabricpulse.mesh import _probe_engine as native


def test_what_lies_under_a_guessed_name_is_not_written(tmp_path: Path) -> None:
    """A link at the name of a writer's process id: what it names stays as it is, and so does the link."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    ring = tmp_path / "probes"
    link = tmp_path / f"probes.new.{os.getpid()}"
    link.symlink_to(precious)
    settings = native.Settings()
    settings.host, settings.ring_path = "h0", str(ring)
    native.ProbeEngine(settings)
    assert precious.read_text() == "kept"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([link.name, "precious", "probes"])
    assert not ring.is_symlink()
    assert ring.stat().st_mode & 0o777 == 0o644


def tables(path: Path) -> tuple[int, set[bytes], set[bytes]]:
    """(sequence, peers of the table that is in force, those of the other)."""
    data = path.read_bytes()
    header = HEADER.unpack_from(data)
    capacity, begin, sequence = header[4], header[7], header[12]
    peers = []
    for number in (sequence & 1, ~sequence & 1):
        at = begin + number * capacity * EDGE.size
        entries = EDGE.iter_unpack(data[at : at + capacity * EDGE.size])
        peers.append({name.rstrip(b"\0") for state, _, _, _, name, *_ in entries if state == EDGE_ACTIVE})
    return sequence, peers[0], peers[1]


def test_a_change_of_the_edges_leaves_the_table_that_was_in_force(tmp_path: Path) -> None:
    """Whoever is stopped or killed in a change has spoilt only the other one: each change is made there."""
    settings = native.Settings()
    settings.host, settings.ring_path = "h0", str(tmp_path / "probes")
    engine = native.ProbeEngine(settings)
    rng = random.Random(1)
    nics = [("lo", "rail0", "127.0.0.1")]
    peers: list[str] = []
    for _ in range(40):
        before = {peer.encode() for peer in peers}
        sequence, *_ = tables(tmp_path / "probes")
        if peers and rng.random() < 0.4:
            peers.remove(rng.choice(peers))
        else:
            peers.append(f"h{rng.randrange(10**6)}")
        engine.configure(nics, [(0, peer, "lo", "rail0", "127.0.0.2") for peer in peers])
        assert tables(tmp_path / "probes") == (sequence + 1, {peer.encode() for peer in peers}, before)
