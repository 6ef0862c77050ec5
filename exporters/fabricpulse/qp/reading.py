"""From telemetry files to plain readings: which files there are, who is alive, what one process says.

The only part of the exporter that touches files and processes.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fabricpulse.core.log import get_logger
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.plugin_ipc.telemetry import (
    PluginTelemetryReader,
    TelemetrySnapshot,
    TornReadError,
    process_start_ticks,
)

log = get_logger(__name__)

# The plugin refreshes its heartbeat once a second; a loaded host may be late with it.
HEARTBEAT_FRESH_S = 5.0


class TelemetryFolder:
    """All `<name>.telemetry` of a folder. New files are found, and those of dead processes cleaned, on each look."""

    def __init__(self, folder: Path, cleanup_after_s: float, proc: Path = Path("/proc")) -> None:
        self._folder = folder
        self._cleanup_after_s = cleanup_after_s
        self._proc = proc
        self._readers: dict[Path, PluginTelemetryReader] = {}
        self._dead_since: dict[Path, float] = {}
        self._complained: set[Path] = set()
        self.errors = 0

    def look(self, now_s: float) -> tuple[list[TelemetrySnapshot], list[TelemetrySnapshot]]:
        """What living and dead processes say. now_s : CLOCK_MONOTONIC in seconds."""
        living: list[TelemetrySnapshot] = []
        dead: list[TelemetrySnapshot] = []
        paths = set(self._folder.glob("*.telemetry"))
        for path in self._readers.keys() - paths:
            self._close(path)
        self._complained &= paths
        for path in sorted(paths):
            snapshot = self._read(path)
            if snapshot is None:
                continue
            if self._alive(snapshot, now_s):
                self._dead_since.pop(path, None)
                living.append(snapshot)
            else:
                dead.append(snapshot)
                if now_s - self._dead_since.setdefault(path, now_s) >= self._cleanup_after_s:
                    self._remove(path)
        return living, dead

    def close(self) -> None:
        """Unmaps all files."""
        for path in list(self._readers):
            self._close(path)

    def _read(self, path: Path) -> TelemetrySnapshot | None:
        try:
            reader = self._readers.get(path)
            if reader is None or reader.stale():
                self._close(path)
                reader = self._readers[path] = PluginTelemetryReader(path)
            snapshot = reader.read()
        except FileNotFoundError:
            return None
        except (OSError, LayoutError, TornReadError) as error:
            self.errors += 1
            if path not in self._complained:
                self._complained.add(path)
                log.warning("telemetry cannot be read", path=str(path), error=str(error))
            return None
        self._complained.discard(path)
        return snapshot

    def _alive(self, snapshot: TelemetrySnapshot, now_s: float) -> bool:
        """A fresh heartbeat is proof, whatever PID namespace the job lives in; else the process table is asked."""
        if now_s - snapshot.heartbeat_mono_ns * 1e-9 < HEARTBEAT_FRESH_S:
            return True
        return process_start_ticks(snapshot.pid, self._proc) == snapshot.pid_start_ticks

    def _remove(self, path: Path) -> None:
        log.info("removing the telemetry of a process that is gone", path=str(path))
        self._close(path)
        for leftover in (path, path.with_suffix(".sock")):
            with suppress(OSError):
                leftover.unlink()

    def _close(self, path: Path) -> None:
        reader = self._readers.pop(path, None)
        if reader is not None:
            reader.close()
        self._dead_since.pop(path, None)


def monotonic_s() -> float:
    """CLOCK_MONOTONIC in seconds, the clock of the telemetry's `*_mono_ns`."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def readable(folder: Path) -> bool:
    """Whether the folder exists and may be listed."""
    return os.access(folder, os.R_OK | os.X_OK)


__all__: Sequence[str] = ("TelemetryFolder", "monotonic_s", "readable")
