"""The one command, `fabricpulse`.

Core finds its subcommands through the entry-point group `fabricpulse.commands`, and loads one only when it is asked
for: the ground floor knows no component, and `fabricpulse nic` does not pay for the import of scipy.
"""

import sys
from importlib.metadata import EntryPoint, entry_points, version
from textwrap import indent

import click
from click.shell_completion import CompletionItem, get_completion_class

from fabricpulse.core.errors import ConfigError, UserError

COMMANDS_GROUP = "fabricpulse.commands"

# The first line of each command's help, so that `fabricpulse --help` imports none of them.
SUMMARIES = {
    "audit": "Audit hosts before a long job: what is wrong, and what is odd.",
    "check": "Check configuration files without starting a daemon.",
    "completion": "Print a script that completes commands and options in a shell.",
    "clocksync": "Keep fleet time: the sidecar of a host, the coordinator of a fleet.",
    "demo": "Play a fault on a fleet of network namespaces and show what happens.",
    "files": "Show units, sample configurations and runbooks, or put them in place.",
    "lab": "Build a GPU fleet on one machine out of network namespaces.",
    "mesh": "Probe the fabric between NICs and export what is seen.",
    "nic": "Export RDMA and link state of this host's NICs.",
    "plugin": "Work with the NCCL plugin of running jobs.",
    "qp": "Export what running jobs do: lanes and queue pairs of each.",
    "remediation": "Act on alerts: the receiver, and the agent of a host.",
    "rules": "Render the recording and alert rules.",
    "status": "Show the daemons of this host and what each lacks.",
    "verbs": "Observe the queue pairs of any program that uses libibverbs.",
    "why": "Say why a job is slow, or where it hangs, with the evidence.",
}

# Commands that a plain installation lacks: the extra that brings them.
EXTRAS = {"demo": "lab", "lab": "lab"}


class EntryPointGroup(click.Group):
    """A click group whose commands are its own and the installed entry points."""

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=COMMANDS_GROUP)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entry_points().get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        try:
            command = entry.load()
        except ModuleNotFoundError as error:
            if error.name is not None and entry.module.startswith(error.name) and cmd_name in EXTRAS:
                raise UserError(
                    f"`fabricpulse {cmd_name}` is not installed here: pip install 'fabricpulse[{EXTRAS[cmd_name]}]'"
                ) from error
            raise
        if not isinstance(command, click.Command):
            raise TypeError(f"entry point {entry.value} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, SUMMARIES.get(name, "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin with `incomplete`. Click would import every command to learn which of them are hidden."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=SUMMARIES.get(name, "")) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(version("fabricpulse"), prog_name="fabricpulse")
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
