"""`fabricpulse audit`: the group. A subcommand is imported when it is asked for: a health check runs `gate` often, and
on a busy host an import costs more than the answer."""

from importlib import import_module

import click

from fabricpulse.core.command_group import CommandGroup

# Subcommand -> its module in `commands`, and its name there.
SUBCOMMANDS = {
    "checks": ("node", "checks_command"),
    "diff": ("kept_runs", "diff_command"),
    "gate": ("gate", "gate_command"),
    "labels": ("kept_runs", "labels_command"),
    "learn": ("kept_runs", "learn_command"),
    "local": ("local", "local"),
    "node": ("node", "node_command"),
    "run": ("run", "run_command"),
    "show": ("kept_runs", "show_command"),
}


class AuditGroup(CommandGroup):
    """Its subcommands, each imported alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in order."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, None if there is none."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, name = SUBCOMMANDS[cmd_name]
        found = getattr(import_module(f"fabricpulse.audit.commands.{module}"), name)
        assert isinstance(found, click.Command)  # noqa: S101 - of the table above
        return found


@click.group("audit", cls=AuditGroup)
def command() -> None:
    """Audit hosts before a long job: what is wrong, and what is odd.

    Exit code 0: no error was found; 10: there is one; 11: nothing is known yet (gate); 1 or 2: the audit could not be
    made.
    """
