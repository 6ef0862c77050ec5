"""The README's blocks name what is there. That they work, on real machines, `scripts/readme_test.sh` shows."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest
from tests.e2e.readme import ROOT, Block, blocks

from fabricpulse.core.cli import cli
from fabricpulse.deploy.catalogue import catalogue
from fabricpulse.rules.mixin import knobs, mixin_dir

TEXT = (ROOT / "README.md").read_text()
BLOCKS = blocks(TEXT)
PLACES = {"build", "every", "hosts", "monitor", "gpu-001", "gpu-002", "gpu-003"}
NAMES = {file.name for file in catalogue()}
TARGETS = {file.target for file in catalogue()}
# Words of a shell that end a command.
ENDS = re.compile(r"[|;()&\n]|\bdo\b")


def commands(block: Block) -> list[list[str]]:
    """Its commands as words, without what is written to files and read from here-documents."""
    script = re.sub(r"<<'EOF'\n.*?\nEOF\n", "\n", block.script, flags=re.S)
    lines = [part.strip() for part in ENDS.split(script)]
    return [shlex.split(re.sub(r"\s*>\s*\S+", "", line)) for line in lines if line]


def calls(program: str) -> list[list[str]]:
    """The arguments of each call of a program in the README's blocks."""
    return [words[1:] for block in BLOCKS for words in commands(block) if words[0] == program]


def test_every_block_has_a_place() -> None:
    """A block without a place, or with one that the script does not know, would be run nowhere: only those before the
    first heading that says what to install, which are for a checkout.
    """
    installs = TEXT.index("## Put it into your stack")
    assert len(BLOCKS) == len(re.findall(r"^```\n", TEXT[installs:], re.M)) / 2 > 5
    assert {block.place for block in BLOCKS} <= PLACES
    for line in re.findall(r"^```\n(.*?)^```$", TEXT[:installs], re.M | re.S):
        assert all(command.startswith("make ") for command in line.splitlines())


@pytest.mark.parametrize("words", calls("fabricpulse"), ids=" ".join)
def test_every_option_is_one(words: list[str]) -> None:
    """Each command exists and takes the options that it is given; what it is asked to show or set exists."""
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), rest.pop(0))
        assert found is not None, words
        command = found
    options = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options
    if words[:2] == ["files", "show"]:
        assert words[2] in NAMES
    for flag, value in pairwise(rest):
        if flag == "--set":
            assert value.partition("=")[0] in knobs(mixin_dir())


def test_every_unit_is_installed() -> None:
    """What systemctl starts is a unit of ours, or one of the Prometheus stack."""
    named = {word for words in calls("systemctl") for word in words[1:] if not word.startswith("-")}
    ours = {name for name in named if name.startswith("fabricpulse-")}
    assert len(ours) > 5
    assert {f"{name}.service" for name in ours} <= NAMES
    assert named - ours == {"alertmanager", "prometheus"}


def test_every_file_is_made() -> None:
    """A file in /etc that a block or the text names is one that `files write` puts there, or that a block writes."""
    text = TEXT[TEXT.index("## Put it into your stack") :]
    named = set(re.findall(r"/etc/fabricpulse/[\w.-]+", text))
    written = {match for block in BLOCKS for match in re.findall(r">\s*(/etc/[\w./-]+)", block.script)}
    assert len(named) > 2
    assert named <= TARGETS | written


def test_every_make_target_is_there() -> None:
    """Of the blocks; those of the text are held by test_docs."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = re.findall(r"^make ([a-z-]+)", TEXT, re.M)
    assert named
    assert set(named) <= targets


def test_the_scripts_that_it_names_are_there() -> None:
    """As `scripts/readme_test.sh`."""
    for name in re.findall(r"`(scripts/[\w./-]+)`", TEXT):
        assert (Path(ROOT) / name).is_file(), name
