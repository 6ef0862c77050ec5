"""Every requirement is used, every import is required, and docs/dependencies.md names each."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Distributions whose modules have other names.
MODULES = {
    "pyyaml": "yaml",
    "prometheus-client": "prometheus_client",
    "promql-parser": "promql_parser",
}

# Used where the host has them for its jobs; never installed by us.
OF_THE_HOST = {"torch"}


def required() -> dict[str, str]:
    """Module -> distribution, of the requirements and of all extras."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
    ]
    names = [re.split(r"[<>=\[; ]", line, maxsplit=1)[0] for line in lines]
    return {
        MODULES.get(name, name.replace("-", "_")): name
        for name in names
        if not name.startswith(PROJECT["name"])
    }


@cache
def imported() -> frozenset[str]:
    """Top-level modules that our packages import from others' distributions."""
    found: set[str] = set()
    for path in ROOT.glob("*/fabricpulse/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return frozenset(found) - set(sys.stdlib_module_names) - {"fabricpulse", "__future__"} - OF_THE_HOST


@pytest.mark.thorough
def test_nothing_is_required_in_vain() -> None:
    """What nothing imports is not installed on every host."""
    assert sorted(set(required()) - imported()) == []


@pytest.mark.thorough
def test_nothing_is_imported_unasked() -> None:
    """No import rests on what another dependency happens to bring."""
    assert sorted(imported() - set(required())) == []


def test_what_development_needs_is_named() -> None:
    """Each distribution of the dependency groups stands in docs/dependencies.md."""
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    lines = [line for group in groups.values() for line in group if isinstance(line, str)]
    names = {re.split(r"[<>=\[; ]", line, maxsplit=1)[0].lower() for line in lines}
    short = {name.removeprefix("pytest-").removesuffix("-cu13") for name in names}
    assert {name for name in short if name not in text} == set()


def debian_packages() -> set[str]:
    """What scripts/system_packages.sh installs."""
    script = (ROOT / "scripts" / "system_packages.sh").read_text()
    by_tool = re.findall(r"\[\S+?\]=([a-z][a-z0-9+.-]*)", script)
    others = [
        name for group in re.findall(r"missing\+=\(([a-z0-9 +.-]+)\)", script) for name in group.split()
    ]
    return {*by_tool, *others}


def test_debian_packages_are_explained() -> None:
    """Each that is installed stands in a row of docs/dependencies.md."""
    rows = [line for line in (ROOT / "docs" / "dependencies.md").read_text().splitlines() if line[:1] == "|"]
    named = {name for line in rows for name in line.split("|")[1].strip().split(", ")}
    assert len(debian_packages()) > 20
    assert debian_packages() - named == set()


@pytest.mark.parametrize("name", sorted(required().values()))
def test_each_is_explained(name: str) -> None:
    """docs/dependencies.md says what it is for."""
    assert re.search(
        rf"^\| {re.escape(name)}\b", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE
    )
