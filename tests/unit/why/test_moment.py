"""Moments as people type them."""

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import OptionError
from fabricpulse.why.command import command
from fabricpulse.why.moment import parse_moment

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "moment_s"),
    [
        ("-15m", NOW_S - 900),
        ("-1d", NOW_S - 86_400),
        ("1700000000", 1.7e9),
        ("1700000000.5", 1700000000.5),
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T01:00:00+01:00", 1767225600.0),
        ("2026-01-01 00:00", 1767225600.0),
    ],
)
def test_understood(text: str, moment_s: float) -> None:
    """Relative, seconds, RFC 3339; without an offset UTC."""
    assert parse_moment("--at", text, NOW_S) == moment_s


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5", "nan", "inf", "1e9", "-1y", "٣", "2100-01-01", "1969-01-01"]
)
def test_refused(text: str) -> None:
    """Anything else, and the future, is a sentence."""
    with pytest.raises(OptionError, match="--at: "):
        parse_moment("--at", text, NOW_S)


@pytest.mark.parametrize(
    "options",
    [
        ("--at", "yesterday"),
        ("--at", "2100-01-01"),
        ("--at", ""),
        ("--between", "-1h", "now"),
        ("--between", "-1h", "-2h"),
    ],
)
def test_a_wrong_moment_is_a_wrong_option(options: tuple[str, ...]) -> None:
    """Of the command: no answer about the job, which has the exit code 1 where Prometheus does not answer."""
    result = CliRunner().invoke(command, ["job", *options])
    assert isinstance(result.exception, OptionError)
    assert str(result.exception).startswith(f"{options[0]}: ")
    assert result.exception.exit_code == 2
