"""From telemetry files of the plugin and the verbs interposer to snapshots: which there are, who lives, what they say.

For exporters: nothing else of them touches these files and processes. The folder is everybody's (mode 1777): a local
user may put anything into it. Whatever that is costs its own series and a reported error; for the others only so many
files of a user are read, a file that its writer left in the middle of a change is waited for once, and files that an
owner left behind are removed with that owner's other files alone.
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from fabricpulse.core.log import get_logger
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.plugin_ipc.telemetry import (
    PluginTelemetryReader,
    Records,
    Table,
    TelemetrySnapshot,
    TornReadError,
    process_start_ticks,
)
from fabricpulse.plugin_ipc.verbs import VerbsSnapshot, VerbsTelemetryReader

log = get_logger(__name__)

# The plugin refreshes its heartbeat once a second; a loaded host may be late with it.
HEARTBEAT_FRESH_S = 5.0
# A heartbeat of the future proves nothing: CLOCK_MONOTONIC is the machine's, and was read after the file.
HEARTBEAT_AHEAD_S = 1.0
# Files of one user that are read: more than processes of a job run on a host, by far.
FILES_PER_OWNER = 512
# How long one poll waits for changes in progress, of all files together.
POLL_PATIENCE_S = 0.25


class _Snapshot(Protocol):
    @property
    def owner(self) -> int:
        """User id of the file's owner."""


S = TypeVar("S", bound=_Snapshot)
S_co = TypeVar("S_co", bound=_Snapshot, covariant=True)


class _Reader(Protocol[S_co]):
    def read(self, patience_s: float) -> S_co:
        """One consistent copy."""

    def stale(self) -> bool:
        """True when the path now names another file, or none."""

    def close(self) -> None:
        """Closes the file."""


