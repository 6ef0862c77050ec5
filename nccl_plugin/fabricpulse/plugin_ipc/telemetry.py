"""Telemetry of the NCCL plugin in Python: reader of nccl_plugin/include/fabricpulse/plugin_telemetry.h.

The dtypes are the layout; tests/unit/qp/test_layout.py has the C++ compiler confirm every offset.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabricpulse.core._atomic import fence
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.plugin_ipc.table_file import (
    PATIENCE_S,
    Layout,
    Records,
    TableFile,
    TableFileKind,
    TornReadError,
    text,
)

MAGIC = 0x314C45544C505046
VERSION = 1
DELAY_BOUNDS = 23
TABLE_SLOTS = 8
UNKNOWN = 0xFFFFFFFF
__all__ = [
    "PluginTelemetryReader",
    "Records",
    "TelemetrySnapshot",
    "TornReadError",
    "process_start_ticks",
    "text",
]


class Table(enum.IntEnum):
    """enum fp_plugin_table."""

    DEVICES = 0
    CONNECTIONS = 1
    LANES = 2
    PAIRS = 3
    COLLECTIVES = 4
    EVENTS = 5
    JOB = 6
    OPERATIONS = 7


class LaneState(enum.IntEnum):
    """enum fp_lane_state."""

    FREE = 0
    CONNECTING = 1
    UP = 2
    SLOW_START = 3
    FENCING = 4
    DOWN = 5
    DAMPED = 6
    DISABLED = 7
    LAST_RESORT = 8
    SPARE = 9

    @property
    def carries(self) -> bool:
        """True when the lane takes part in the traffic, and is one of those that should."""
        return self in (LaneState.UP, LaneState.SLOW_START)

    @property
    def beside_queue_pairs(self) -> bool:
        """True of a TCP lane that a connection over queue pairs has for the time when none of them is up."""
        return self in (LaneState.LAST_RESORT, LaneState.SPARE)


class DelaySource(enum.IntEnum):
    """enum fp_delay_source."""

    NONE = 0
    FLEET = 1
    HALF_RTT = 2


def _layout(*fields: Any) -> Layout:
    return np.dtype(list(fields), align=True)


DELAY_HISTOGRAM = _layout(("count", "u8"), ("sum_ns", "u8"), ("buckets", "u8", (DELAY_BOUNDS + 1,)))
TABLE_INFO = _layout(("offset", "u8"), ("record_size", "u4"), ("capacity", "u4"))
HEADER = _layout(
    ("magic", "u8"), ("version", "u4"), ("size", "u4"), ("file_size", "u8"), ("pid", "u4"), ("rank", "u4"),
    ("pid_start_ticks", "u8"), ("start_host_ns", "i8"), ("heartbeat_mono_ns", "u8"), ("generation", "u8"),
    ("tables_sequence", "u8"), ("events_next", "u8"), ("dropped_records", "u8"), ("clock_status", "u4"),
    ("communicators", "u4"), ("telemetry_enabled", "u4"), ("reserved0", "u4"), ("host", "S96"),
    ("workload", "S128"), ("plugin_version", "S32"), ("abi", "S16"), ("delay_bounds_ns", "u8", (DELAY_BOUNDS,)),
    ("tables", TABLE_INFO, (TABLE_SLOTS,)),
)  # fmt: skip
DEVICE = _layout(
    ("sequence", "u4"), ("state", "u4"), ("name", "S32"), ("speed_mbps", "u4"), ("avoided", "u4"),
    ("lanes", "u4"), ("lanes_up", "u4"), ("link_downs", "u8"), ("reserved", "u8", (4,)),
)  # fmt: skip
CONNECTION = _layout(
    ("sequence", "u4"), ("state", "u4"), ("generation", "u4"), ("direction", "u4"), ("id", "u8"),
    ("communicator", "u8"), ("device", "u4"), ("peer_pid", "u4"), ("peer_rank", "u4"), ("requests", "u4"),
    ("peer", "S96"), ("bytes", "u8"), ("completed", "u8"), ("last_progress_mono_ns", "u8"),
    ("oldest_request_mono_ns", "u8"), ("stall_ns_max", "u8"), ("failovers", "u8"), ("resent_chunks", "u8"),
    ("duplicate_chunks", "u8"), ("waits_for", "u4"), ("net_operations", "u4"), ("net_algorithms", "u4"),
    ("net_protocols", "u4"), ("flow_collective", "u4"), ("flow_rank", "u4"), ("flow_peer", "u4"),
    ("flow_channel", "u4"), ("missing_bytes", "u8"), ("reserved", "u8", (1,)),
)  # fmt: skip
LANE = _layout(
    ("sequence", "u4"), ("state", "u4"), ("generation", "u4"), ("transport", "u4"), ("connection", "u4"),
    ("index", "u4"), ("device", "u4"), ("direction", "u4"), ("queue_pair", "u8"), ("epoch", "u4"),
    ("entropy", "u4"), ("peer", "S96"), ("peer_device", "S32"), ("weight", "u4"), ("last_reason", "u4"),
    ("delay_source", "u4"), ("reserved0", "u4"), ("sent_bytes", "u8"), ("received_bytes", "u8"),
    ("sent_chunks", "u8"), ("received_chunks", "u8"), ("acknowledged_bytes", "u8"), ("in_flight_bytes", "u8"),
    ("resent_chunks", "u8"), ("failovers", "u8"), ("stalls", "u8"), ("repaths", "u8"), ("retransmits", "u8"),
    ("ecn_marked", "u8"), ("delivery_rate", "u8"), ("rtt_ns", "u8"), ("last_progress_mono_ns", "u8"),
    ("state_since_mono_ns", "u8"), ("stall_ns_max", "u8"), ("delay", DELAY_HISTOGRAM),
    ("corrupt_frames", "u8"), ("reserved", "u8", (3,)),
)  # fmt: skip
PAIR = _layout(
    ("sequence", "u4"), ("state", "u4"), ("device", "u4"), ("transport", "u4"), ("peer", "S96"),
    ("peer_device", "S32"), ("sent_bytes", "u8"), ("received_bytes", "u8"), ("sent_chunks", "u8"),
    ("received_chunks", "u8"), ("resent_chunks", "u8"), ("failovers", "u8"), ("stalls", "u8"), ("repaths", "u8"),
    ("retransmits", "u8"), ("ecn_marked", "u8"), ("delay", DELAY_HISTOGRAM), ("delay_source", "u4"),
    ("reserved0", "u4"), ("corrupt_frames", "u8"),
)  # fmt: skip
COLLECTIVE = _layout(
    ("sequence", "u4"), ("state", "u4"), ("communicator", "u8"), ("rank", "u4"), ("ranks", "u4"),
    ("function", "S24"), ("algorithm", "S16"), ("protocol", "S16"), ("operations", "u8"), ("bytes", "u8"),
    ("busy_ns", "u8"), ("last_bandwidth", "u8"), ("last_end_mono_ns", "u8"), ("in_progress", "u8"),
    ("proxy_wait_ns", "u8"), ("reserved", "u8", (4,)),
)  # fmt: skip
EVENT = _layout(
    ("commit", "u8"), ("host_ns", "i8"), ("mono_ns", "u8"), ("kind", "u4"), ("reason", "u4"), ("connection", "u4"),
    ("lane", "u4"), ("device", "u4"), ("epoch", "u4"), ("connection_id", "u8"), ("value", "u8"), ("peer", "S96"),
    ("peer_device", "S32"), ("fleet_ns", "i8"), ("fleet_bound_ns", "u8"),
)  # fmt: skip
OPERATION = _layout(
    ("commit", "u8"), ("communicator", "u8"), ("number", "u8"), ("end_host_ns", "i8"), ("end_fleet_ns", "i8"),
    ("fleet_bound_ns", "u8"), ("took_ns", "u8"), ("bytes", "u8"), ("rank", "u4"), ("ranks", "u4"), ("function", "S24"),
    ("algorithm", "S16"), ("protocol", "S16"),
)  # fmt: skip
JOB = _layout(
    ("sequence", "u4"), ("state", "u4"), ("nodes", "u4"), ("reserved0", "u4"), ("slurm_job", "S32"),
    ("account", "S64"), ("pod_name", "S256"), ("pod_namespace", "S64"), ("pod_uid", "S64"), ("reserved", "u8", (4,)),
)  # fmt: skip

# C name -> dtype, for the test that compares them.
LAYOUTS: dict[str, Layout] = {
    "fp_delay_histogram": DELAY_HISTOGRAM,
    "fp_plugin_table_info": TABLE_INFO,
    "fp_plugin_header": HEADER,
    "fp_plugin_device": DEVICE,
    "fp_plugin_connection": CONNECTION,
    "fp_plugin_lane": LANE,
    "fp_plugin_pair": PAIR,
    "fp_plugin_collective": COLLECTIVE,
    "fp_plugin_event": EVENT,
    "fp_plugin_operation": OPERATION,
    "fp_plugin_job": JOB,
}
_TABLES: dict[int, Layout] = {
    Table.DEVICES: DEVICE,
    Table.CONNECTIONS: CONNECTION,
    Table.LANES: LANE,
    Table.PAIRS: PAIR,
    Table.COLLECTIVES: COLLECTIVE,
    Table.JOB: JOB,
}
# Several times what the plugin has (core/telemetry.h): records become series.
MAX_RECORDS: dict[int, int] = {
    Table.DEVICES: 128,
    Table.CONNECTIONS: 8192,
    Table.LANES: 16_384,
    Table.PAIRS: 8192,
    Table.COLLECTIVES: 4096,
    Table.JOB: 8,
}
_RINGS: dict[Table, Layout] = {Table.EVENTS: EVENT, Table.OPERATIONS: OPERATION}
# The plugin has 4,096 events and 2,048 operations.
MAX_RING = 8192
# The plugin's files have 5 MB.
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class TelemetrySnapshot:
    """One consistent copy of a file. The tables hold only records in use, as numpy records named as in the header.

    `slots` gives the slot number of each record of a table: records refer to each other by slot. `owner` is the user id
    that the kernel gives for the file, `user` that of whom it is given to by /etc/subuid, None for the same.
    """

    pid: int
    rank: int | None
    pid_start_ticks: int
    start_host_ns: int
    heartbeat_mono_ns: int
    generation: int
    dropped_records: int
    telemetry_enabled: bool
    host: str
    workload: str
    plugin_version: str
    abi: str
    delay_bounds_ns: tuple[int, ...]
    tables: dict[Table, Records]
    slots: dict[Table, NDArray[np.intp]]
    owner: int = 0
    user: int | None = None

    @property
    def user_id(self) -> int:
        """Whose job it is: ranks of one job in rootless containers are of several owners, on each host of others."""
        return self.owner if self.user is None else self.user

    @property
    def process(self) -> tuple[int, int, int, int]:
        """Tells the writer from all others of this machine: in containers, pid and start may be the same.

        All but the owner is the file's own content: the owner keeps a user from posing as a process of another one.
        """
        return self.owner, self.pid, self.pid_start_ticks, self.start_host_ns

    def device_names(self) -> dict[int, str]:
        """Slot of a device -> its name."""
        records = self.tables[Table.DEVICES]
        return {int(s): text(r["name"]) for s, r in zip(self.slots[Table.DEVICES], records, strict=True)}


class PluginTelemetryReader(TableFile):
    """Reads one `<name>.telemetry`."""

    def __init__(self, path: Path, tables: Collection[Table] = frozenset(Table)) -> None:
        """tables : that snapshots have, where these are. Raises LayoutError for another layout, a table that leaves the
        file or an absurd size; OSError else.
        """
        wanted = {table: layout for table, layout in _TABLES.items() if table in tables}
        super().__init__(path, TableFileKind(MAGIC, VERSION, HEADER, wanted, MAX_RECORDS, MAX_BYTES))

    def read(self, patience_s: float = PATIENCE_S) -> TelemetrySnapshot:
        """One consistent copy.

        patience_s : how long a change in progress is waited for, all together; with 0 a file at rest is still read.
        Raises TornReadError when the writer does not come out of a change, LayoutError (ChangedFileError) when the
        file has been truncated or its tables moved, OSError when it cannot be read.
        """
        header, tables, slots = self.read_tables(patience_s)
        return _snapshot(header, tables, slots, self.owner)

    def ring(self, table: Table) -> Records:
        """What EVENTS or OPERATIONS hold now, oldest first, as numpy records; none of an older writer.

        Entries that change meanwhile are left out: the writer never waits. Raises LayoutError (ChangedFileError) when
        the table leaves the file or is absurdly long, OSError when it cannot be read.
        """
        layout, place = _RINGS[table], self.place(table)
        start, size, capacity = int(place["offset"]), int(place["record_size"]), int(place["capacity"])
        if not capacity:
            return np.zeros(0, layout)
        fits = start + size * capacity <= self.size and size >= layout.itemsize and size % 8 == 0
        if not fits or capacity > MAX_RING:
            raise LayoutError(f"{self.path}: table {table.name} does not fit this layout or the file")
        records = self._records(start, size, capacity, layout)
        fence()
        after = self._records(start, size, capacity, layout)["commit"]
        commit = records["commit"]
        whole = (commit == after) & (commit != 0) & (commit % 2 == 0)
        order = np.argsort(commit[whole], kind="stable")
        found: Records = records[whole][order]
        return found


def _snapshot(
    header: np.void, tables: dict[int, Records], slots: dict[int, NDArray[np.intp]], owner: int
) -> TelemetrySnapshot:
    rank = int(header["rank"])
    return TelemetrySnapshot(
        pid=int(header["pid"]),
        rank=None if rank == UNKNOWN else rank,
        pid_start_ticks=int(header["pid_start_ticks"]),
        start_host_ns=int(header["start_host_ns"]),
        heartbeat_mono_ns=int(header["heartbeat_mono_ns"]),
        generation=int(header["generation"]),
        dropped_records=int(header["dropped_records"]),
        telemetry_enabled=bool(header["telemetry_enabled"]),
        host=text(header["host"]),
        workload=text(header["workload"]),
        plugin_version=text(header["plugin_version"]),
        abi=text(header["abi"]),
        delay_bounds_ns=tuple(int(bound) for bound in header["delay_bounds_ns"]),
        tables={Table(table): records for table, records in tables.items()},
        slots={Table(table): numbers for table, numbers in slots.items()},
        owner=owner,
    )


def process_start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/<pid>/stat), None without such a process."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command name may hold anything, also ") ": fields are counted from the last one.
    fields: Sequence[str] = stat.rpartition(") ")[2].split()
    # A zombie has its start time still, but runs no more.
    return None if fields[0] in ("Z", "X") else int(fields[19])
