"""One word, one meaning: the glossary is unambiguous, the map is complete, and words that were replaced stay away."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from fabricpulse.core.cli import cli

ROOT = Path(__file__).parents[3]
FILES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    if name
]
PAGES = ("docs/", "audit/", "deploy/", "why/", "core/", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
# Pattern -> what is said instead, and below which folders.
REPLACED: dict[str, tuple[str, str | tuple[str, ...]]] = {
    r"\bk?[Vv]erdict": ("health, residual, answer, outcome", ""),
    r"(?<!those )\bof before\b": ("previous, before the fault", ""),
    r"\b[Nn]obody_there\b": ("what the test expects", "tests/"),
    r"\b(?:each|every|a|one|the last) step of the (?:whole )?fleet\b": ("round", "clocksync/"),
    r"[Ff]leet\.step\b": ("round", ""),
    r"\b_?LOOKS?_|(?:\.|->)look\(|\blook_at_|\bbetween (?:two|the) looks\b": (
        "poll, sample, check, read",
        "",
    ),
    r"\b[Mm]end(?:s|ed|ing)?\b": ("fix, correct", PAGES),
    r"\bwho is on call\b": ("on-call is notified", ""),
    r"\b(?:last|old|our|receiver's) words?\b|\bwords? about (?:chunks|that)\b|\basked for a word\b": (
        "state frame, acknowledgement",
        "nccl_plugin/",
    ),
    r"\btakes? orders\b|\bobeys? nobody\b": ("takes commands", PAGES),
    # `heard` of `NeighboursAnswer` is a name of the protocol between agents and `audit run`.
    r"(?i)(?<!answer\.)\b_?k?(?:told|retold|heard|mended|troubled?)\b(?!: Annotated)": (
        "reported, sent, notified, distinguished, identified, received, corrected, error, impaired",
        "",
    ),
}
TEXT = {".py", ".pyi", ".md", ".h", ".cc", ".c", ".yaml", ".yml", ".libsonnet", ".sh", ".toml"}


# Tests of pytest itself: the tests in their strings promise nothing.
HOLD_PROGRAMS = {"tests/selftest/test_ci_gate.py", "tests/selftest/test_crashed_workers.py"}


@cache
def texts() -> dict[str, str]:
    """What the files say, by name."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace")
        for path in FILES
        if path.suffix in TEXT and path.is_file() and path not in (ROOT / "CHANGELOG.md", Path(__file__))
    }


@pytest.mark.parametrize("pattern", REPLACED)
def test_replaced_words_stay_away(pattern: str) -> None:
    """In code, docs, rules and tests; the changelog may say what something was called."""
    instead, below = REPLACED[pattern]
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        for name, text in texts().items()
        if name.startswith(below)
        for match in re.finditer(pattern, text)
    ]

    assert found == [], f"say instead: {instead}"


def test_a_test_states_its_promise() -> None:
    """In its name, if that is five words and more, or else in a docstring."""
    terse = re.compile(
        r'^ *(?:async )?def (test(?:_[^\W_]+){1,4})\([^)]*\)[^:\n]*:\n\s+(?=\S)(?!""")', re.MULTILINE
    )
    silent = [
        f"{name}: {found}"
        for name, text in texts().items()
        if Path(name).name.startswith("test_") and name not in HOLD_PROGRAMS
        for found in terse.findall(text)
    ]
    assert silent == []


def test_a_term_has_one_row() -> None:
    """No two rows of the glossary explain one term; `unknown` is of the fabric and, as a status, of a clock."""
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().split("\n") if line.startswith("| ")]
    terms = [term.strip() for row in rows for term in row.split("|")[1].split(",")]
    twice = {term for term in terms if terms.count(term) > 1} - {"term", "unknown"}

    assert twice == set()


def test_the_map_is_complete() -> None:
    """ARCHITECTURE names each top folder and each package."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = [path.relative_to(ROOT) for path in FILES]
    folders = {f"{name.parts[0]}/" for name in names if len(name.parts) > 1}
    packages = {
        name.parts[2] for name in names if name.suffix == ".py" and name.parts[1:2] == ("fabricpulse",)
    }

    assert {folder for folder in folders if f"`{folder}" not in text} == set()
    assert {name for name in packages if not re.search(rf"`(?:\S*[/.])?{name}[/`]", text)} == set()


def commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    """All commands below one, with their full names."""
    if not isinstance(command, click.Group):
        return [(name, command)]
    context = click.Context(command)
    found = []
    for word in command.list_commands(context):
        inner = command.get_command(context, word)
        assert inner is not None
        found += commands(inner, f"{name} {word}")
    return found


def test_what_shows_something_shows_it_as_json() -> None:
    """Each command that lists, shows, compares or checks has `--output`, first with the same two values. `files show`
    prints a file as it is.
    """
    words = {"check", "checks", "diff", "knobs", "list", "show", "status"}
    shown = [
        (name, each)
        for name, each in commands(cli, "fabricpulse")
        if name.split()[-1] in words and name != "fabricpulse files show"
    ]
    assert len(shown) > 5
    for name, each in shown:
        output = next((option for option in each.params if option.name == "output"), None)
        assert output is not None, name
        assert isinstance(output.type, click.Choice), name
        assert list(output.type.choices)[:2] == ["text", "json"], name


def test_every_option_is_explained() -> None:
    """Each option of each command has a help text of more than one word."""

    def options(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                yield f"{path} {option.opts[0]}", option.help or ""
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                if (one := command.get_command(context, name)) is not None:
                    yield from options(one, f"{path} {name}")

    terse = {name for name, text in options(cli, "fabricpulse") if len(text.split()) < 2}
    assert terse == set()
