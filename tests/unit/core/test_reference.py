"""The generated reference pages."""

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from fabricpulse.core.config import Section
from fabricpulse.core.errors import UserError
from fabricpulse.core.reference import CONFIGS_GROUP, PAGES, Setting, main, settings


class Leaf(Section, frozen=True):
    """What each of many is like."""

    size: int = 3


class Small(Section, frozen=True):
    """A small section. low, high : the limits, in that order : low first. kind : which one."""

    low: Annotated[int, msgspec.Meta(ge=0)] = 0
    high: Annotated[float, msgspec.Meta(gt=0, le=9)] = 1.5
    kind: Literal["a", "b"] = "a"


class Whole(Section, frozen=True):
    """The whole file.

    name : what it is called
    """

    name: str
    small: Small = Small()
    # How many,
    # at least.
    count: int | None = None
    hint: str = "x|y"  # said behind
    leaves: tuple[Leaf, ...] = ()
    by_name: dict[str, Leaf] = {}
    flags: Mapping[str, bool] = {}


def test_settings() -> None:
    """Every key comes with its path, type and bounds, default, and what docstring or comment say of it."""
    assert list(settings(Whole)) == [
        Setting("name", "text", None, "What it is called."),
        Setting("small.low", "integer, at least 0", "0", "The limits, in that order : low first."),
        Setting(
            "small.high", "number, above 0 and at most 9", "1.5", "The limits, in that order : low first."
        ),
        Setting("small.kind", "`a` or `b`", '"a"', "Which one."),
        Setting("count", "integer or nothing", "null", "How many, at least."),
        Setting("hint", "text", '"x|y"', "Said behind."),
        Setting("leaves", "list of section", "[]", ""),
        Setting("leaves[].size", "integer", "3", ""),
        Setting("by_name", "mapping of section", "{}", ""),
        Setting("by_name.*.size", "integer", "3", ""),
        Setting("flags", "mapping of true or false", "{}", ""),
    ]


@pytest.mark.parametrize("name", sorted(entry.name for entry in entry_points(group=CONFIGS_GROUP)))
def test_every_setting_is_explained(name: str) -> None:
    """Every key of any configuration file has a meaning, which is not that of its neighbour in the section too."""
    [entry] = [entry for entry in entry_points(group=CONFIGS_GROUP) if entry.name == name]

    found = list(settings(entry.load()))
    assert [setting.path for setting in found if not setting.meaning] == []
    meanings = Counter((setting.path.rpartition(".")[0], setting.meaning) for setting in found)
    assert [key for key, times in meanings.items() if times > 1] == []


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--check passes on what was written and says what has changed since."""
    monkeypatch.setitem(PAGES, "metrics.md", lambda: "one\n")
    monkeypatch.setitem(PAGES, "configuration.md", lambda: "two\n")
    main([str(tmp_path)])
    main(["--check", str(tmp_path)])

    monkeypatch.setitem(PAGES, "configuration.md", lambda: "three\n")
    with pytest.raises(UserError, match=r"configuration\.md is not what the code says[^$]*\+three"):
        main(["--check", str(tmp_path)])
