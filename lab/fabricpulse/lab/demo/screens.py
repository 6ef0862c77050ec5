"""The two ways to show a performance: lines, and a live view of the terminal."""

import time

from rich.console import Console
from rich.live import Live

from fabricpulse.lab.demo.lines import Lines
from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.result import Result
from fabricpulse.lab.demo.scenario_run import Event, ScenarioRun
from fabricpulse.lab.demo.view import View

_SAMPLE_S = 0.5
_REFRESH_PER_S = 4


class LineScreen:
    """`--headless`: everything as lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines = Lines(self._write, time.monotonic())

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, observed: Observed, run: ScenarioRun, urls: list[tuple[str, str]]) -> None:
        """Prints the URLs and starts its clock."""
        for name, url in urls:
            self._lines.line("look", f"{name}: {url}")
        self._lines.line("start", f"the run begins: {len(run.results)} milestones must be seen")

    def progress(self, text: str) -> None:
        """One line."""
        self._lines.line("prepare", text)

    def event(self, event: Event) -> None:
        """One line."""
        self._lines.event(event)

    def update(self, observed: Observed, now: float) -> None:
        """Alerts, actions, state."""
        self._lines.update(observed, now)

    def end(self, result: Result) -> None:
        """The table."""
        self._console.print()
        self._console.print(result.table())

    def staying(self, urls: list[tuple[str, str]]) -> None:
        """Says how to end it."""
        for name, url in urls:
            self._lines.line("look", f"{name}: {url}")
        self._lines.line("keep", "the lab stays up; Ctrl-C ends it")


class LiveScreen:
    """The live view; preparation and result are printed before and after it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plain = LineScreen(console)
        self._started = time.monotonic()
        self._live: Live | None = None
        self._view: View | None = None
        self._lines: Lines | None = None
        self._sampled = 0.0

    def begin(self, observed: Observed, run: ScenarioRun, urls: list[tuple[str, str]]) -> None:
        """Takes over the terminal."""
        self._view = View(observed, run, urls, self._started)
        self._lines = Lines(self._log, self._started)
        self._live = Live(self._view, console=self._console, refresh_per_second=_REFRESH_PER_S, screen=True)
        self._live.start()

    def _log(self, line: str) -> None:
        if self._view is not None:
            self._view.log(line)

    def progress(self, text: str) -> None:
        """One line, before or after the view."""
        self._plain.progress(text)

    def event(self, event: Event) -> None:
        """One line of the view's log."""
        if self._lines is not None:
            self._lines.event(event)

    def update(self, observed: Observed, now: float) -> None:
        """The view draws itself; here only its history is fed."""
        if self._lines is not None:
            self._lines.update(observed, now)
        if self._view is not None and now - self._sampled >= _SAMPLE_S:
            self._sampled = now
            self._view.sample()

    def end(self, result: Result) -> None:
        """Gives the terminal back and prints the milestones and the table."""
        self.close()
        for milestone in result.milestones:
            at = "not seen" if milestone.seen_at is None else f"{milestone.seen_at - result.started:6.2f} s"
            self._console.print(f"{at:>9}  {milestone.milestone.title}", markup=False, highlight=False)
        self._plain.end(result)

    def staying(self, urls: list[tuple[str, str]]) -> None:
        """Says how to end it."""
        self._plain.staying(urls)

    def close(self) -> None:
        """Gives the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None
