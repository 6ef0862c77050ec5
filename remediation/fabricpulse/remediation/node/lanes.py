"""What the sending lanes of this host's jobs do, from the plugin's telemetry files. Blocking.

Every user can write to the folder: a file may hold anything. It costs its own lanes, and only files of those who count
as users of jobs are read. Where there are more files or lanes than are read, those of the user with most are left out:
nobody keeps the lanes of another user's job from the receiver. What a file says of itself can only lead to operations
on the control socket of the same name.
"""

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from fabricpulse.core.files import named
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.core.subordinate_ids import SubordinateIds
from fabricpulse.plugin_ipc.process import parse_name
from fabricpulse.plugin_ipc.telemetry import (
    LaneState,
    PluginTelemetryReader,
    Table,
    TelemetrySnapshot,
    TornReadError,
)
from fabricpulse.remediation.protocol import MAX_LANES, LaneSample

_SENDS = 1
_MAX_FILES = 256
# Of one user: lanes, both directions, that are looked at (a report has a fraction of them), and processor time of one
# pass over the files. A file may have 16 MB.
_MOST_OF_USER = 4 * MAX_LANES
_MOST_CPU_S = 0.25
_MOST_LANES = 16_384
_PATIENCE_S = 0.05
# Between two samples at least: a rate of less time is noise.
_LEAST_S = 0.2
# Polls of what is under way: so often, but for this part of a processor at most.
_POLL_S = 0.1
_POLL_SHARE = 0.03
# Fewer polls give no share of the time.
_FEWEST_POLLS = 5

_Key = tuple[str, str, int]


@dataclass(frozen=True)
class _Counts:
    """Cumulative numbers of a lane when it was read (CLOCK_MONOTONIC, s)."""

    at_s: float
    epoch: int
    acknowledged: int
    troubles: int
    delays: int
    delay_ns: int


