"""Reports and runs in files: written whole, read within bounds, the oldest removed."""

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from fabricpulse.audit.model import FleetFindings, HostReport, Run
from fabricpulse.core.errors import UserError

T = TypeVar("T", HostReport, Run, FleetFindings)
MOUNTS = Path("/proc/self/mountinfo")
LAST, FLEET = "last.json", "fleet.json"
# Of 1,000 hosts with 100 outcomes each: about 40 MB.
MOST_BYTES = 1 << 29
_NAME = re.compile(r"\d{8}T\d{6}Z[\w.-]{0,32}\.json", re.ASCII)


def stamp_name(now: float) -> str:
    """Name of the file of what began at `now`, Unix seconds: 20261122T193005Z.json."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}.json"


def encode(document: HostReport | Run | FleetFindings) -> bytes:
    """One JSON document."""
    return msgspec.json.encode(document)


def decode(data: bytes, kind: type[T], what: str) -> T:
    """The report or run. Raises UserError for what no audit has written."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(
            f"{what} is no {kind.__name__} of an audit: {error}; make one with `fabricpulse audit`"
        ) from error


def is_there(path: Path) -> bool:
    """Raises UserError where that is not known: Path.exists() takes each error for "no", from Python 3.14 on."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot look for {path}: {error.strerror}") from error
    return True


def read(path: Path, kind: type[T]) -> T:
    """Raises UserError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the file of a run") from error
    if len(data) > MOST_BYTES:
        raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MiB; no audit is")
    return decode(data, kind, str(path))


def keep_fleet(folder: Path, findings: FleetFindings) -> FleetFindings:
    """Writes `fleet.json`, with what is still open of that of the run before. What is kept. Raises UserError; then what
    was there decides nothing any more."""
    from fabricpulse.audit.still_open import with_open_findings  # late: `gate` only reads

    try:
        whole = with_open_findings(_before(folder, FLEET, FleetFindings), findings)
        _write(folder, {FLEET: (encode(whole), 0o644)})
    except OSError as error:
        set_aside(folder, FLEET)
        raise _cannot_keep(folder, error) from error
    (folder / lost(FLEET)).unlink(missing_ok=True)
    return whole


def keep_report(folder: Path, report: HostReport, most: int) -> HostReport:
    """Writes the report under its time and as `last.json`, with what is still open of the report before, and removes
    all but the newest `most`. The report as it is kept. Raises UserError; then the report before decides nothing any
    more."""
    from fabricpulse.audit.still_open import report_with_open_findings  # late: `gate` only reads

    whole = None
    try:
        whole = report_with_open_findings(_before(folder, LAST, HostReport), report)
        data = encode(whole)
        # The result that counts first: what it replaces may be better than what is true.
        _write(folder, {LAST: (data, 0o644)})
        (folder / lost(LAST)).unlink(missing_ok=True)
        _write(folder, {stamp_name(report.collected_at): (data, 0o640)})
        old = sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
        for file in old[: max(0, len(old) - most)]:
            file.unlink(missing_ok=True)
    except OSError as error:
        if whole is None or not _has(folder, whole):
            set_aside(folder, LAST)
        raise _cannot_keep(folder, error) from error
    return whole


def lost(name: str) -> str:
    """Name of a result that is out of force, as a later one could not be written: a full disk has room for a name."""
    return f"{name.removesuffix('.json')}.lost.json"


def set_aside(folder: Path, name: str) -> None:
    """Takes a result out of force."""
    try:
        (folder / name).replace(folder / lost(name))
    except FileNotFoundError:
        return
    except OSError:
        with suppress(OSError):
            (folder / name).unlink()


def is_read_only(folder: Path) -> bool:
    """Whether its file system takes no writes any more, from anybody (remounted after an error, say), so that what is
    there may be older than what was found last. A mount of it that only this process may not write to is another
    thing."""
    try:
        device = folder.stat().st_dev
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # proc_pid_mountinfo(5): the third field is the device, the last one the options of the file system.
    rows = [line.split() for line in lines]
    return any("ro" in row[-1].split(",") for row in rows if len(row) > 3 and row[2] == wanted)


def _before(folder: Path, name: str, kind: type[T]) -> T | None:
    """None where there is none, or it makes no sense. Raises OSError where it is there and cannot be read: what it has
    found is still open.
    """
    for file in (name, lost(name)):
        try:
            return read(folder / file, kind)
        except UserError as error:
            why = error.__cause__
            if isinstance(why, OSError) and not isinstance(why, FileNotFoundError):
                # Where it is once it is out of force.
                raise _UnreadableError(why.errno, why.strerror, str(folder / lost(name))) from error
    return None


def _has(folder: Path, report: HostReport) -> bool:
    try:
        return _before(folder, LAST, HostReport) == report
    except OSError:
        return False


def _write(folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
    from fabricpulse.core.files import atomic_write  # late: `gate` only reads

    folder.mkdir(parents=True, exist_ok=True)
    for name, (data, mode) in files.items():
        atomic_write(folder / name, data, mode=mode)


class _UnreadableError(OSError):
    """Of a result that is there."""


def _cannot_keep(folder: Path, error: OSError) -> UserError:
    if isinstance(error, _UnreadableError):
        return UserError(
            f"cannot keep the audit: {error.filename} may have errors that are still open, and cannot be read: "
            f"{error.strerror}; repair the disk, or remove the file, and audit again"
        )
    return UserError(
        f"cannot keep the audit in {folder}: {error.strerror}; make room or choose another folder"
    )
