"""Tables of the command line."""

from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def status_tables(status: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Prints pause, breakers, targets and agents."""
    console = _console()
    pause = status["pause"]
    if pause:
        console.print(f"[bold red]paused[/] by {pause['owner']}: {pause['reason']}")
    for breaker in status["breakers"]:
        console.print(f"[bold red]breaker tripped[/] ({breaker['direction']}): {breaker['reason']}")
    table = Table(title="NICs about which something was decided", title_justify="left", box=SIMPLE_HEAD)
    for column in ("host", "device", "desired", "phase", "changed", "hold s", "blocked by"):
        table.add_column(column)
    for t in targets:
        table.add_row(
            t["target"]["host"], t["target"]["device"], t["desired"], t["phase"],
            clock(t["changed_at"]), f"{t['hold_s']:.0f}", t["blocked"],
        )  # fmt: skip
    console.print(table)
    table = Table(title="Agents", title_justify="left", box=SIMPLE_HEAD)
    for column in ("host", "last seen", "processes", "usable NICs", "unusable NICs"):
        table.add_column(column)
    for a in status["agents"]:
        usable = sorted(name for name, good in a["devices"].items() if good)
        unusable = sorted(name for name, good in a["devices"].items() if not good)
        table.add_row(
            a["host"], clock(a["seen_at"]), str(a["processes"]), " ".join(usable), " ".join(unusable)
        )
    console.print(table)


def actions_table(actions: list[dict[str, Any]]) -> None:
    """Prints one row an action."""
    table = Table(box=SIMPLE_HEAD)
    for column in (
        "decided",
        "operation",
        "action",
        "outcome",
        "applied after",
        "processes",
        "reason",
        "message",
    ):
        table.add_column(column)
    for a in actions:
        after = f"{a['applied_at'] - a['created_at']:.3f} s" if a["applied_at"] else ""
        table.add_row(
            clock(a["created_at"]), a["op_id"], a["action"], a["outcome"], after, str(a["processes"]), a["reason"],
            a["message"],
        )  # fmt: skip
    _console().print(table)


def journal_table(lines: list[dict[str, Any]]) -> None:
    """Prints one row a line of the journal."""
    table = Table(box=SIMPLE_HEAD)
    for column in ("#", "when", "subject", "event", "detail"):
        table.add_column(column)
    for line in lines:
        detail = " ".join(f"{key}={value}" for key, value in line["detail"].items())
        table.add_row(str(line["id"]), clock(line["at"]), line["subject"], line["event"], detail)
    _console().print(table)


def clock(seconds: float) -> str:
    """Seconds since 1970 as UTC, to the millisecond; "" for 0."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if seconds else ""


def _console() -> Console:
    """As wide as the terminal; into a pipe or a file, as wide as the lines are."""
    console = Console()
    return console if console.is_terminal else Console(width=240)
