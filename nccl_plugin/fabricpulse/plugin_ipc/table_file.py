"""Files of tables that one process writes while others read: a header that places tables of fixed-size records.

Consistency. `tables_sequence` of the header and `sequence` of each record are seqlocks: odd while the writer works.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fabricpulse.core._atomic import fence
from fabricpulse.core.shm.mapping import ChangedFileError, LayoutError, SharedFile

Layout = np.dtype[np.void]
Records = NDArray[np.void]

# How long a reader waits for a change to end; a pass that collides with the writer pauses for _RETRY_S, and a writer
# holds a sequence odd for microseconds.
PATIENCE_S = 0.2
_RETRY_S = 0.0005


class TornReadError(Exception):
    """The writer stayed in the middle of a change: it died there, or the machine gave it no time."""


@dataclass(frozen=True)
class TableFileKind:
    """A layout. header : has `tables_sequence` and `tables`. most : bound of the records of each table."""

    magic: int
    version: int
    header: Layout
    tables: Mapping[int, Layout]
    most: Mapping[int, int]
    most_bytes: int


def text(value: bytes) -> str:
    """A fixed-size string of the layout; bytes that are no UTF-8 are replaced."""
    return value.decode("utf-8", "replace")


class TableFile:
    """One file, open.

    The directory is everybody's (mode 1777), so a file may be anything and change in any way while it is read: it is
    copied, not mapped, its tables are those that were checked when it was opened, and waiting is bounded by the caller.
    A bad file affects its own process only.
    """

    def __init__(self, path: Path, kind: TableFileKind) -> None:
        """Raises LayoutError for another layout, a table that leaves the file or an absurd size; OSError else."""
        self._kind = kind
        self._file = SharedFile(path, kind.magic, kind.version, kind.header.itemsize, kind.most_bytes)
        try:
            header = self.header()
            self._places: NDArray[np.void] = header["tables"].copy()
            self._check_tables()
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def owner(self) -> int:
        """User id of the file's owner."""
        return self._file.owner

    def stale(self) -> bool:
        """True when the path now names another file, or none."""
        return self._file.stale()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read_tables(
        self, patience_s: float
    ) -> tuple[np.void, dict[int, Records], dict[int, NDArray[np.intp]]]:
        """One consistent copy: the header, and of each table the records in use and their slots.

        patience_s : how long a change in progress is waited for, all together; with 0 a file at rest is still read.
        Raises TornReadError when the writer does not come out of a change, LayoutError (ChangedFileError) when the
        file has been truncated or its tables moved, OSError when it cannot be read.
        """
        deadline = time.monotonic() + patience_s
        while True:
            header = self.header()
            if not int(header["tables_sequence"]) & 1:
                fence()
                tables, slots = self._tables(deadline)
                fence()
                if self.header()["tables_sequence"] == header["tables_sequence"]:
                    return header, tables, slots
            _wait(deadline, f"{self.path}: tables keep changing, or their writer died while it changed them")

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened."""
        return self._file.size

    def place(self, table: int) -> np.void:
        """Where a table lies, from the header when the file was opened; unchecked for those not in the kind."""
        place: np.void = self._places[table]
        return place

    def raw(self, offset: int, length: int) -> bytes:
        """A copy. Raises ChangedFileError where there are fewer bytes."""
        return self._file.read(offset, length)

    def header(self) -> np.void:
        copy: np.void = np.frombuffer(self._file.read(0, self._kind.header.itemsize), self._kind.header)[0]
        return copy

    def _check_tables(self) -> None:
        for table, layout in self._kind.tables.items():
            info = self._places[table]
            record_size, capacity = int(info["record_size"]), int(info["capacity"])
            if not capacity:
                continue  # the writer is older than this table
            end = int(info["offset"]) + record_size * capacity
            if (
                record_size < layout.itemsize
                or record_size % 8
                or end > self._file.size
                or capacity > self._kind.most[table]
            ):
                raise LayoutError(
                    f"{self.path}: table {getattr(table, 'name', table)} does not fit this layout or the file"
                )

    def _tables(self, deadline: float) -> tuple[dict[int, Records], dict[int, NDArray[np.intp]]]:
        if not np.array_equal(self.header()["tables"], self._places):
            raise ChangedFileError(f"{self.path}: tables have moved since it was opened")
        tables: dict[int, Records] = {}
        slots: dict[int, NDArray[np.intp]] = {}
        for table in self._kind.tables:
            tables[table], slots[table] = self._table(table, deadline)
        return tables, slots

    def _table(self, table: int, deadline: float) -> tuple[Records, NDArray[np.intp]]:
        """The records in use and their slots.

        A seqlock over many records at a time: copies of the used part, of which the first and the last show whether the
        one between is at rest; what is not is taken again record by record.
        """
        info, layout = self._places[table], self._kind.tables[table]
        start, size, capacity = int(info["offset"]), int(info["record_size"]), int(info["capacity"])
        if not capacity:
            return np.zeros(0, layout), np.zeros(0, np.intp)
        before = self._records(start, size, capacity, layout)
        used = np.flatnonzero(before["state"])
        if not len(used):
            return np.zeros(0, layout), used
        first, count = int(used[0]), int(used[-1] - used[0]) + 1
        where = start + first * size
        fence()
        records = self._records(where, size, count, layout)[used - first]
        fence()
        sequences = before["sequence"][used]
        after = self._records(where, size, count, layout)["sequence"][used - first]
        at_rest = (sequences & 1 == 0) & (sequences == after)
        records = records.copy()
        for i in np.flatnonzero(~at_rest):
            records[i] = self._record(start + int(used[i]) * size, layout, deadline)
        taken = records["state"] != 0
        return records[taken], used[taken]

    def _records(self, start: int, size: int, count: int, layout: Layout) -> Records:
        """A copy of `count` records of `size` bytes each, as many bytes of each as the layout has."""
        data = self._file.read(start, size * count)
        return np.ndarray((count,), layout, data, 0, (size,))

    def _record(self, start: int, layout: Layout, deadline: float) -> np.void:
        """One record, copied while its sequence was even and did not change."""
        attempt = 0
        before = self._file.read(start, 4)
        while True:
            fence()
            copy = self._file.read(start, layout.itemsize)
            fence()
            after = self._file.read(start, 4)
            if after == before and not before[0] & 1:
                record: np.void = np.frombuffer(copy, layout)[0]
                return record
            before = after
            attempt += 1
            # A writer at work has moments of rest of microseconds: tried at once, and now and then after a pause.
            if attempt % 20 == 0:
                _wait(
                    deadline, f"{self.path}: a record keeps changing, or its writer died while it changed it"
                )


def _wait(deadline: float, complaint: str) -> None:
    """Pauses, or raises TornReadError with `complaint` when it is too late."""
    if time.monotonic() >= deadline:
        raise TornReadError(complaint)
    time.sleep(_RETRY_S)
