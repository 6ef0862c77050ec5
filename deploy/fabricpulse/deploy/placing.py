"""Installs files, never over one that was changed."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import atomic_write


class State(Enum):
    """What is at a file's place."""

    MISSING = "new"
    SAME = "same"
    DIFFERENT = "differs"


@dataclass(frozen=True)
class Placing:
    """One file that is to be at `path` with `text`, and what is there now."""

    path: Path
    text: str
    state: State


def plan(wanted: Iterable[tuple[Path, str]]) -> list[Placing]:
    """What is there of (path, text). Raises UserError for a place that cannot be read."""
    found = []
    for path, text in wanted:
        try:
            state = State.SAME if path.read_text(encoding="utf-8") == text else State.DIFFERENT
        except FileNotFoundError:
            state = State.MISSING
        except UnicodeDecodeError:
            state = State.DIFFERENT
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        found.append(Placing(path, text, state))
    return found


def apply(placings: Iterable[Placing], *, replace: bool) -> list[Path]:
    """Writes what is missing and, with `replace`, what differs, whose former file is then `<path>.old`, or `.old2` and
    so on where one is there with other content. Mode and owner stay: settings may hold a password.

    Returns the paths written. Raises UserError at the first that cannot be written; those before it stay written.
    """
    written = []
    for placing in placings:
        if placing.state is State.SAME or (placing.state is State.DIFFERENT and not replace):
            continue
        path = placing.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if placing.state is State.DIFFERENT:
                _replace(path, placing.text)
            else:
                atomic_write(path, placing.text)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    return written


def _replace(path: Path, text: str) -> None:
    """Raises OSError; the former file is at its place then."""
    former, status = path.read_bytes(), path.stat()
    for number in count(1):
        old = path.with_name(f"{path.name}.old{number if number > 1 else ''}")
        try:
            if old.read_bytes() == former:
                break
        except FileNotFoundError:
            _write_like(old, former, status)
            break
    _write_like(path, text.encode(), status)


def _write_like(path: Path, content: bytes, status: os.stat_result) -> None:
    """At no moment for other readers than the former file."""
    atomic_write(path, content, mode=stat.S_IMODE(status.st_mode), owner=(status.st_uid, status.st_gid))
