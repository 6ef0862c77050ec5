"""Configuration: what is wrong, in which file, on which line, and the nearest key that exists."""

import os
from pathlib import Path

import pytest

from fabricpulse.core import config
from fabricpulse.core.config import Section, load_config, parse_config
from fabricpulse.core.errors import ConfigError


class Limit(Section, frozen=True):
    low: int = 0
    high: int = 10

    def validate(self) -> None:
        if self.low >= self.high:
            raise ValueError("low must be below high")


class Target(Section, frozen=True):
    name: str
    limit: Limit = Limit()


class Config(Section, frozen=True):
    hold_down_seconds: float = 30.0
    dry_run: bool = True
    limit: Limit = Limit()
    targets: tuple[Target, ...] = ()
    by_name: dict[str, Limit] = {}
    spare: Limit | None = None


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_empty_file_is_the_defaults(text: str) -> None:
    """A file without settings means the defaults."""
    assert parse_config(text, Config, "f") == Config()


def test_no_file_is_the_defaults() -> None:
    """Without --config the defaults hold."""
    assert load_config(None, Config) == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hold_down_second: 3", "f:1: unknown key 'hold_down_second'; did you mean 'hold_down_seconds'?"),
        ("limit:\n  hihg: 3", "f:2: unknown key 'limit.hihg'; did you mean 'high'?"),
        (
            "targets:\n- name: a\n- name: b\n  limt: {}",
            "f:4: unknown key 'targets[1].limt'; did you mean 'limit'?",
        ),
        ("spare:\n\n  lwo: 3", "f:3: unknown key 'spare.lwo'; did you mean 'low'?"),
        ("by_name:\n  x:\n    zzz: 3", "f:3: unknown key 'by_name[...].zzz'; known keys: high, low"),
        ("limit:\n  low: five", "f:2: limit.low: expected `int`, got `str`"),
        ("limit: {low: 2e1}", "f:1: limit.low: expected `int`, got `str`; YAML takes it for text, write 20"),
        (
            "hold_down_seconds: 25e-1",
            "f:1: hold_down_seconds: expected `float`, got `str`; YAML takes it for text, write 2.5",
        ),
        ("hold_down_seconds: 1e999999999", "f:1: hold_down_seconds: expected `float`, got `str`"),
        ("hold_down_seconds: .inf", "f:1: hold_down_seconds: inf is no number to work with"),
        ("\nhold_down_seconds: .nan", "f:2: hold_down_seconds: nan is no number to work with"),
        ("dry_run: 1", "f:1: dry_run: expected `bool`, got `int`"),
        ("targets:\n- {limit: {}}", "f:2: targets[0]: object missing required field `name`"),
        ("targets: 3", "f:1: targets: expected `array`, got `int`"),
        ("limit:\n  low: 10", "f:2: limit: low must be below high"),
        ("targets:\n- name: a\n  limit:\n    low: 11", "f:4: targets[0].limit: low must be below high"),
        ("by_name:\n  a: {low: 11}", "f:2: by_name.a: low must be below high"),
        ("limit: {}\ndry_run: true\nlimit: {}", "f:3: key 'limit' is set twice, first on line 1"),
        ("- 1\n", "f: expected a mapping of settings at the top, got list"),
        ("limit: [", "f:1: not valid YAML: "),
        ("a: b: c", "f:1: not valid YAML: mapping values are not allowed here"),
        ("limit: \0", "f: not valid YAML: special characters are not allowed"),
        ("dry_run: !!python/object:os.system x", "f:1: not valid YAML: could not determine a constructor"),
        ("dry_run: 2026-99-99", "f: not valid YAML: month must be in"),
        ("3: 4", "f"),
        ("[" * 1500, "f: nested too deeply"),
    ],
)
def test_messages(text: str, message: str) -> None:
    """Each mistake is one line that starts with file and line and names the key."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, Config, "f")

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_unreadable(tmp_path: Path) -> None:
    """The message names a file that is absent, a directory or not text."""
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.yml", Config)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path, Config)
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.yml is not UTF-8"):
        load_config(binary, Config)


def test_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without an end is refused after the limit, not read into memory."""
    monkeypatch.setattr(config, "MAX_CONFIG_BYTES", 1 << 20)

    with pytest.raises(ConfigError, match="cannot read configuration /dev/zero: more than 1 MiB"):
        load_config(Path("/dev/zero"), Config)


def test_aliases_of_aliases() -> None:
    """A file of few lines that YAML's aliases make 2^60 nodes of is refused at once."""
    levels = "".join(f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 61))

    with pytest.raises(ConfigError, match="unknown key 'a0'"):
        parse_config(f"a0: &a0 [x]\n{levels}", Config, "f")


def test_no_permission(tmp_path: Path) -> None:
    """The message says that a file may not be read."""
    path = tmp_path / "secret.yml"
    path.touch(mode=0o000)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: root may read everything
    try:
        with pytest.raises(ConfigError, match="Permission denied"):
            load_config(path, Config)
    finally:
        os.seteuid(user)
