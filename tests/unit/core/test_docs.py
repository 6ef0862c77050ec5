"""What the pages say is there: commands, metrics, knobs of the build, linked files."""

import re
import subprocess
from pathlib import Path

import click
from tests.unit.rules.compiled import RECORDS

from fabricpulse.core.cli import cli
from fabricpulse.core.metrics.catalogue import load_catalogue

ROOT = Path(__file__).parents[3]
PAGES = {
    name: (ROOT / name).read_text()
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
}


def test_links() -> None:
    """Each relative link leads to a file of the repository."""
    targets = [
        (page, target)
        for page, text in PAGES.items()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        if not re.match(r"[a-z]+:", target)
    ]
    assert [link for link in targets if not ((ROOT / link[0]).parent / link[1]).exists()] == []


def test_commands() -> None:
    """Each `fabricpulse …` that a page names can be run."""
    context = click.Context(cli)
    named = {
        (page, words)
        for page, text in PAGES.items()
        for words in re.findall(r"`fabricpulse ([a-z][a-z ]*[a-z])", text)
    }
    for page, words in sorted(named):
        command: click.Command | None = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break  # an argument
            command = command.get_command(context, word)
            assert command is not None, f"{page}: fabricpulse {words}"


def test_sentences_say_what_a_command_needs() -> None:
    """What is to be typed as it stands ("`… pause` stops it") has the options without which it is refused."""
    assert [page for page, text in PAGES.items() if "`fabricpulse remediation pause`" in text] == []


def test_metrics() -> None:
    """Each metric that a runbook sends people to is exported or recorded."""
    known = {*load_catalogue(), *RECORDS}
    named = {
        (page, metric)
        for page, text in PAGES.items()
        if Path(page).parent.name == "runbooks"
        for metric in re.findall(r"(?:[a-z_]+:)?\bfabricpulse_[a-z0-9_]+(?::[a-z0-9_]+)?", text)
    }
    assert named
    assert sorted(entry for entry in named if entry[1] not in known) == []


def test_make_targets() -> None:
    """Each `make target` that a page names is there, and says in `make help` what it does."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    for page, text in PAGES.items():
        for target in re.findall(r"`make ([a-z-]+)", text):
            assert target in targets, f"{page}: make {target}"
