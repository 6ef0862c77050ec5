"""What the commands say about input that cannot be used: what, where, and what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import UserError
from fabricpulse.remediation.command import command
from fabricpulse.remediation.receiver.payload import PayloadError, parse_alerts


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_explain_of_a_file_that_is_not_there():
    """One argument is a file, or a host that was left; who meant a host learns that a NIC belongs to it."""
    assert output_of("explain", "alert.json") == (
        "cannot read alert.json: No such file or directory; give a host and a NIC, a host that was left, or a file "
        "with an alert"
    )


def test_explain_of_something_else(tmp_path: Path):
    """JSON, but no alert."""
    (tmp_path / "a.json").write_text("[1,")
    assert "a.json is not JSON" in output_of("explain", str(tmp_path / "a.json"))
    with pytest.raises(PayloadError, match="an alert without labels"):
        parse_alerts(b'{"x": 1}')


def test_replay_of_an_export_without_deliveries(tmp_path: Path):
    """It would show two empty tables, as if the other configuration decided nothing."""
    (tmp_path / "r.yml").write_text("rules: []\n")
    line = (
        '{"kind": "transition", "id": 1, "at": 1.0, "subject": "fleet", "event": "started", "detail": {}}\n'
    )
    (tmp_path / "export").write_text(line)
    text = output_of("replay", "--config", str(tmp_path / "r.yml"), str(tmp_path / "export"))
    assert "has no deliveries; write it with `export --deliveries`" in text
