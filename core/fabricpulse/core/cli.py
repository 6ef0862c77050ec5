"""The one command, `fabricpulse`.

Core finds its subcommands through the entry-point group `fabricpulse.commands`, and loads one only when it is asked
for: the ground floor knows no component, and `fabricpulse nic` does not pay for the import of scipy.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from textwrap import indent

import click
from click.shell_completion import CompletionItem, get_completion_class

from fabricpulse.core.errors import ConfigError, UserError
from fabricpulse.core.installed_commands import how_to_install, summary_of

COMMANDS_GROUP = "fabricpulse.commands"


class EntryPointGroup(click.Group):
    """A click group whose commands are its own and the installed entry points."""

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=COMMANDS_GROUP)}

    def _summaries(self, names: Iterable[str]) -> dict[str, str]:
        entries = self._entry_points()
        return {
            name: summary_of(entries[name])
            if name in entries
            else self.commands[name].get_short_help_str(110)
            for name in names
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entry_points().get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        try:
            command = entry.load()
        except ModuleNotFoundError as error:
            if error.name is not None and entry.module.startswith(error.name):
                raise UserError(
                    f"`fabricpulse {cmd_name}` is not installed here: {how_to_install(entry)}"
                ) from error
            raise
        if not isinstance(command, click.Command):
            raise TypeError(f"entry point {entry.value} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click knows the group's own commands alone when it looks for the one that was meant."""
        name = args[0]
        if self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            if near := get_close_matches(name, self.list_commands(ctx), n=1):
                ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries(self.list_commands(ctx)).items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin with `incomplete`. Click would import every command to learn which of them are hidden."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=summary) for name, summary in self._summaries(names).items()]
        return items + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="fabricpulse", prog_name="fabricpulse")
def cli() -> None:
    """See, understand and survive what the network does to a GPU training job."""


@cli.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in SHELL.

    \b
    bash: fabricpulse completion bash >/etc/bash_completion.d/fabricpulse
    zsh:  fabricpulse completion zsh >"${fpath[1]}/_fabricpulse"
    fish: fabricpulse completion fish >/etc/fish/completions/fabricpulse.fish
    """
    kind = get_completion_class(shell)
    if kind is None:  # click has lost one of its own
        raise UserError(f"there is no completion for {shell}")
    made = kind(cli, {}, "fabricpulse", "_FABRICPULSE_COMPLETE")
    # Not `source()`, which runs the shell to learn its version: it may be absent where the script is made.
    click.echo(made.source_template % made.source_vars())


def main() -> None:
    """Runs `fabricpulse`; a UserError becomes one sentence on standard error and its exit code."""
    try:
        cli(prog_name="fabricpulse")
    except UserError as error:
        click.echo(f"fabricpulse: error: {error}", err=True)
        if isinstance(error, ConfigError) and error.excerpt:
            click.echo(indent(error.excerpt, "  "), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
