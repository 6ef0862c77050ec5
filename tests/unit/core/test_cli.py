"""`fabricpulse` as a person meets it."""

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

import click
import pytest

from fabricpulse.core import cli
from fabricpulse.core.errors import ConfigError, OptionError, UserError
from fabricpulse.core.options import DaemonOptions, daemon_options
from fabricpulse.core.web.options import WebOptions


def test_a_misspelt_command_is_answered_with_the_near_one() -> None:
    """Also where it is an entry point, which the group itself does not hold."""
    for wrong, said in (("statu", "Did you mean 'status'?"), ("clocksnyc", "Did you mean 'clocksync'?")):
        done = fabricpulse(wrong)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "No such command 'xyz'." in fabricpulse("xyz").stderr


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
    """--help has a line for each installed command: the one that its own help begins with, in one sentence."""
    result = fabricpulse("--help")

    assert result.returncode == 0
    for entry in entry_points(group=cli.COMMANDS_GROUP):
        summary = entry.load().help.split("\n\n")[0].replace("\n", " ")
        assert re.search(rf"^  {entry.name} +{re.escape(summary)}$", result.stdout, re.MULTILINE)
        assert re.fullmatch(r"[A-Z][^.]{10,80}\.", summary)


def test_help_of_groups_cuts_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a narrow terminal: what a command is for is all there."""
    monkeypatch.setenv("COLUMNS", "80")
    for entry in entry_points(group=cli.COMMANDS_GROUP):
        group = entry.load()
        if not isinstance(group, click.Group):
            continue
        with click.Context(group, info_name=entry.name, terminal_width=80) as context:
            shown = " ".join(group.get_help(context).split())
            commands = [group.get_command(context, name) for name in group.list_commands(context)]
            for command in commands:
                assert command is not None
                assert command.get_short_help_str(300) in shown or command.hidden


def test_help_imports_no_component() -> None:
    """What --help says of a component is read from its source."""
    program = """
import sys
from fabricpulse.core.cli import cli
cli(["--help"], prog_name="fabricpulse", standalone_mode=False)
print("imported", sorted(name for name in sys.modules if name.startswith("fabricpulse.") and name.count(".") > 1))
"""
    result = subprocess.run(
        [sys.executable, "-Ic", program], capture_output=True, text=True, check=True, timeout=60
    )

    [line] = [line for line in result.stdout.splitlines() if line.startswith("imported")]
    assert "'fabricpulse.core.cli'" in line
    assert all(name.startswith("fabricpulse.core.") for name in re.findall(r"'([^']+)'", line))


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        (
            "fabricpulse.lab_that_is_not_here.command",
            "the installation is damaged: install fabricpulse again",
        ),
        ("fabricpulse.postgres.command", "pip install 'fabricpulse[postgres]'"),
    ],
)
def test_a_command_that_is_not_installed(module: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line of help, and the error when it is called, say what to install: the extra of its component, if any."""
    entry = EntryPoint("there", f"{module}:command", cli.COMMANDS_GROUP)
    monkeypatch.setattr(cli.EntryPointGroup, "_entry_points", lambda _: {"there": entry})

    [help_line] = [item.help for item in cli.cli.shell_complete(click.Context(cli.cli), "the")]
    assert help_line == f"Not installed here: {advice}"
    with pytest.raises(UserError, match=re.escape(f"`fabricpulse there` is not installed here: {advice}")):
        cli.cli.get_command(click.Context(cli.cli), "there")


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
    """What a person can fix comes without a traceback, with the exit code of its kind."""
    result = fabricpulse("rules", "render", "--set", "flapTreshold=1")

    assert result.returncode == OptionError.exit_code == 2
    assert result.stderr == (
        "fabricpulse: error: the mixin has no knob 'flapTreshold'; did you mean 'flapThreshold'?\n"
    )
    assert ConfigError.exit_code == 2


def completed(*words: str) -> list[str]:
    """What a real bash offers for the last word, by the script that the command prints."""
    script = fabricpulse("completion", "bash").stdout
    quoted = " ".join(map(shlex.quote, words))
    script += f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}\n_fabricpulse_completion fabricpulse\n"
    script += "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "--norc"],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": path},
    )
    return result.stdout.split()


@pytest.mark.thorough
def test_completion_in_bash() -> None:
    """Commands, subcommands and options, in the shell itself."""
    assert completed("fabricpulse", "re") == ["remediation"]
    assert completed("fabricpulse", "remediation", "st") == ["status"]
    assert completed("fabricpulse", "mesh", "show", "--tok") == ["--token-file"]


def test_completion_of_names_imports_no_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of commands come from the installed entry points; a command that is not installed is no error."""

    def load(entry: EntryPoint) -> None:
        raise AssertionError(entry)

    monkeypatch.setattr(EntryPoint, "load", load)
    items = cli.cli.shell_complete(click.Context(cli.cli), "")

    assert {"completion", *entry_points(group=cli.COMMANDS_GROUP).names} == {item.value for item in items}
    assert all(item.help for item in items)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_every_shell(shell: str) -> None:
    """The script calls back the command by the variable that it answers to, whether or not the shell is here."""
    script = fabricpulse("completion", shell).stdout

    assert f"_FABRICPULSE_COMPLETE={shell}_complete" in script
    assert "%(" not in script


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
    web += ["--web.max-request-bytes", "1048576"]
    daemon.main(
        [*web, "--config", "/x", "--log.level", "debug", "--log.format", "json"], standalone_mode=False
    )

    assert seen[0].web == WebOptions((":9610",))
    assert seen[1].web.listen == ("127.0.0.1:1", ":2")
    assert (seen[1].web.telemetry_path, seen[1].web.max_requests) == ("/telemetry", 3)
    assert seen[1].web.systemd_socket
    assert seen[1].web.max_request_bytes == 1 << 20
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
