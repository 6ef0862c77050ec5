"""What the pages say is there: commands, metrics, knobs of the build, linked files."""

import re
import subprocess
from pathlib import Path

import click
import pytest

from fabricpulse.core.cli import cli
from fabricpulse.core.metrics.catalogue import load_catalogue
from fabricpulse.rules.mixin import compile_mixin

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
]
RECORDED = {rule["record"] for group in compile_mixin().rules for rule in group["rules"]}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    """Each relative link leads to a file of the repository."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    files = [target for target in targets if not re.match(r"[a-z]+:", target)]

    assert [target for target in files if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands(page: Path) -> None:
    """Each `fabricpulse …` that a page names can be run."""
    context = click.Context(cli)
    for words in re.findall(r"`fabricpulse ([a-z][a-z ]*[a-z])", page.read_text()):
        command: click.Command | None = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break  # an argument
            command = command.get_command(context, word)
            assert command is not None, f"fabricpulse {words}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sentences_say_what_a_command_needs(page: Path) -> None:
    """What is to be typed as it stands ("`… pause` stops it") has the options without which it is refused."""
    assert not re.findall(r"`fabricpulse remediation pause`", page.read_text())


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name == "runbooks"], ids=name_of)
def test_metrics(page: Path) -> None:
    """Each metric that a runbook sends people to is exported or recorded."""
    named = set(re.findall(r"(?:[a-z_]+:)?\bfabricpulse_[a-z0-9_]+(?::[a-z0-9_]+)?", page.read_text()))

    assert named <= {*load_catalogue(), *RECORDED}


def test_make_targets() -> None:
    """Each `make target` that a page names is there, and says in `make help` what it does."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert target in targets, f"{page}: make {target}"
