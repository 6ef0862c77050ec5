"""Installs files, never over one that was changed."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
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
    """Writes what is missing and, with `replace`, what differs, whose former content goes to `<path>.old`.

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
                atomic_write(path.with_name(f"{path.name}.old"), path.read_bytes())
            atomic_write(path, placing.text)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    return written
