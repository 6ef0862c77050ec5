"""Which spine a lane crosses, how to put it on another one, and two rings that collide on one."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab

PORTS = range(20_000, 30_000)
HANDSHAKE_S = 1.5  # by then a dial has come about or been given up


def sending(ring: Ring, host: str) -> list[dict[str, Any]]:
    """The sending connections of a host."""
    return [c for c in ring.control(host, op="status")["connections"] if c["direction"] == "send"]


def spine_of(ring: Ring, host: str, peer: str, lane: dict[str, Any]) -> str:
    """The spine that a lane crosses towards its peer."""
    source, destination = f"{host}-{lane['device']}", f"{peer}-{lane['peer_device']}"
    return ring.lab.path(source, destination, lane["entropy"], lane["queue_pair"] & 0xFFFF, "tcp")


def port_over(ring: Ring, host: str, peer: str, lane: dict[str, Any], spine: str, start: int = 0) -> int:
    """A source port with which the lane would cross this spine."""
    for port in PORTS[start:]:
        if spine_of(ring, host, peer, {**lane, "entropy": port}) == spine:
            return port
    raise AssertionError(f"no source port leads from {host} to {peer} over {spine}")


def put_on(ring: Ring, host: str, peer: str, spine: str) -> None:
    """Gives every lane of the host's sending connections a source port that leads over this spine."""
    wanted: dict[tuple[str, int], tuple[int, int]] = {}  # port, and moves so far
    asked_s = 0.0
    asked = 0

    def ask(key: tuple[str, int]) -> None:
        nonlocal asked_s, asked
        asked += 1
        asked_s = time.monotonic()
        answer = ring.control(
            host,
            op="lane.repath",
            op_id=f"put-{spine}-{key}-{asked}",
            generation=1,
            connection=key[0],
            lane=key[1],
            entropy=wanted[key][0],
        )
        assert answer["ok"], answer

    start = 0
    for connection in sending(ring, host):
        for lane in connection["lanes"]:
            port = port_over(ring, host, peer, lane, spine, start)
            start = PORTS.index(port) + 1
            key = (connection["connection"], lane["lane"])
            wanted[key] = port, lane["repaths"]
            ask(key)

    def there() -> bool:
        lanes = {(c["connection"], x["lane"]): x for c in sending(ring, host) for x in c["lanes"]}
        # One that has been there may have moved on by itself.
        missing = [
            key
            for key, (port, moves) in wanted.items()
            if lanes[key]["entropy"] != port and lanes[key]["repaths"] <= moves + 1
        ]
        # A full spine may drop packets of the new life's handshake: the old one stays then, and the wish is over.
        if time.monotonic() - asked_s > HANDSHAKE_S:
            for key in missing:
                ask(key)
        return not missing

    ring.until(there, 40.0)  # a full spine drops handshakes; each is tried for HANDSHAKE_S


PAIRS = (("h0", "h2"), ("h1", "h3"))  # of rings whose ranks are in different pods


@contextmanager
def two_spines(uplink_mbit: float) -> Iterator[Lab]:
    """Two pods of two hosts each, joined by two spines of that speed."""
    with Lab(hosts=4, rails=1, spines=2, pods=2) as lab:
        for leaf in lab.fabric.leaf_names:
            for spine in lab.fabric.spine_names:
                lab.link(leaf, spine).limit(uplink_mbit)
        yield lab


def collided(lab: Lab, size: str, env: Mapping[str, str] | None = None) -> list[Ring]:
    """Two running rings of PAIRS with messages of that size, all of their lanes on spine0."""
    arguments = ["--bytes", size, "--channels", "1"]
    rings = [
        Ring(
            lab,
            2,
            arguments,
            env={"FABRICPULSE_WORKLOAD": f"ring{at}", **(env or {})},
            hosts=pair,
            port=7000 + at,
        )
        for at, pair in enumerate(PAIRS)
    ]
    for ring in rings:
        ring.wait_running()
    for ring, (a, b) in zip(rings, PAIRS, strict=True):
        put_on(ring, a, b, "spine0")
        put_on(ring, b, a, "spine0")
    return rings


def elsewhere(rings: list[Ring]) -> int:
    """Sending lanes of such rings that have left spine0."""
    return sum(
        spine_of(ring, host, peer, lane) != "spine0"
        for ring, pair in zip(rings, PAIRS, strict=True)
        for host, peer in (pair, pair[::-1])
        for connection in sending(ring, host)
        for lane in connection["lanes"]
    )
