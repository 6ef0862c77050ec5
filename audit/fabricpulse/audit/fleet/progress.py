"""What a run shows while it lasts: a bar on a terminal, a line now and then elsewhere; and whom it waits for."""

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fabricpulse.core.output import printable

# Where there is no terminal, seconds between lines; a run that is shorter prints none.
LINE_S = 10.0
# Hosts that are named when no more than these are waited for.
MOST_NAMED = 3


def few(waits: Collection[str]) -> str:
    """The names of those that are waited for, "" while they are many."""
    return ", ".join(sorted(waits)) if len(waits) <= MOST_NAMED else ""


class Shown:
    """What is shown of one phase. silent : hosts that have not answered."""

    def __init__(self, phase: str, bar: Progress | None) -> None:
        self._phase = phase
        self._bar = bar
        self._task = bar.add_task("", total=None, silent=0, waits="") if bar else None
        self._next_line = time.monotonic() + LINE_S
        self.silent = 0

    def update(self, what: str, done: int, of: int, waits: str) -> None:
        """what : is under way. done, of : of it. waits : for whom, "" for nobody in particular."""
        if self._bar is not None and self._task is not None:
            text = f"waits for {waits}" if waits else ""
            self._bar.update(
                self._task,
                description=what,
                completed=done,
                total=of,
                silent=self.silent,
                waits=printable(text),
            )
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_S
            text = f"{self._phase}: {what}, {done} of {of}"
            text += f", {self.silent} silent" if self.silent else ""
            click.echo(printable(f"{text}, waits for {waits}" if waits else text), err=True)


@contextmanager
def showing(phase: str) -> Iterator[Shown]:
    """Shows one phase of a run on standard error."""
    if not sys.stderr.isatty():
        yield Shown(phase, None)
        return
    with Progress(
        TextColumn(phase),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[silent]} silent"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[waits]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        yield Shown(phase, bar)
