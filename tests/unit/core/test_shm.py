"""Mapped files: no torn read, no half-made file, a new writer is noticed."""

import multiprocessing
import os
import struct
import time
from pathlib import Path

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.clock_page import (
    SEQUENCE_OFFSET,
    ClockLine,
    ClockPage,
    ClockPageReader,
    ClockPageWriter,
    ClockStatus,
    time_namespace,
)
from fabricpulse.core.shm.mapping import LayoutError, MappedFile, create_mapping
from fabricpulse.core.shm.virtual_clock import ENV, open_virtual_clock


def page_of(n: int) -> ClockPage:
    """A page whose every field tells `n`."""
    line = ClockLine(n, n, n)
    return ClockPage(ClockStatus(n % 4), line, line, n, n, n, n, line, line, n, n, n, time_namespace())


def write_until(path: Path, stop: object) -> None:
    writer = ClockPageWriter(path)
    n = 0
    while not stop.is_set():  # type: ignore[attr-defined]
        n += 1
        writer.write(page_of(n))


def test_no_torn_read(tmp_path: Path) -> None:
    """While another process writes as fast as it can, each read is one page that was written, and time goes on."""
    path = tmp_path / "clock"
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=write_until, args=(path, stop))
    process.start()
    try:
        deadline = time.monotonic() + 30
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        reader = ClockPageReader(path)
        seen: set[int] = set()
        last = 0
        while len(seen) < 500:  # on a busy machine the writer's turn comes when it comes
            page = reader.read()
            n = page.bound_ns
            if n == 0:  # the file is there, and nothing has been written yet
                assert page.status is ClockStatus.UNKNOWN
                continue
            assert page == page_of(n)
            assert n >= last
            last = n
            seen.add(n)
    finally:
        stop.set()
        process.join(10)

    assert process.exitcode == 0


def test_dead_writer(tmp_path: Path) -> None:
    """A writer killed in the middle of an update is an error of the reader within a moment, not a hang."""
    path = tmp_path / "clock"
    writer = ClockPageWriter(path)
    writer._map[SEQUENCE_OFFSET : SEQUENCE_OFFSET + 4] = struct.pack("<I", 7)

    with pytest.raises(TimeoutError, match="middle of an update"):
        ClockPageReader(path).read()


def test_a_new_writer_goes_on_with_the_page(tmp_path: Path) -> None:
    """Its readers need not open another, also where the writer before it died in the middle of an update."""
    path = tmp_path / "clock"
    first = ClockPageWriter(path)
    first.write(page_of(1))
    reader = ClockPageReader(path)

    second = ClockPageWriter(path)
    assert reader.read() == page_of(1)
    second.write(page_of(2))
    assert not reader.stale()
    assert reader.read() == page_of(2)

    second._set_sequence(7)
    third = ClockPageWriter(path)
    third.write(page_of(3))
    assert reader.read() == page_of(3)
    assert not third.gone()


@pytest.mark.parametrize("what", ["removed", "symbolic link", "hard link", "short", "other version"])
def test_a_page_that_is_not_ours_is_replaced(tmp_path: Path, what: str) -> None:
    """The reader says that it is stale, and keeps its consistent page; a new one sees "unknown"."""
    path, other = tmp_path / "clock", tmp_path / "other"
    first = ClockPageWriter(path)
    first.write(page_of(1))
    reader = ClockPageReader(path)
    before = path.read_bytes()
    if what in ("removed", "symbolic link"):
        path.rename(other)
    if what == "symbolic link":
        path.symlink_to(other)
    if what == "hard link":
        os.link(path, other)
    if what == "short":
        path.unlink()
        path.write_bytes(before[:-1])
    if what == "other version":
        path.unlink()
        path.write_bytes(before[:8] + b"\1" + before[9:])
    assert first.gone() == (what not in ("hard link", "symbolic link"))

    ClockPageWriter(path)

    assert reader.stale()
    assert first.gone()
    assert reader.read() == page_of(1)
    assert not path.is_symlink()
    assert ClockPageReader(path).read().status == ClockStatus.UNKNOWN


def test_dead_page_is_unknown() -> None:
    """Past its validity a page gives no fleet time, whatever its status says; before it the bound grows with age."""
    line = ClockLine(0, 0, 0)
    page = ClockPage(ClockStatus.SYNCHRONIZED, line, line, 0, 100, 1_000, 10**9, line, line, 0, 7, 0)

    assert page.at(10**9).status == ClockStatus.SYNCHRONIZED
    assert page.at(10**9).bound_ns == 100 + 1_000
    assert page.convert(10**9).bound_ns == 100 + 1_000 + 7, "a stamp of the host clock is known less well"
    assert page.at(10**9 + 1).status == page.convert(10**9 + 1).status == ClockStatus.UNKNOWN


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes"),
        (b"x" * 64, "not a file of this kind"),
        (
            b"\x01" + bytes(7) + b"\x02" + bytes(55),
            "its layout has version 2, this fabricpulse reads version 1",
        ),
        (struct.pack("<QI", 1, 9) + bytes(52), "version 9"),
    ],
)
def test_foreign_file(tmp_path: Path, content: bytes, words: str) -> None:
    """A file of another kind, another version or too short is refused by name."""
    path = tmp_path / "page"
    path.write_bytes(content)

    with pytest.raises(LayoutError, match=words) as caught:
        MappedFile(path, magic=1, version=1, minimum=64)

    assert str(path) in str(caught.value)


def test_mapping_never_follows_a_planted_link(tmp_path: Path) -> None:
    """A symbolic link at the temporary name is not written through."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".page.{os.getpid()}").symlink_to(victim)

    create_mapping(tmp_path / "page", 64, initial=b"ab")

    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "page").read_bytes() == b"ab" + bytes(62)
    assert (tmp_path / "page").stat().st_mode & 0o777 == 0o644


def test_broken_virtual_clock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that names no clock page stops the daemon; no variable means the kernel's clock."""
    monkeypatch.setenv(ENV, str(tmp_path / "absent"))
    with pytest.raises(UserError, match="is not a virtual clock"):
        open_virtual_clock()

    monkeypatch.delenv(ENV)
    assert open_virtual_clock() is None
