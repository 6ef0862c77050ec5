"""The ring driver (nccl_plugin/ring/) without a plugin: its command line, and how the ranks of an all-to-all end."""

import re
import subprocess

import pytest
from tests.fixtures.native.programs import native


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_ranks_of_an_all_to_all_end_after_the_same_round(ranks: int) -> None:
    """Whoever is asked to stop, and however far its connections are: sends are refused now and then. Of three ranks
    each learned of another round in which the first one said that it had enough, and waited for rounds that nobody
    sent."""
    done = subprocess.run(
        [native("ring_all_to_all"), str(ranks), "7", "30"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    games = [line.split() for line in done.stdout.splitlines()]
    assert len(games) == 30
    assert [game for game in games if len(set(game)) != 1] == []


def test_each_pattern_of_the_help_exists() -> None:
    """It offered one that the parser refused."""
    usage = subprocess.run(["fabricpulse-ring", "--help"], capture_output=True, text=True, check=True).stdout
    (offered,) = re.findall(r"--pattern PATTERN +([^;]*);", usage)
    patterns = re.findall(r"[a-z-]+", re.sub(r"\(.*?\)|\bor\b", "", offered))
    assert len(patterns) > 1
    for pattern in patterns:
        refused = subprocess.run(
            ["fabricpulse-ring", "--pattern", pattern], capture_output=True, text=True, check=False
        )
        assert "--rank R and --size N are needed" in refused.stderr
