"""GID tables: entries by type, the index that NCCL would use, and changes.

A table has 256 slots of three files each, so it is not read on every scrape: only when something says that it may have
changed (a link or address event, a changed directory) and every `refresh_s` without a reason, one device at a time.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.gid_rules import Gid, NcclRules, nccl_index, roce_v2_index
from fabricpulse.hostinfo.gid_table import read_table
from fabricpulse.hostinfo.inventory import RdmaDevice
from fabricpulse.hostinfo.sysfs import clean_text, read_once
from fabricpulse.nic.collectors.base import HOST, Collector, Context, Environment, register
from fabricpulse.nic.gid_changes import GidChanges
from fabricpulse.nic.metric_spec import PORT, counter, gauge

GID_ENTRIES = gauge(
    "gid_entries",
    "GIDs in the table that are not zero, by type (ports/N/gids, gid_attrs/types).",
    (*PORT, "type"),
)
GID_INFO = gauge(
    "gid_info",
    "Always 1; a GID that is not zero: index, GID, type, and its own netdev, a VLAN for instance (gids/I, "
    "gid_attrs/types/I, gid_attrs/ndevs/I).",
    (*PORT, "index", "gid", "gid_type", "gid_device"),
)
GID_CHANGES = counter(
    "gid_table_changes",
    "GID table entries that appeared, vanished or changed, seen since the exporter started.",
)
GID_MOVES = counter(
    "gid_index_moves",
    "Times the GID that NCCL would use moved to another index, seen since the exporter started; NCCL keeps the index "
    "of job start and fails after a move.",
)
ROCE_V2_INDEX = gauge(
    "roce_v2_gid_index", "Lowest index of a RoCE v2 GID that is IPv4-mapped, or else of any RoCE v2 GID."
)
NCCL_INDEX = gauge(
    "nccl_gid_index",
    "GID index that NCCL would use on this port: NCCL_IB_GID_INDEX, or its search by address family, range and RoCE "
    "version; absent if none fits.",
)
NCCL_GID_INFO = gauge(
    "nccl_gid_info",
    "Always 1; the GID that NCCL would use on this port: its type (RoCE v1 is not routed, and not marked by ECN), and its address family: ipv4, ipv6, link_local, or infiniband.",
    (*PORT, "index", "gid_type", "address_family"),
)
NCCL_CONSISTENT = gauge(
    "nccl_gid_index_consistent",
    "1 if all active RoCE ports of this host have a GID for NCCL and at the same index, else 0; absent without RoCE.",
    (),
)

# How often tables are read while no events report changes, seconds.
REFRESH_WITHOUT_EVENTS_S = 30.0


@dataclass
class _Table:
    """The table of one port as last read."""

    entries: dict[int, Gid] = field(default_factory=dict)
    size: int = 0
    link_layer: str = ""
    is_active: bool = False
    read_at: float | None = None
    changes: int = 0
    moves: int = 0
    chosen: dict[tuple[bytes, str], int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    lines: list[tuple[str, str]] = field(default_factory=list)


@register()
class GidCollector(Collector):
    """One target a device, and one for the comparison of all of them.

    refresh_s : seconds after which a table is read without a reason. has_events : whether link and address events arrive;
    while they do not, tables are read every REFRESH_WITHOUT_EVENTS_S.
    """

    name = "gid"

    @classmethod
    def make(cls, environment: Environment) -> Self:
        section, flaps = environment.gid, environment.flaps
        return cls(
            environment.nccl.rules(),
            section.refresh_s,
            section.max_info,
            environment.gid_changes,
            lambda: flaps.is_live,
        )

    def __init__(
        self,
        rules: NcclRules,
        refresh_s: float,
        max_info: int,
        changes: GidChanges,
        has_events: Callable[[], bool] = lambda: True,
    ) -> None:
        self._has_events = has_events
        self._changes = changes
        self._rules = rules
        self._refresh_s = refresh_s
        self._max_info = max_info
        self._tables: dict[tuple[str, int], _Table] = {}
        self._devices: dict[str, RdmaDevice] = {}

    def targets(self, context: Context) -> Sequence[str]:
        self._devices = {device.name: device for device in context.inventory.rdma}
        for key in [key for key in self._tables if key[0] not in self._devices]:
            del self._tables[key]
        return [*self._devices, HOST]

    def collect(self, target: str, context: Context) -> None:
        if target == HOST:
            self._compare(context)
            return
        device = self._devices[target]
        is_unsettled = self._changes.is_unsettled(target, context.now)
        refresh_s = self._refresh_s if self._has_events() else min(self._refresh_s, REFRESH_WITHOUT_EVENTS_S)
        position = list(self._devices).index(target) / max(1, len(self._devices))
        for port in device.ports:
            table = self._tables.setdefault((target, port), _Table())
            age = None if table.read_at is None else context.now - table.read_at
            is_renamed = table.labels != device.port_labels(port)
            if age is None or is_unsettled or is_renamed or age >= refresh_s:
                self._read(device, port, table, context)
                if age is None:
                    # The first full reads are together; spread those that follow.
                    table.read_at = context.now - position * refresh_s
            for family, line in table.lines:
                context.sink.line(family, line)

    def _read(self, device: RdmaDevice, port: int, table: _Table, context: Context) -> None:
        path = f"{device.path}/ports/{port}"
        entries, size = read_table(path, device.name, context.errors)
        link_layer = clean_text(read_once(f"{path}/link_layer", device.name, context.errors) or b"")
        state = read_once(f"{path}/state", device.name, context.errors) or b""
        index = nccl_index(entries, size, link_layer, self._rules)
        if table.read_at is not None:
            table.changes += sum(
                1 for i in entries.keys() | table.entries.keys() if entries.get(i) != table.entries.get(i)
            )
        if index is not None:
            # By GID, over the time when it was gone as well: a flap takes an address away and brings it elsewhere.
            gid = entries[index]
            table.moves += table.chosen.get((gid.value, gid.kind), index) != index
            table.chosen[(gid.value, gid.kind)] = index
        table.entries, table.size, table.link_layer = entries, size, link_layer
        table.is_active = state.startswith(b"4:")
        table.read_at = context.now
        table.labels = device.port_labels(port)
        table.lines = self._lines(table, index)

    def _lines(self, table: _Table, index: int | None) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        labels = table.labels
        kinds = Counter(gid.kind or "unknown" for gid in table.entries.values())
        for kind, count in sorted(kinds.items()):
            lines.append((GID_ENTRIES.name, f"{sample_prefix(GID_ENTRIES, (*labels, kind))}{count}\n"))
        for number, gid in sorted(table.entries.items())[: self._max_info]:
            values = (*labels, str(number), gid.text, gid.kind, gid.netdev)
            lines.append((GID_INFO.name, f"{sample_prefix(GID_INFO, values)}1\n"))
        lines.append((GID_CHANGES.name, f"{sample_prefix(GID_CHANGES, labels)}{table.changes}\n"))
        lines.append((GID_MOVES.name, f"{sample_prefix(GID_MOVES, labels)}{table.moves}\n"))
        v2 = roce_v2_index(table.entries)
        if v2 is not None:
            lines.append((ROCE_V2_INDEX.name, f"{sample_prefix(ROCE_V2_INDEX, labels)}{v2}\n"))
        if index is not None:
            lines.append((NCCL_INDEX.name, f"{sample_prefix(NCCL_INDEX, labels)}{index}\n"))
            chosen = table.entries[index]
            family = "infiniband" if table.link_layer == "InfiniBand" else chosen.address_family
            values = (*labels, str(index), chosen.kind, family)
            lines.append((NCCL_GID_INFO.name, f"{sample_prefix(NCCL_GID_INFO, values)}1\n"))
        return lines

    def _compare(self, context: Context) -> None:
        """Whether every active RoCE port has a GID for NCCL, all at one index."""
        active = [
            table for table in self._tables.values() if table.link_layer == "Ethernet" and table.is_active
        ]
        if active:
            indices = {
                nccl_index(table.entries, table.size, table.link_layer, self._rules) for table in active
            }
            context.sink.add(NCCL_CONSISTENT, (), int(len(indices) == 1 and None not in indices))

    def tables(self) -> Mapping[tuple[str, int], dict[int, Gid]]:
        """The entries of each (device, port) as last read."""
        return {key: table.entries for key, table in self._tables.items()}

    def close(self) -> None:
        self._tables.clear()
