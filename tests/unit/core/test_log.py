"""Log lines that machines can read, whatever is in them."""

import json
import logging
from collections.abc import Iterator

import pytest
from tests.fixtures.root_logger import kept_root_logger

from fabricpulse.core.log import configure_logging, get_logger


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    with kept_root_logger():
        yield


def test_logfmt(capsys: pytest.CaptureFixture[str]) -> None:
    """One line an event: time, level, logger, event, fields; what has blanks, quotes or newlines is quoted."""
    configure_logging()
    get_logger("a.b").bind(host="h0").warning(
        "edge 100% down", text='a "b"\nc', on=True, nothing=None, empty=""
    )

    stamp, rest = capsys.readouterr().err.split(" ", 1)
    assert stamp.startswith("ts=20")
    assert stamp.endswith("Z")
    assert rest == (
        'level=warning logger=a.b event="edge 100% down" host=h0 text="a \\"b\\"\\nc" on=true nothing= empty=""\n'
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON keeps the types that it has, and a field cannot take the place of the line's own."""
    configure_logging(fmt="json")
    get_logger("a").error("bad", number=3, error=ValueError("x"), level="mine")

    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["event"], line["number"], line["error"]) == ("error", "bad", 3, "x")


def test_levels_and_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the level nothing is written; loggers of libraries come in the same form."""
    configure_logging("warning")
    get_logger("a").info("quiet")
    logging.getLogger("library").warning("value %d", 3)

    assert capsys.readouterr().err.endswith('level=warning logger=library event="value 3"\n')


def test_exception_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback stays on the line of its event."""
    configure_logging()
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        get_logger("a").exception("failed")

    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "RuntimeError: boom" in text
