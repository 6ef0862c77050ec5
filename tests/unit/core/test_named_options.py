"""Options that messages name exist: who follows the advice must not meet "no such option"."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from fabricpulse.core.cli import cli

ROOT = Path(__file__).parents[3]
# Not the beginning of one that goes on with a value: f"--nic.{option}".
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9](?!\w)(?!\.$)")
_OF_OTHER_PROGRAMS = {"--create"}  # systemd-tmpfiles


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from commands(inner)


@cache
def options() -> frozenset[str]:
    """All of all commands."""
    return frozenset(
        option
        for command in commands(cli)
        for parameter in command.get_params(click.Context(command))
        for option in (*parameter.opts, *parameter.secondary_opts)
    )


def named_in(source: str) -> set[str]:
    """Options in texts that a module raises, prints or logs."""
    return {
        option
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and (
            getattr(call.func, "id", "").endswith("Error")
            or getattr(call.func, "attr", "") in ("echo", "warning", "error", "info", "secho")
        )
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in _OPTION.findall(node.value)
    }


def test_options_that_messages_name_exist() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {option}"
        for path in ROOT.glob("*/fabricpulse/**/*.py")
        for option in named_in(path.read_text(encoding="utf-8")) - options() - _OF_OTHER_PROGRAMS
    }
    assert found == set()
    assert "--config.file" in options()


def test_one_that_does_not_is_found() -> None:
    """Also in the parts of a text with values in it; a docstring is no message."""
    source = (
        '"""--a"""\ndef f():\n    "--b"\n    raise UserError(f"cannot {x}; use --output-fil, or --config")\n'
    )
    assert named_in(source) - options() == {"--output-fil"}
