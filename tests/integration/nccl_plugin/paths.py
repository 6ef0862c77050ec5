"""Which spine a lane crosses, and how to put it on another one."""

from typing import Any

from tests.integration.nccl_plugin.ring import Ring

PORTS = range(20_000, 30_000)


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
    start = 0
    for connection in sending(ring, host):
        for lane in connection["lanes"]:
            port = port_over(ring, host, peer, lane, spine, start)
            start = PORTS.index(port) + 1
            key = (connection["connection"], lane["lane"])
            wanted[key] = port, lane["repaths"]
            answer = ring.control(
                host,
                op="lane.repath",
                op_id=f"put-{spine}-{key}-{port}",
                generation=1,
                connection=key[0],
                lane=key[1],
                entropy=port,
            )
            assert answer["ok"], answer

    def there() -> bool:
        lanes = {(c["connection"], x["lane"]): x for c in sending(ring, host) for x in c["lanes"]}
        # One that has been there may have moved on by itself.
        return all(
            lanes[key]["entropy"] == port or lanes[key]["repaths"] > moves + 1
            for key, (port, moves) in wanted.items()
        )

    ring.until(there, 10.0)