class LaneSampler:
    """Rates between two calls of `sample`; between them `poll` finds for how much of the time lanes are busy.

    users : whose files count, root's always do; empty for everybody's. Both may be called from any thread.
    """

    def __init__(
        self, directory: Path, users: frozenset[int] = frozenset(), ids: SubordinateIds | None = None
    ) -> None:
        """ids : of users' containers, those of this host by default."""
        self._directory = directory
        self._users = users
        self._ids = ids or SubordinateIds()
        self._chosen_last: dict[Path, int] = {}
        self._readers: dict[Path, PluginTelemetryReader] = {}
        self._before: dict[_Key, _Counts] = {}
        # Polls of a lane since the last sample, and those at which something was under way.
        self._polls: dict[_Key, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def sample(self) -> list[LaneSample]:
        """What each lane did since the last call; a lane that is new is not in it. At most MAX_LANES."""
        with self._lock:
            samples: list[LaneSample] = []
            seen: dict[_Key, _Counts] = {}
            for user, process, snapshot in self._snapshots():
                self._count_busy(process, snapshot)
                samples += [
                    msgspec.structs.replace(sample, user=max(-1, user))
                    for sample in self._lanes(process, snapshot, seen)
                ]
            self._before = seen
            self._polls = {key: polls for key, polls in self._polls.items() if key in seen}
            return samples[:MAX_LANES]

    def poll(self) -> float:
        """Samples what is under way; returns the seconds to wait before the next poll."""
        begun = time.thread_time()
        with self._lock:
            for _, process, snapshot in self._snapshots():
                self._count_busy(process, snapshot)
        return max(_POLL_S, (time.thread_time() - begun) / _POLL_SHARE)

    def _snapshots(self) -> list[tuple[int, str, TelemetrySnapshot]]:
        """User, process and contents of the files, those of users with few lanes first. Below -1: an id of which the
        user is not known."""
        paths = self._chosen()
        for path in self._readers.keys() - paths.keys():
            self._readers.pop(path).close()
        # Of each user: one whose files are never at rest must not use up the time for those of others.
        patience = dict.fromkeys(paths.values(), _PATIENCE_S / max(1, len(set(paths.values()))))
        lanes, cpu_s = Counter[int](), dict.fromkeys(paths.values(), 0.0)
        found = []
        for path, user in paths.items():
            left = _MOST_OF_USER - lanes[user]
            if left <= 0 or cpu_s[user] > _MOST_CPU_S:
                continue
            begun, begun_cpu = time.monotonic(), time.thread_time()
            snapshot = self._read(path, max(0.0, patience[user]))
            patience[user] -= time.monotonic() - begun
            cpu_s[user] += time.thread_time() - begun_cpu
            if snapshot is not None:
                found.append((user, path.stem, _with_lanes(snapshot, left)))
                lanes[user] += min(left, len(snapshot.tables[Table.LANES]))
        found.sort(key=lambda each: (lanes[each[0]], each[:2]))
        return found

    def _chosen(self) -> dict[Path, int]:
        """The files to read, with their users: the oldest of each user, then the second of each, and so on. Those of
        the last time where the folder cannot be read."""
        found: dict[Path, tuple[int, int]] = {}
        try:
            paths = named(self._directory, ".telemetry")
        except OSError:  # no descriptor is left; jobs have not ended for that
            return self._chosen_last
        for path in paths:
            if parse_name(path.stem) is None:
                continue
            with suppress(OSError):
                status = os.lstat(path)
                found[path] = status.st_uid, status.st_ctime_ns
        owners = self._ids.owners({path: uid for path, (uid, _) in found.items()})
        of_user: dict[int, list[tuple[int, Path]]] = {}
        for path, (uid, changed_ns) in found.items():
            of_user.setdefault(owners.get(path, -uid - 2), []).append((changed_ns, path))
        ranked = sorted(
            (rank, changed_ns, path, user)
            for user, files in of_user.items()
            for rank, (changed_ns, path) in enumerate(sorted(files))
        )
        self._chosen_last = {path: user for _, _, path, user in ranked[:_MAX_FILES]}
        return self._chosen_last

    def _count_busy(self, process: str, snapshot: TelemetrySnapshot) -> None:
        connections = _connections(snapshot)
        records = snapshot.tables[Table.LANES]
        for slot, index, direction, under_way in zip(
            records["connection"].tolist(),
            records["index"].tolist(),
            records["direction"].tolist(),
            records["in_flight_bytes"].tolist(),
            strict=True,
        ):
            identity = connections.get(slot)
            if direction != _SENDS or identity is None or len(self._polls) >= _MOST_LANES:
                continue
            key = (process, f"{identity:016x}", index & 4095)
            polls, busy = self._polls.get(key, (0, 0))
            self._polls[key] = polls + 1, busy + (under_way > 0)

    def close(self) -> None:
        """Closes all files."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def _read(self, path: Path, patience_s: float) -> TelemetrySnapshot | None:
        try:
            reader = self._readers.get(path)
            if reader is None or reader.stale():
                if reader is not None:
                    self._readers.pop(path).close()
                reader = PluginTelemetryReader(path)
                if self._users and reader.owner not in self._users and reader.owner != 0:
                    reader.close()
                    return None
                self._readers[path] = reader
            return reader.read(patience_s)
        except TornReadError:
            return None
        except (OSError, LayoutError):
            if path in self._readers:
                self._readers.pop(path).close()
            return None

    def _lanes(
        self, process: str, snapshot: TelemetrySnapshot, seen: dict[_Key, _Counts]
    ) -> list[LaneSample]:
        devices = snapshot.device_names()
        speeds = {
            int(slot): int(record["speed_mbps"]) * 125_000.0
            for slot, record in zip(
                snapshot.slots[Table.DEVICES], snapshot.tables[Table.DEVICES], strict=True
            )
        }
        connections = _connections(snapshot)
        now = time.monotonic()
        samples = []
        for record in snapshot.tables[Table.LANES]:
            device = devices.get(int(record["device"]), "")
            identity = connections.get(int(record["connection"]))
            if int(record["direction"]) != _SENDS or not device or identity is None:
                continue
            key = (process, f"{identity:016x}", int(record["index"]) & 4095)
            before, counts = self._before.get(key), _counts(record, now)
            if before is not None and now - before.at_s < _LEAST_S:
                seen[key] = before
                continue
            seen[key] = counts
            carries = int(record["state"]) in (LaneState.UP, LaneState.SLOW_START)
            if before is not None and carries:
                speed = speeds.get(int(record["device"]), 0.0)
                polls, busy = self._polls.pop(key, (0, 0))
                part = busy / polls if polls >= _FEWEST_POLLS else -1.0
                samples.append(_sample(key, snapshot.workload, device, speed, part, record, before, counts))
        return samples


def _with_lanes(snapshot: TelemetrySnapshot, most: int) -> TelemetrySnapshot:
    """With what is needed here alone, and so many lanes at most: all files are held at once."""
    kept = (Table.DEVICES, Table.CONNECTIONS, Table.LANES)
    tables = {table: snapshot.tables[table] for table in kept}
    slots = {table: snapshot.slots[table] for table in kept}
    tables[Table.LANES], slots[Table.LANES] = tables[Table.LANES][:most], slots[Table.LANES][:most]
    return replace(snapshot, tables=tables, slots=slots)


def _connections(snapshot: TelemetrySnapshot) -> dict[int, int]:
    slots, records = snapshot.slots[Table.CONNECTIONS], snapshot.tables[Table.CONNECTIONS]
    return dict(zip(slots.tolist(), records["id"].tolist(), strict=True))


def _counts(record: np.void, now: float) -> _Counts:
    delay = record["delay"]
    return _Counts(
        now,
        int(record["epoch"]),
        int(record["acknowledged_bytes"]),
        int(record["retransmits"]) + int(record["ecn_marked"]),
        int(delay["count"]),
        int(delay["sum_ns"]),
    )


def _sample(
    key: tuple[str, str, int],
    workload: str,
    device: str,
    speed: float,
    busy: float,
    record: np.void,
    before: _Counts,
    after: _Counts,
) -> LaneSample:
    """Differences, 0 where a counter has decreased: a file may hold anything."""
    span_s = after.at_s - before.at_s
    chunks = after.delays - before.delays
    delay_s = (after.delay_ns - before.delay_ns) * 1e-9 / chunks if chunks > 0 else -1.0
    return LaneSample(
        process=key[0],
        connection=key[1],
        lane=key[2],
        workload=workload[:128],
        device=device[:64],
        entropy=int(record["entropy"]),
        weight=int(record["weight"]),
        goodput=min(1e15, max(0, after.acknowledged - before.acknowledged) / span_s),
        capacity=min(1e15, float(record["delivery_rate"])),
        delay_s=min(1e6, max(-1.0, delay_s)),
        troubles=min(2**53, max(0, after.troubles - before.troubles)),
        repaths=min(2**53, int(record["repaths"])),
        nic_speed=min(1e15, speed),
        busy=busy,
    )
