"""The page of each cause is what its file says."""

from pathlib import Path

from fabricpulse.why.pages import pages

FOLDER = Path(__file__).parents[3] / "docs" / "causes"


def test_pages_are_rendered() -> None:
    """docs/causes is what `make docs` makes of the code, no page more or less."""
    assert {p.name: p.read_text() for p in FOLDER.glob("*.md")} == pages()
