"""Reports and runs in files: written whole, read within bounds, the oldest removed."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from fabricpulse.audit.model import FleetFindings, HostReport, Run
from fabricpulse.core.errors import UserError

T = TypeVar("T", HostReport, Run, FleetFindings)
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


def keep_fleet(folder: Path, findings: FleetFindings) -> None:
    """Writes `fleet.json`, in place of that of the run before. Raises UserError."""
    from fabricpulse.core.files import atomic_write  # late: `gate` only reads

    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / "fleet.json", encode(findings), mode=0o644)
    except OSError as error:
        raise UserError(
            f"cannot keep the findings in {folder}: {error.strerror}; make room or choose another folder"
        ) from error


def keep(folder: Path, name: str, data: bytes, most: int) -> Path:
    """Writes `name` (a UTC stamp, `.json`) and `last.json`, and removes all but the newest `most`. Raises UserError."""
    from fabricpulse.core.files import atomic_write  # late: `gate` only reads

    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data, mode=0o640)
        atomic_write(folder / "last.json", data, mode=0o644)
        old = sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
        for file in old[: max(0, len(old) - most)]:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot keep the audit in {folder}: {error.strerror}; make room or choose another folder"
        ) from error
    return path
