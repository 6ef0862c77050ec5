"""`make captures` says what it lacks, and tests nothing in silence."""

from pathlib import Path

import pytest
from tests.peers import captures


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each source whether it is not given, or not there; exit code 2 where none is."""
    for name in captures.SOURCES:
        monkeypatch.delenv(name, raising=False)
    assert captures.main() == 2
    assert capsys.readouterr().err.count("git clone") == len(captures.SOURCES)
    given = dict.fromkeys(captures.SOURCES, str(tmp_path))
    assert captures.missing(given) == []
    [line] = captures.missing({**given, "HWLOC_SOURCE": str(tmp_path / "none")})
    assert line.startswith("HWLOC_SOURCE=")


def test_every_variable_that_a_test_reads_is_one_of_them() -> None:
    """A source that `make captures` does not know would be missing in silence."""
    texts = [file.read_text() for file in Path(captures.__file__).parent.glob("test_*_captures.py")]
    read = {word for text in texts for word in text.split('"') if word.endswith("_SOURCE")}
    assert read == captures.SOURCES.keys()
