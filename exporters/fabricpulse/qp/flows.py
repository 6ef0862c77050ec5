"""What connections carry: collective, algorithm, protocol and the GPU pair, as the plugin's telemetry says. Pure.

The plugin asks NCCL's profiler for it at detail 2 only, and seldom; a connection keeps the last answer.
"""

from dataclasses import dataclass

from fabricpulse.plugin_ipc.telemetry import UNKNOWN, Table, TelemetrySnapshot, text

OPEN = 1  # enum fp_plugin_connection.state


@dataclass(frozen=True)
class Flow:
    """rank, peer_rank : in the collective's communicator, "" when unknown, as is `channel`."""

    collective: str
    algorithm: str
    protocol: str
    rank: str
    peer_rank: str
    channel: str


def flows(snapshot: TelemetrySnapshot) -> dict[int, Flow]:
    """Slot of an open connection -> what it carries; those of which that is unknown are left out."""
    collectives = dict(
        zip(map(int, snapshot.slots[Table.COLLECTIVES]), snapshot.tables[Table.COLLECTIVES], strict=True)
    )
    found = {}
    for slot, record in zip(
        snapshot.slots[Table.CONNECTIONS], snapshot.tables[Table.CONNECTIONS], strict=True
    ):
        collective = collectives.get(int(record["flow_collective"]))
        if collective is None or int(record["state"]) != OPEN:
            continue
        found[int(slot)] = Flow(
            text(collective["function"]),
            text(collective["algorithm"]),
            text(collective["protocol"]),
            *(_number(int(record[name])) for name in ("flow_rank", "flow_peer", "flow_channel")),
        )
    return found


def _number(value: int) -> str:
    return "" if value == UNKNOWN else str(value)
