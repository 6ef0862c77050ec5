"""Tables of the command line. Every cell is text: no markup, no escape sequences."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fabricpulse.core.output import printable

# What a host that is being left, or was, waits for.
_DRAIN_WAITS_FOR = {
    "awaiting_approval": "fabricpulse remediation approve {hash}",
    "leaving": "the end of grace_s, for jobs to move away",
    "draining": "the drain command",
    "drained": "fabricpulse remediation release {host}",
    "failed": "the command failed; see to the host, then fabricpulse remediation release {host}",
    "returning": "the undo command",
}


def status_tables(
    status: dict[str, Any], targets: list[dict[str, Any]], drains: list[dict[str, Any]]
) -> None:
    """Prints problems, targets, hosts that are left, and agents. drains : those that are not over."""
    console = _console()
    for problem in status["problems"]:
        console.print(Text(printable(problem["message"]), style="bold red"))
    _print(
        console,
        ("host", "device", "desired", "phase", "changed", "hold s", "blocked by"),
        (
            (
                t["target"]["host"], t["target"]["device"], t["desired"], t["phase"], clock(t["changed_at"]),
                f"{t['hold_s']:.0f}", t["blocked"],
            )
            for t in targets
        ),
        "NICs with a decision",
    )  # fmt: skip
    if drains:
        _print(
            console,
            ("host", "phase", "changed", "alert", "waits for", "message"),
            (
                (d["host"], d["phase"], clock(d["changed_at"]), d["alert"], _drain_waits_for(d), d["message"])
                for d in drains
            ),
            "Hosts that are left",
        )
    _print(
        console,
        ("host", "last seen", "processes", "usable NICs", "unusable NICs"),
        ((a["host"], clock(a["seen_at"]), a["processes"], *_by_usability(a)) for a in status["agents"]),
        "Agents",
    )


def drain_lines(drain: dict[str, Any]) -> tuple[str, str]:
    """What became of leaving a host, and what it waits for."""
    message = f", {drain['message']}" if drain["message"] else ""
    return (
        f"{drain['host']}: {drain['phase']} since {clock(drain['changed_at'])}, {drain['reason']}{message}",
        f"next: {_drain_waits_for(drain) or 'nothing'}",
    )


def _drain_waits_for(drain: dict[str, Any]) -> str:
    words = _DRAIN_WAITS_FOR.get(drain["phase"], "").format(**drain)
    return f"{words}, stopped: {drain['blocked']}" if words and drain["blocked"] else words


def actions_table(actions: list[dict[str, Any]]) -> None:
    """Prints one row an action."""
    _print(
        _console(),
        (
            *("decided", "operation", "action", "outcome", "applied after", "processes", "predicted", "measured"),
            *("recovery", "reason", "message"),
        ),
        (
            (
                clock(a["created_at"]), a["op_id"], a["action"], a["outcome"],
                f"{a['applied_at'] - a['created_at']:.3f} s" if a["applied_at"] else "",
                a["processes"], _gain(a, "predicted"), _gain(a, "measured"), a.get("recovery", ""),
                a["reason"], a["message"],
            )
            for a in actions
        ),
    )  # fmt: skip


def journal_table(lines: list[dict[str, Any]]) -> None:
    """Prints one row a line of the journal."""
    _print(
        _console(),
        ("#", "when", "subject", "event", "detail"),
        (
            (
                line["id"], clock(line["at"]), line["subject"], line["event"],
                " ".join(f"{key}={value}" for key, value in line["detail"].items()),
            )
            for line in lines
        ),
    )  # fmt: skip


def plans_table(plans: list[dict[str, Any]]) -> None:
    """Prints one row a plan."""
    _print(
        _console(),
        ("plan", "host", "device", "action", "reason", "made", "approved by", "blocked by"),
        (
            (
                p["plan"]["hash"], p["target"]["host"], p["target"]["device"], p["plan"]["action"], p["plan"]["reason"],
                clock(p["plan"]["created_at"]), p["plan"]["approved_by"], p["blocked"],
            )
            for p in plans
        ),
    )  # fmt: skip


def replay_tables(document: dict[str, Any]) -> None:
    """Prints how often each decision was made then and would be made now, and the lines of now."""
    console = _console()
    counts = [
        Counter((line["event"], str(line["detail"].get("reason", "")) if line["event"] == "blocked" else "")
                for line in document[side])
        for side in ("was", "would_be")
    ]  # fmt: skip
    _print(
        console,
        ("decision", "guard", "was", "would be"),
        ((*key, counts[0][key], counts[1][key]) for key in sorted(counts[0].keys() | counts[1].keys())),
        f"{document['deliveries']} deliveries",
    )
    _print(
        console,
        ("when", "subject", "event", "detail"),
        (
            (
                clock(line["at"]),
                line["subject"],
                line["event"],
                " ".join(f"{k}={v}" for k, v in line["detail"].items()),
            )
            for line in document["would_be"]
        ),
        "What would be decided",
    )


def _gain(action: dict[str, Any], name: str) -> str:
    """Of a receiver that reports it."""
    return f"{action[name]:.2f} times" if action.get(name) else ""


def clock(seconds: float) -> str:
    """Seconds since 1970 as UTC, to the millisecond; "" for 0."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if seconds else ""


def _print(
    console: Console, columns: Iterable[str], rows: Iterable[Iterable[object]], title: str | None = None
) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def _by_usability(agent: dict[str, Any]) -> tuple[str, str]:
    usable = sorted(name for name, good in agent["devices"].items() if good)
    unusable = sorted(name for name, good in agent["devices"].items() if not good)
    return " ".join(usable), " ".join(unusable)


def _console() -> Console:
    """As wide as the terminal; into a pipe or a file, as wide as the lines are."""
    console = Console()
    return console if console.is_terminal else Console(width=240)
