"""GID tables: entries by type, the index that NCCL would use, and changes.

A table has 256 slots of three files each, so it is not read on every scrape: only when something says that it may have
changed (a link or address event, a changed directory) and every `refresh_s` without a reason, one device at a time.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fabricpulse.nic.collectors.contract import HOST, Context, prefix
from fabricpulse.nic.gid_rules import Gid, NcclRules, nccl_index, parse_gid, roce_v2_index
from fabricpulse.nic.inventory import RdmaDevice
from fabricpulse.nic.metrics import gid as m
from fabricpulse.nic.reader import clean_text, numbers, read_once, reason_of

_EMPTY = b"0000:0000:0000:0000:0000:0000:0000:0000\n"
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# GIDs are registered by a work queue some time after the event that causes it.
SETTLE_S = 5.0
UNTOLD_REFRESH_S = 30.0


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
    lines: list[tuple[str, str]] = field(default_factory=list)


class GidCollector:
    """One target a device, and one for the comparison of all of them.

    refresh_s : seconds after which a table is read without a reason. told : whether link and address events arrive;
    while they do not, tables are read every UNTOLD_REFRESH_S.
    """

    name = "gid"

    def __init__(
        self, rules: NcclRules, refresh_s: float, max_info: int, told: Callable[[], bool] = lambda: True
    ) -> None:
        self._told = told
        self._rules = rules
        self._refresh_s = refresh_s
        self._max_info = max_info
        self._tables: dict[tuple[str, int], _Table] = {}
        self._devices: dict[str, RdmaDevice] = {}
        self._unsettled_until: dict[str, float] = {}

    def touch(self, device: str, now: float) -> None:
        """Says that the tables of a device may change in the next seconds. now : monotonic seconds. Any thread."""
        self._unsettled_until[device] = now + SETTLE_S

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
        until = self._unsettled_until.get(target, 0.0)
        refresh_s = self._refresh_s if self._told() else min(self._refresh_s, UNTOLD_REFRESH_S)
        position = list(self._devices).index(target) / max(1, len(self._devices))
        for port in device.ports:
            table = self._tables.setdefault((target, port), _Table())
            age = None if table.read_at is None else context.now - table.read_at
            if age is None or context.now < until or age >= refresh_s:
                self._read(device, port, table, context)
                if age is None:
                    # The first full reads are together; spread those that follow.
                    table.read_at = context.now - position * refresh_s
            for family, line in table.lines:
                context.sink.line(family, line)
        if until and context.now >= until:
            self._unsettled_until.pop(target, None)

    def _read(self, device: RdmaDevice, port: int, table: _Table, context: Context) -> None:
        path = f"{device.path}/ports/{port}"
        entries, size = read_table(path, device.name, context)
        link_layer = clean_text(read_once(f"{path}/link_layer", device.name, context.faults) or b"")
        state = read_once(f"{path}/state", device.name, context.faults) or b""
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
        table.lines = self._lines((device.name, str(port)), table, index)

    def _lines(self, labels: tuple[str, str], table: _Table, index: int | None) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        kinds = Counter(gid.kind or "unknown" for gid in table.entries.values())
        for kind, count in sorted(kinds.items()):
            lines.append((m.GID_ENTRIES.name, f"{prefix(m.GID_ENTRIES, (*labels, kind))}{count}\n"))
        for number, gid in sorted(table.entries.items())[: self._max_info]:
            values = (*labels, str(number), gid.text, gid.kind, gid.netdev)
            lines.append((m.GID_INFO.name, f"{prefix(m.GID_INFO, values)}1\n"))
        lines.append((m.GID_CHANGES.name, f"{prefix(m.GID_CHANGES, labels)}{table.changes}\n"))
        lines.append((m.GID_MOVES.name, f"{prefix(m.GID_MOVES, labels)}{table.moves}\n"))
        v2 = roce_v2_index(table.entries)
        if v2 is not None:
            lines.append((m.ROCE_V2_INDEX.name, f"{prefix(m.ROCE_V2_INDEX, labels)}{v2}\n"))
        if index is not None:
            lines.append((m.NCCL_INDEX.name, f"{prefix(m.NCCL_INDEX, labels)}{index}\n"))
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
            context.sink.add(m.NCCL_CONSISTENT, (), int(len(indices) == 1 and None not in indices))

    def tables(self) -> Mapping[tuple[str, int], dict[int, Gid]]:
        """The entries of each (device, port) as last read."""
        return {key: table.entries for key, table in self._tables.items()}

    def close(self) -> None:
        self._tables.clear()


def read_table(path: str, device: str, context: Context) -> tuple[dict[int, Gid], int]:
    """The entries of a port's GID table that are not zero, and its size."""
    entries: dict[int, Gid] = {}
    size = 0
    faults = context.faults
    try:
        folder = os.open(f"{path}/gids", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return entries, 0
    except OSError as error:
        faults.add(device, f"{path}/gids", reason_of(error))
        return entries, 0
    try:
        for index in numbers(os.listdir(folder)):
            size = index + 1
            try:
                raw = _slot(str(index), folder)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENODEV):
                    faults.add(device, f"{path}/gids/{index}", reason_of(error))
                continue
            if raw == _EMPTY:
                continue
            value = parse_gid(raw.strip())
            if value is None:
                faults.add(device, f"{path}/gids/{index}", "unparsable" if raw else "empty")
            elif any(value):
                kind = clean_text(read_once(f"{path}/gid_attrs/types/{index}", device, faults) or b"")
                netdev = clean_text(read_once(f"{path}/gid_attrs/ndevs/{index}", device, faults) or b"")
                entries[index] = Gid(value, kind, netdev)
    except OSError as error:
        faults.add(device, f"{path}/gids", reason_of(error))
    finally:
        os.close(folder)
    return entries, size


def _slot(name: str, folder: int) -> bytes:
    """At most 64 bytes of a slot; nearly all are empty, so this is as bare as can be. A FIFO gives nothing at once."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        return os.read(descriptor, 64)
    finally:
        os.close(descriptor)
