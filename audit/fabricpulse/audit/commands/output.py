"""What the subcommands share: exit codes, output formats, pages and files."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import write_file

if TYPE_CHECKING:
    from fabricpulse.audit.model import Finding, Run

# Exit codes: of a health check, so that a script can tell a bad host from an audit that could not be made.
GOOD, FOUND = 0, 10
# Nothing is known: no audit, or one that is too old.
NOT_KNOWN = 11
STATE = Path("/var/lib/fabricpulse/audit")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

run_output_option: Decorator = click.option(
    "--output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="Output format.",
)
state_option: Decorator = click.option(
    "--state", type=click.Path(path_type=Path), default=STATE, show_default=True, help="Folder of reports."
)
all_option: Decorator = click.option("--all", "every", is_flag=True, help="Show what passed, too.")
html_option: Decorator = click.option(
    "--html", type=click.Path(path_type=Path), help="Write the page here, too."
)


ignore_option: Decorator = click.option(
    "--ignore",
    multiple=True,
    metavar="CHECK",
    help="A check that does not count, shown all the same; repeatable.",
)


def fail_on_option(effect: str) -> Decorator:
    """`--fail-on`; effect : what a finding of that severity does."""
    return click.option(
        "--fail-on",
        type=click.Choice(["error", "warning"]),
        default="error",
        show_default=True,
        help=f"Least severity of a finding that {effect}.",
    )


def write_page(run: "Run", path: Path | None) -> None:
    """The HTML page, if there is a path. Raises UserError."""
    if path is None:
        return
    from fabricpulse.audit.report.page import page

    write_file(path, page(run).encode("utf-8", "replace"))


@contextmanager
def printed(
    run: "Run", output: str, *, every: bool = False
) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Prints the run after the block has saved it, whatever could not be saved: results are not lost by a full disk.
    Saves by calling what it gets. Raises the first UserError of that once the run is printed."""
    errors: list[UserError] = []

    def saving(save: Callable[[], object]) -> None:
        try:
            save()
        except UserError as error:
            errors.append(error)

    yield saving
    write(run, output, every=every)
    if errors:
        raise errors[0]


def write(run: "Run", output: str, *, every: bool = False) -> None:
    """Prints a run. Late imports: a health check must not pay for tables."""
    if output == "json":
        from fabricpulse.audit.storage import encode

        click.echo(encode(run).decode())
    elif output == "junit":
        from fabricpulse.audit.report.junit import junit

        click.echo(junit(run), nl=False)
    else:
        from rich.console import Console

        from fabricpulse.audit.report.show import show_run

        show_run(run, Console(), every=every)


def exit_code(findings: "Iterable[Finding]", fail_on: str, ignore: "Iterable[str]" = ()) -> int:
    """FOUND if a finding is as bad as `fail_on` or worse. ignore : checks that do not count."""
    bad = ("error",) if fail_on == "error" else ("error", "warning")
    left = set(ignore)
    return FOUND if any(f.severity in bad and f.check not in left for f in findings) else GOOD
