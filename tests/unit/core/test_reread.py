"""When files are read again whose contents are in force."""

from pathlib import Path

from fabricpulse.core.files import FileStamp
from fabricpulse.core.reread import AGAIN_S, Reread


def test_after_a_failure_each_second_and_with_each_change(tmp_path: Path) -> None:
    """Logged once for each state of the files."""
    now = [0.0]
    path = tmp_path / "file"
    path.write_text("old")

    def stamps() -> tuple[FileStamp, ...]:
        return (FileStamp.of(path),)

    reread = Reread(stamps(), lambda: now[0])
    assert not reread.is_due(stamps())
    path.write_text("a new one")
    assert reread.is_due(stamps())
    assert reread.failed(stamps())
    assert not reread.is_due(stamps())
    now[0] += AGAIN_S
    assert reread.is_due(stamps())
    assert not reread.failed(stamps())
    path.write_text("the third")
    assert reread.is_due(stamps()), "it has changed: at once"
    assert reread.failed(stamps())
    now[0] += AGAIN_S
    assert reread.is_due(stamps())
    reread.succeeded(stamps())
    now[0] += AGAIN_S
    assert not reread.is_due(stamps())
