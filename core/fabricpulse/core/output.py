"""`--output text|json` of commands that show something."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import atomic_write

OutputFormat = Literal["text", "json"]
_F = TypeVar("_F", bound=Callable[..., Any])


def output_option(function: _F) -> _F:
    """Adds `--output`; the command receives `output: OutputFormat`."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Output format.",
    )(function)


def print_json(document: Any) -> None:
    """Writes one JSON document to standard output."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def write_file(path: Path, content: bytes | str) -> None:
    """Writes what a command was asked to write, whole or not at all. Raises UserError."""
    try:
        atomic_write(path, content, durable=False)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; choose a folder that exists and is writable"
        ) from error


def require_writable(*paths: Path | None) -> None:
    """Of files that are written in the end: said before anything is done for it. Raises UserError."""
    for path in paths:
        # Path.is_dir raises PermissionError below a folder that may not be searched.
        if path is not None and (os.path.isdir(path) or not os.access(path.parent, os.W_OK)):  # noqa: PTH112
            raise UserError(f"cannot write {path}: choose a file in a folder that exists and is writable")


def printable(value: object) -> str:
    """`value` as one line that a terminal takes for text: control characters, which others may have put there, shown as
    escapes (`\\x1b`, `\\n`).
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def human_bytes(count: float) -> str:
    """Bytes for people, three digits and a decimal unit: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} PB"
