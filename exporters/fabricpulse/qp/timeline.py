"""What single processes did lately, on fleet time: collectives and state changes of lanes and NICs. Pure.

The plugin stamps each on fleet time as it ends, with the bound of that moment: no later reading of a clock page can
say what a clock was worth before a pause or a step. Where there was no fleet time, the host's clock is all there is,
and `fleet_ns` is 0: such stamps compare on their own host alone.
"""

from collections.abc import Iterable

import numpy as np

from fabricpulse.plugin_ipc.telemetry import UNKNOWN, Records, TelemetrySnapshot, text
from fabricpulse.plugin_ipc.timeline import Change, HostTimeline, Operation, ProcessTimeline

# enum fp_event_kind and fp_lane_reason, as the control protocol spells them.
KINDS = (
    "", "lane_up", "lane_down", "lane_fenced", "chunks_moved", "link_down", "link_up", "peer_lost", "command",
    "repath", "no_lane", "lane_damped", "lane_unreachable",
)  # fmt: skip
REASONS = (
    "", "stall", "link_down", "socket_error", "peer", "command", "protocol", "repath", "corrupt", "deadline",
    "unreachable", "relieved",
)  # fmt: skip
# Of one answer: 16 processes with full rings are 100,000.
MOST_ENTRIES = 100_000


def host_timeline(
    host: str, rings: Iterable[tuple[TelemetrySnapshot, Records, Records]], since_ns: int
) -> HostTimeline:
    """Of a host's processes: what ended at `since_ns` or later, by the host's clock. rings : of EVENTS, OPERATIONS."""
    room, cut = MOST_ENTRIES, False
    found = []
    for snapshot, events, operations in rings:
        recent = operations[operations["end_host_ns"] >= since_ns]
        changed = events[events["host_ns"] >= since_ns]
        kept, room_left = recent[max(0, len(recent) - room) :], max(0, room - len(recent))
        changes = changed[max(0, len(changed) - room_left) :]
        cut = cut or len(kept) < len(recent) or len(changes) < len(changed)
        room -= len(kept) + len(changes)
        devices = snapshot.device_names()
        found.append(
            ProcessTimeline(
                snapshot.workload,
                snapshot.rank,
                snapshot.pid,
                [_operation(r) for r in kept],
                [_change(r, devices) for r in changes],
            )
        )
    return HostTimeline(host, found, cut)


def _stamp(fleet_ns: int, bound_ns: int, host_ns: int) -> tuple[int, int]:
    # A bound of an hour is none.
    known = fleet_ns > 0 and bound_ns < 3_600_000_000_000
    return (fleet_ns, bound_ns) if known else (host_ns, -1)


def _operation(r: np.void) -> Operation:
    end_ns, bound_ns = _stamp(int(r["end_fleet_ns"]), int(r["fleet_bound_ns"]), int(r["end_host_ns"]))
    return Operation(
        f"{int(r['communicator']):x}",
        int(r["number"]),
        text(r["function"]),
        int(r["rank"]),
        end_ns,
        bound_ns,
        int(r["took_ns"]),
        int(r["bytes"]),
    )


def _change(r: np.void, devices: dict[int, str]) -> Change:
    at_ns, bound_ns = _stamp(int(r["fleet_ns"]), int(r["fleet_bound_ns"]), int(r["host_ns"]))
    kind, reason, device = int(r["kind"]), int(r["reason"]), int(r["device"])
    return Change(
        KINDS[kind] if kind < len(KINDS) else str(kind),
        REASONS[reason] if reason < len(REASONS) else str(reason),
        at_ns,
        bound_ns,
        "" if device == UNKNOWN else devices.get(device, ""),
        text(r["peer"]),
        text(r["peer_device"]),
        int(r["value"]),
    )
