"""`fabricpulse` as a person meets it."""

import os
import subprocess
import sys
from importlib.metadata import entry_points, version

import click
import pytest

from fabricpulse.core import cli
from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.web.options import WebOptions


def fabricpulse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-Im", "fabricpulse.core.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"COLUMNS": "200"},
    )


def test_help_lists_every_command() -> None:
    """--help has a line for each installed command, without importing any."""
    result = fabricpulse("--help")

    assert result.returncode == 0
    for entry in entry_points(group=cli.COMMANDS_GROUP):
        assert f"  {entry.name} " in result.stdout
        assert cli.SUMMARIES[entry.name] in result.stdout


def test_version() -> None:
    """--version says which one it is."""
    assert fabricpulse("--version").stdout.strip() == f"fabricpulse, version {version('fabricpulse')}"


def test_unknown_command() -> None:
    """A command that does not exist is a usage error, exit code 2."""
    result = fabricpulse("mash")

    assert result.returncode == 2
    assert "mash" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_users_mistake_is_one_sentence() -> None:
    """What a person can mend comes without a traceback, with the exit code of its kind."""
    result = fabricpulse("rules", "render", "--set", "flapTreshold=1")

    assert result.returncode == UserError.exit_code == 1
    assert result.stderr == (
        "fabricpulse: error: the mixin has no knob 'flapTreshold'; did you mean 'flapThreshold'?\n"
    )
    assert ConfigError.exit_code == 2


def test_daemon_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every daemon takes the same options; the address defaults to its own port and may be repeated."""
    seen: list[DaemonOptions] = []

    @click.command()
    @daemon_options(":9610")
    @click.option("--more", default=1)
    def daemon(options: DaemonOptions, more: int) -> None:
        seen.append(options)
        assert more == 1

    monkeypatch.setattr("fabricpulse.core.options.configure_logging", lambda *_: None)
    daemon.main([], standalone_mode=False)
    web = ["--web.listen-address", "127.0.0.1:1", "--web.listen-address", ":2"]
    web += ["--web.telemetry-path", "/telemetry", "--web.max-requests", "3", "--web.systemd-socket"]
    daemon.main(
        [*web, "--config", "/x", "--log.level", "debug", "--log.format", "json"], standalone_mode=False
    )

    assert seen[0].web == WebOptions((":9610",))
    assert seen[1].web.listen == ("127.0.0.1:1", ":2")
    assert (seen[1].web.telemetry_path, seen[1].web.max_requests) == ("/telemetry", 3)
    assert seen[1].web.systemd_socket
    assert str(seen[1].config) == "/x"
    assert (seen[1].log_level, seen[1].log_format) == ("debug", "json")


@pytest.mark.parametrize("path", ["metrics", "/{x}", "/a b", "/-/ready", "/api/v1/x", ""])
def test_bad_telemetry_path(path: str) -> None:
    """A path that cannot be served, or that is taken, is refused when the command line is read."""

    @click.command()
    @daemon_options(":9610")
    def daemon(options: DaemonOptions) -> None:
        raise AssertionError(options)

    with pytest.raises(click.BadParameter, match=r"is no path|is taken"):
        daemon.main(["--web.telemetry-path", path], standalone_mode=False)
