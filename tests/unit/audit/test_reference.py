"""docs/checks is what the checks say."""

from pathlib import Path

import pytest

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.reference import pages

FOLDER = Path(__file__).parents[3] / "docs/checks"


def test_pages_are_those_of_the_checks() -> None:
    """`make docs` writes them: a changed check has a changed page, no page is left of one that is gone."""
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == pages()


@pytest.mark.parametrize("bad", ["No-Capitals", "two words", ""])
def test_identifiers(bad: str) -> None:
    """A check whose identifier could be no file name is refused."""
    with pytest.raises(ValueError, match="identifiers"):
        Check(bad, "node", "error", "t", "a.", "b.", "c.")
