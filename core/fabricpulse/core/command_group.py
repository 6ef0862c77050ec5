"""A group of commands whose help shows what each is for as a whole sentence."""

import click

# Longer than any first sentence of a command.
_MOST = 300


class CommandGroup(click.Group):
    """As click has it, but that sentences are wrapped, and not cut where the terminal is narrow."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [
            (name, command)
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_MOST)) for name, command in commands])