class Folder(Generic[S]):
    """All files of one kind in a folder. New ones are found, and those of dead processes removed, at each poll.

    errors : files that could not be read, counted at each poll.
    """

    suffix: str

    def __init__(self, folder: Path, cleanup_after_s: float, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._cleanup_after_s = cleanup_after_s
        self._proc = proc
        self._readers: dict[Path, _Reader[S]] = {}
        self._dead_since: dict[Path, float] = {}
        self._logged: set[Path] = set()
        self._torn: set[Path] = set()
        self._crowded: set[int] = set()
        self.errors = 0

    def open_reader(self, path: Path) -> _Reader[S]:
        """Opens a file. Raises OSError or LayoutError."""
        raise NotImplementedError

    def alive(self, snapshot: S, now_s: float) -> bool:
        """Whether the writer lives."""
        raise NotImplementedError

    def poll(self, now_s: float) -> tuple[list[S], list[S]]:
        """What living and dead processes say. now_s : CLOCK_MONOTONIC in seconds. Raises nothing for a file's state."""
        living: list[S] = []
        dead: list[S] = []
        paths = self._paths()
        for path in self._readers.keys() - paths:
            self._close(path)
        self._logged &= paths
        self._torn &= paths
        patience_ends = time.monotonic() + POLL_PATIENCE_S
        for path in sorted(paths):
            snapshot = self._read(path, patience_ends)
            if snapshot is None:
                continue
            if self.alive(snapshot, now_s):
                self._dead_since.pop(path, None)
                living.append(snapshot)
            else:
                dead.append(snapshot)
                if now_s - self._dead_since.setdefault(path, now_s) >= self._cleanup_after_s:
                    self._remove(path, snapshot.owner)
        return living, dead

    def close(self) -> None:
        """Closes all files."""
        for path in list(self._readers):
            self._close(path)

    def _paths(self) -> set[Path]:
        """The telemetry files, at most FILES_PER_OWNER of each user, those that are read already first."""
        found: list[tuple[bool, str, int]] = []
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(self.suffix) and not entry.name.startswith("."):
                    with suppress(OSError):
                        owner = entry.stat(follow_symlinks=False).st_uid
                        found.append((self._folder / entry.name not in self._readers, entry.name, owner))
        taken: Counter[int] = Counter()
        paths = set()
        for _, name, owner in sorted(found):
            taken[owner] += 1
            if taken[owner] <= FILES_PER_OWNER:
                paths.add(self._folder / name)
        crowded = {owner: count for owner, count in taken.items() if count > FILES_PER_OWNER}
        for owner, count in crowded.items():
            self.errors += count - FILES_PER_OWNER
            if owner not in self._crowded:
                log.warning(
                    "a user has too many telemetry files", uid=owner, files=count, read=FILES_PER_OWNER
                )
        self._crowded = set(crowded)
        return paths

    def _read(self, path: Path, patience_ends: float) -> S | None:
        # What was torn at the last poll is waited for no more: its writer died, or wants us to wait.
        patience_s = 0.0 if path in self._torn else max(0.0, patience_ends - time.monotonic())
        try:
            reader = self._readers.get(path)
            if reader is None or reader.stale():
                self._close(path)
                reader = self._readers[path] = self.open_reader(path)
            snapshot = reader.read(patience_s)
        except FileNotFoundError:
            return None
        except TornReadError as error:
            self._torn.add(path)
            self._failed(path, str(error))
            return None
        except (OSError, LayoutError) as error:
            # Opened anew next time: what it is by then decides.
            self._close(path)
            self._failed(path, str(error))
            return None
        self._logged.discard(path)
        self._torn.discard(path)
        return snapshot

    def _failed(self, path: Path, reason: str) -> None:
        self.errors += 1
        if path not in self._logged:
            self._logged.add(path)
            log.warning("telemetry cannot be read", path=str(path), reason=reason)

    def _remove(self, path: Path, owner: int) -> None:
        log.info("removing the telemetry of a process that is gone", path=str(path))
        self._close(path)
        for leftover in (path, path.with_suffix(".sock")) if self.suffix == ".telemetry" else (path,):
            with suppress(OSError):
                status = leftover.lstat()
                # A made-up telemetry file must not cost another user's job its control socket.
                if status.st_uid == owner and (stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
                    leftover.unlink()

    def _close(self, path: Path) -> None:
        reader = self._readers.pop(path, None)
        if reader is not None:
            reader.close()
        self._dead_since.pop(path, None)


class TelemetryFolder(Folder[TelemetrySnapshot]):
    """All `<name>.telemetry` of the plugin. tables : what is read of each."""

    suffix = ".telemetry"

    tables: Collection[Table] = frozenset(Table)

    def open_reader(self, path: Path) -> PluginTelemetryReader:
        """Opens a file. Raises OSError or LayoutError."""
        return PluginTelemetryReader(path, self.tables)

    def rings(self, workload: str) -> list[tuple[TelemetrySnapshot, Records, Records]]:
        """Of each process of a workload that the last poll has read: what its EVENTS and OPERATIONS hold now."""
        found = []
        for _, reader in sorted(self._readers.items()):
            # A file that cannot be read now was reported by the poll, or will be by the next.
            with suppress(OSError, LayoutError, TornReadError):
                snapshot = reader.read(0.01)
                if snapshot.workload == workload and isinstance(reader, PluginTelemetryReader):
                    found.append((snapshot, reader.ring(Table.EVENTS), reader.ring(Table.OPERATIONS)))
        return found

    def alive(self, snapshot: TelemetrySnapshot, now_s: float) -> bool:
        """A fresh heartbeat is proof, whatever PID namespace the job lives in; else the process table is asked."""
        age_s = now_s - snapshot.heartbeat_mono_ns * 1e-9
        if -HEARTBEAT_AHEAD_S < age_s < HEARTBEAT_FRESH_S:
            return True
        return process_start_ticks(snapshot.pid, self._proc) == snapshot.pid_start_ticks


class VerbsFolder(Folder[VerbsSnapshot]):
    """All `<name>.verbs` of the interposer."""

    suffix = ".verbs"

    def open_reader(self, path: Path) -> VerbsTelemetryReader:
        """Opens a file. Raises OSError or LayoutError."""
        return VerbsTelemetryReader(path)

    def alive(self, snapshot: VerbsSnapshot, now_s: float) -> bool:
        """Its lock is proof, whatever PID namespace the program lives in."""
        return snapshot.running


def monotonic_s() -> float:
    """CLOCK_MONOTONIC in seconds, the clock of the telemetry's `*_mono_ns`."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
