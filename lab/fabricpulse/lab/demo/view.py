"""The live view of the demo: one screen that shows the fleet, the ring, alerts and actions as they happen."""

import time
from collections import deque

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fabricpulse.lab.demo.observed import NicSeen, Observed
from fabricpulse.lab.demo.scenario_run import ScenarioRun

_STYLES = {"green": "green", "yellow": "yellow", "red": "bold red", "gray": "bright_black"}
_BARS = "▁▂▃▄▅▆▇█"
_HISTORY_CELLS = 24


class View:
    """Draws what has been observed. `log` takes the same lines that `--headless` prints."""

    def __init__(
        self, observed: Observed, run: ScenarioRun, urls: list[tuple[str, str]], started: float
    ) -> None:
        self._observed = observed
        self._run = run
        self._urls = urls
        self._started = started
        self._log: deque[str] = deque(maxlen=200)

    def log(self, line: str) -> None:
        """Adds a line to the log panel."""
        self._log.append(line)

    def sample(self) -> None:
        """Remembers the present colour of each NIC for its short history."""
        for _, nic in self._observed.nics():
            nic.history.append(nic.colour)

    def __rich__(self) -> RenderableType:
        layout = Layout()
        hosts = len(self._observed.hosts)
        layout.split_column(
            Layout(self._header(), size=2),
            Layout(name="top", size=max(hosts * 2 + 5, 12)),
            Layout(name="bottom"),
        )
        layout["top"].split_row(Layout(self._fleet(), ratio=5), Layout(self._ring(), ratio=4))
        layout["bottom"].split_row(Layout(self._steps(), ratio=5), Layout(self._events(), ratio=6))
        return layout

    def _header(self) -> RenderableType:
        urls = "  ".join(f"{name} {url}" for name, url in self._urls)
        return Text.assemble(
            ("fabricpulse demo ", "bold"), (f"{time.monotonic() - self._started:5.0f} s  ", "cyan"), urls
        )

    def _fleet(self) -> RenderableType:
        observed = self._observed
        devices = list(next(iter(observed.hosts.values())).nics) if observed.hosts else []
        table = Table(expand=True, show_edge=False, box=None)
        table.add_column("host", style="bold")
        for device in devices:
            table.add_column(device)
        table.add_column("clock error ≤", justify="right")
        for host in observed.hosts.values():
            cells = [self._nic(host.nics[device]) for device in devices]
            table.add_row(host.name, *cells, self._clock(host.clock.bound_s, host.clock.true_error_s))
        return Panel(
            table, title="NICs", subtitle="green: in use  yellow: out of service  red: lost  gray: unknown"
        )

    @staticmethod
    def _nic(nic: NicSeen) -> RenderableType:
        history = Text()
        for colour in list(nic.history)[-_HISTORY_CELLS:]:
            history.append("▪", style=_STYLES[colour])
        owd = "-" if nic.owd_s is None else f"{nic.owd_s * 1e6:.0f} µs"
        rate = "-" if nic.bytes_per_s is None else f"{nic.bytes_per_s / 1e6:.0f} MB/s"
        state = Text.assemble(("● ", _STYLES[nic.colour]), (f"{owd:>9} {rate:>9}", ""))
        return Group(state, history)

    @staticmethod
    def _clock(bound_s: float | None, true_error_s: float | None) -> RenderableType:
        if bound_s is None:
            return Text("-", style="bright_black")
        truth = "" if true_error_s is None else f"true {abs(true_error_s) * 1e6:.1f} µs"
        return Group(Text(f"{bound_s * 1e6:.1f} µs"), Text(truth, style="bright_black"))

    def _ring(self) -> RenderableType:
        workload = self._observed.workload
        bandwidth = workload.bandwidth.last
        gap = workload.longest_gap.last
        lines = [
            Text(sparkline(workload.bandwidth.values()[-60:]), style="cyan"),
            Text(f"bus bandwidth {bandwidth / 1e6:.0f} MB/s" if bandwidth is not None else "not running yet"),
            Text(
                f"round {workload.rounds}, longest gap {gap:.0f} ms"
                if gap is not None
                else f"round {workload.rounds}"
            ),
            Text(
                f"errors {workload.errors}, corrupt bytes {workload.corrupt_bytes}",
                style="green" if not workload.errors and not workload.corrupt_bytes else "bold red",
            ),
            Text(""),
        ]
        firing = [f"{a.name} {a.instance}/{a.device}" for a in self._observed.firing if a.state == "firing"]
        notified = [f"{a.name} {a.instance}/{a.device}" for a in self._observed.notified]
        lines.append(Text("Prometheus: " + (", ".join(firing) or "no alert"), style="red" if firing else ""))
        lines.append(
            Text("Alertmanager: " + (", ".join(notified) or "no alert"), style="red" if notified else "")
        )
        return Panel(Group(*lines), title="Ring all-reduce")

    def _steps(self) -> RenderableType:
        table = Table(expand=True, show_edge=False, show_header=False, box=None, padding=(0, 1))
        table.add_column(width=2)
        table.add_column(ratio=1)
        table.add_column(justify="right", width=8)
        phase = self._run.phase
        for result in self._run.results:
            if result.seen_at is not None:
                mark, style, at = "✓", "green", f"{result.seen_at - self._started:.2f} s"
            elif self._run.ended:
                mark, style, at = "✗", "bold red", ""
            elif phase is not None and phase.name == result.phase:
                mark, style, at = "…", "bold", ""
            else:
                mark, style, at = " ", "bright_black", ""
            table.add_row(
                Text(mark, style=style), Text(result.milestone.title, style=style), Text(at, style="dim")
            )
        return Panel(table, title="Scenario")

    def _events(self) -> RenderableType:
        return Panel(Columns([Text("\n".join(list(self._log)[-18:]), no_wrap=True)]), title="Events")


def sparkline(values: list[float]) -> str:
    """Values as block characters, scaled to the largest one."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1) + 0.5))] for value in values)
