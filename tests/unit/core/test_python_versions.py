"""All files name the same supported versions of Python (docs/decisions/0031)."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OLDEST = PROJECT["project"]["requires-python"].removeprefix(">=")
NAMED = [
    match[1]
    for line in PROJECT["project"]["classifiers"]
    if (match := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]


def minor(version: str) -> int:
    return int(version.removeprefix("3."))


def test_the_classifiers_begin_with_the_oldest() -> None:
    """And leave none out; what runs this test is one of them."""
    minors = [minor(version) for version in NAMED]
    assert minors == list(range(minor(OLDEST), max(minors) + 1))
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in NAMED


def test_the_lab_is_for_the_same() -> None:
    """It is installed beside the wheel."""
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert lab["requires-python"] == PROJECT["project"]["requires-python"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("README.md", "Python {} or newer"),
        ("CONTRIBUTING.md", "Python {} or newer"),
        ("scripts/bootstrap.sh", "Python {} or newer is needed"),
        ("CMakeLists.txt", "find_package(Python {} REQUIRED"),
        ("docs/decisions/0031-python-3-11-and-newer.md", "need Python {}."),
    ],
)
def test_other_files_name_the_same_version(name: str, said: str) -> None:
    """Documentation, set-up and build."""
    assert said.format(OLDEST) in (ROOT / name).read_text()


def test_the_linter_writes_for_the_oldest() -> None:
    """Or it would propose what that one does not have."""
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{OLDEST.replace('.', '')}"


def raises_in_groups(source: str) -> list[int]:
    """Lines that raise in an `except*`: up to 3.11.3 even a single exception comes out as a group (gh-103590)."""
    return [
        node.lineno
        for group in ast.walk(ast.parse(source))
        if isinstance(group, ast.TryStar)
        for handler in group.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise)
    ]


def test_nothing_is_raised_in_an_exception_group() -> None:
    """On 3.11.2, Debian 12's, an error that is one sentence would be a traceback of groups."""
    assert raises_in_groups("try:\n  f()\nexcept* ValueError:\n  raise KeyError") == [4]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in ROOT.glob("*/fabricpulse/**/*.py")
        if "except*" in (text := path.read_text()) and (lines := raises_in_groups(text))
    }
    assert found == {}
