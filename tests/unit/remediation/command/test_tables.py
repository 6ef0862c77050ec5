"""Text from elsewhere is text, in tables and in messages."""

import io
from typing import Any

import pytest
from rich.console import Console

from fabricpulse.core.output import printable
from fabricpulse.remediation import tables

HOSTILE = "[/x] [bold red]all is well[/] \x1b[2J\x1b]0;title\x07 \u009b31m\r\nroot"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal would get."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=400, color_system=None)
    monkeypatch.setattr(tables, "_console", lambda: console)
    return output


def assert_plain(text: str) -> None:
    assert "[/x] [bold red]all is well[/] \\x1b[2J\\x1b]0;title\\x07 \\x9b31m\\r\\nroot" in text
    assert not set(text) & set("\x1b\x07\x9b\r")


def test_printable_keeps_what_can_be_seen():
    """Letters of any script stay; what moves a cursor or hides text becomes an escape."""
    assert printable("Grüße 機械") == "Grüße 機械"
    assert printable("a\u202eb\tc") == "a\\u202eb\\tc"
    assert printable(7) == "7"


def test_status(shown: io.StringIO) -> None:
    """A reason for a pause with markup in it crashed the command; a host's name could clear the screen."""
    agent: dict[str, Any] = {"host": HOSTILE, "seen_at": 0.0, "processes": 1, "devices": {HOSTILE: True}}
    target = {
        "target": {"host": "h0", "device": HOSTILE}, "desired": "avoid", "phase": "avoided", "changed_at": 0.0,
        "hold_s": 1.0, "blocked": "",
    }  # fmt: skip
    problem = {"code": "paused", "message": f"paused by ada: {HOSTILE}"}
    tables.status_tables({"problems": [problem], "agents": [agent]}, [target], [])
    assert_plain(shown.getvalue())
    assert shown.getvalue().count("[/x]") == 4


def test_hosts_that_are_left(shown: io.StringIO) -> None:
    """A drained host was in no table; what the drain command said is text from elsewhere."""
    drain = {
        "host": "h0", "phase": "drained", "changed_at": 1.0, "alert": "FabricHostDown", "reason": "r", "hash": "",
        "blocked": "", "message": HOSTILE,
    }  # fmt: skip
    tables.status_tables({"problems": [], "agents": []}, [], [drain])
    assert_plain(shown.getvalue())
    assert "fabricpulse remediation release h0" in shown.getvalue()
    assert tables.drain_lines(drain)[1] == "next: fabricpulse remediation release h0"
    waiting = drain | {"phase": "awaiting_approval", "hash": "1d07", "blocked": "paused"}
    assert tables.drain_lines(waiting)[1] == "next: fabricpulse remediation approve 1d07, stopped: paused"
    assert tables.drain_lines(drain | {"phase": "returned"})[1] == "next: nothing"


def test_actions_and_journal(shown: io.StringIO) -> None:
    """The error text of a process, and whatever a line of the journal holds."""
    action = {
        "created_at": 1.0, "op_id": "o", "action": "nic.avoid", "outcome": "refused", "applied_at": 0.0,
        "processes": 0, "reason": "r", "message": HOSTILE,
    }  # fmt: skip
    tables.actions_table([action, action | {"predicted": 1.5, "measured": 1.449, "recovery": "recovered"}])
    assert_plain(shown.getvalue())
    assert all(text in shown.getvalue() for text in ("1.50 times", "1.45 times", "recovered"))
    line = {"id": 1, "at": 1.0, "subject": "h0/rail0", "event": "refused", "detail": {"message": HOSTILE}}
    tables.journal_table([line])
    assert shown.getvalue().count("[/x]") == 3
    assert_plain(shown.getvalue())
