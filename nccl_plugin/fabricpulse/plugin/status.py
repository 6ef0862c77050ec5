"""The table of `fabricpulse plugin status`: lanes of running jobs, from their own answers."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fabricpulse.core.output import human_bytes

Statuses = Mapping[str, Mapping[str, Any]]

_STATE_STYLES = {
    "up": "green",
    "slow_start": "yellow",
    "connecting": "yellow",
    "fencing": "red",
    "down": "red",
    "damped": "yellow",
    "disabled": "bright_black",
    "last_resort": "red",
    "spare": "bright_black",
}


def status_table(
    statuses: Statuses, previous: Statuses | None = None, interval_s: float = 1.0
) -> RenderableType:
    """One table a process. previous : the answers `interval_s` seconds before, for rates of this moment."""
    return Group(
        *(_process(pid, answer, (previous or {}).get(pid), interval_s) for pid, answer in statuses.items())
    )


def _process(
    pid: str, answer: Mapping[str, Any], before: Mapping[str, Any] | None, interval_s: float
) -> Table:
    if not answer.get("ok"):
        error = answer.get("error", {})
        table = Table(title=f"process {pid}", title_justify="left", show_header=False, box=None)
        table.add_row(Text(str(error.get("message", "no answer")), style="red"))
        return table
    devices = "  ".join(_device(device) for device in answer.get("devices", ()))
    title = f"process {pid}, workload {answer.get('workload', '?')} on {answer.get('host', '?')}:  {devices}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("peer", "way", "lane", "path", "state", "since"):
        table.add_column(name)
    for name in ("weight", "rate", "in flight", "rtt", "moved", "failovers"):
        table.add_column(name, justify="right")
    table.add_column("waits for")
    old = _lane_bytes(before)
    for connection in answer.get("connections", ()):
        for lane in connection.get("lanes", ()):
            table.add_row(*_lane(connection, lane, old, interval_s))
    return table


def _device(device: Mapping[str, Any]) -> str:
    notes = [str(device.get("link", "?"))]
    if device.get("avoided"):
        notes.append("avoided")
    return f"{device.get('device')} {' '.join(notes)} {device.get('lanes_up', 0)}/{device.get('lanes', 0)}"


def _lane(
    connection: Mapping[str, Any],
    lane: Mapping[str, Any],
    old: Mapping[tuple[str, int], int],
    interval_s: float,
) -> list[str | Text]:
    state = str(lane.get("state", "?"))
    reason = str(lane.get("reason", "none"))
    shown = state if state in ("up", "slow_start") or reason == "none" else f"{state} ({reason})"
    moved = int(lane.get("sent_bytes", 0)) + int(lane.get("received_bytes", 0))
    key = (str(connection.get("connection")), int(lane.get("lane", 0)))
    # Before there are two counts to compare, what the plugin has measured; 0 says that it has not.
    rate = (moved - old[key]) / interval_s if key in old else float(lane.get("delivery_rate", 0)) or None
    rank = connection.get("peer_rank")
    return [
        f"{connection.get('peer', '?')}" + ("" if rank is None else f" rank {rank}"),
        str(connection.get("direction", "?")),
        str(lane.get("lane", "?")),
        f"{lane.get('device', '?')} → {lane.get('peer_device', '?')}",
        Text(shown, style=_STATE_STYLES.get(state, "")),
        f"{float(lane.get('since_ms', 0)) / 1000:.1f} s",
        f"{float(lane.get('weight') or 0) / 10:.0f}%",
        "?" if rate is None else f"{human_bytes(max(rate, 0.0))}/s",
        human_bytes(float(lane.get("in_flight_bytes", 0))),
        f"{lane.get('rtt_us', 0)} µs",
        human_bytes(moved),
        str(lane.get("failovers", 0)),
        _waiting(connection),
    ]


def _waiting(connection: Mapping[str, Any]) -> Text:
    """What the oldest request waits for, and how long it has done so without progress if that is a second or more."""
    waits, idle_s = str(connection.get("waits_for", "")), float(connection.get("idle_ms", 0)) / 1000
    return Text(f"{waits} {idle_s:.0f} s", style="red") if idle_s >= 1 else Text(waits)


def _lane_bytes(answer: Mapping[str, Any] | None) -> dict[tuple[str, int], int]:
    return {
        (str(connection.get("connection")), int(lane.get("lane", 0))): int(lane.get("sent_bytes", 0))
        + int(lane.get("received_bytes", 0))
        for connection in (answer or {}).get("connections", ())
        for lane in connection.get("lanes", ())
    }
