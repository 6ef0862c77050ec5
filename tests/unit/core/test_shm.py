"""Mapped files: no torn read, no half-made file, a new writer is noticed."""

import mmap
import multiprocessing
import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for

from fabricpulse.core._layouts import clock_at
from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.clock_page import (
    SEQUENCE_OFFSET,
    ClockLine,
    ClockPage,
    ClockPageReader,
    ClockPageWriter,
    ClockStatus,
    raw_now_ns,
    time_namespace,
)
from fabricpulse.core.shm.mapping import LayoutError, MappedFile, create_mapping
from fabricpulse.core.shm.virtual_clock import ENV, open_virtual_clock


def page_of(n: int) -> ClockPage:
    """A page whose fields all follow from `n`."""
    line = ClockLine(n, n, n)
    return ClockPage(ClockStatus(n % 4), line, line, n, n, n, n, line, line, n, n, n, time_namespace())


def write_until(path: Path, stop: object) -> None:
    writer = ClockPageWriter(path)
    n = 0
    while not stop.is_set():  # type: ignore[attr-defined]
        n += 1
        writer.write(page_of(n))


@pytest.mark.thorough
def test_no_torn_read(tmp_path: Path) -> None:
    """While another process writes as fast as it can, each read is one page that was written, and time goes on."""
    path = tmp_path / "clock"
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=write_until, args=(path, stop))
    process.start()
    try:
        wait_for(path.exists, 30, "the first page")
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


class KilledError(Exception):
    """The process ends here."""


class DyingMap:
    """A mapping whose process ends at a store: half of it is done."""

    def __init__(self, real: mmap.mmap, stores: int) -> None:
        self._real = real
        self._left = stores

    def __getitem__(self, place: slice) -> bytes:
        return self._real[place]

    def __setitem__(self, place: slice, data: bytes) -> None:
        if not self._left:
            if len(data) > 4:  # a sequence is stored whole, or not
                self._real[place.start : place.start + len(data) // 2] = data[: len(data) // 2]
            raise KilledError
        self._left -= 1
        self._real[place] = data


def write_and_die(writer: ClockPageWriter, page: ClockPage, begins_ns: int | None, stores: int) -> bool:
    """Whether the writer has died in the middle of `write`, at the store after `stores` of them."""
    writer._map = DyingMap(writer._map, stores)  # type: ignore[assignment]
    try:
        writer.write(page, begins_ns)
    except KilledError:
        return True
    return False


@pytest.mark.parametrize("begins_in_s", [None, 600, -1])
@pytest.mark.parametrize("pages_before", [1, 2])
def test_a_writer_that_dies_anywhere_leaves_a_page(
    tmp_path: Path, begins_in_s: int | None, pages_before: int
) -> None:
    """Its readers, old and new ones, have the page before; the next writer goes on with that, in the same file."""
    stores = 0
    while True:
        path = tmp_path / f"clock-{stores}"
        writer = ClockPageWriter(path)
        for number in range(pages_before):
            last = page_of(1 + 4 * number)
            writer.write(last)
        reader = ClockPageReader(path)
        begins_ns = None if begins_in_s is None else raw_now_ns() + begins_in_s * 10**9
        line = ClockLine(begins_ns or 0, 7, 7)
        if not write_and_die(
            writer, page_of(9)._replace(current=line, previous=last.current), begins_ns, stores
        ):
            break
        for each in reader, ClockPageReader(path):
            # A line that has begun, or not: only the dead writer knew.
            unsure = begins_in_s == -1 and stores == 2
            assert each.read() == (last._replace(status=ClockStatus.UNKNOWN) if unsure else last)
        heir = ClockPageWriter(path)
        assert heir.in_force == last
        assert reader.read() == last
        for number in 2, 3, 4:
            heir.write(page_of(number), begins_ns=raw_now_ns() + 600 * 10**9)
            assert reader.read() == page_of(number)
        assert not reader.stale()
        stores += 1
    assert stores == (2 if begins_in_s is None else 3)


def test_a_writer_stopped_between_sequences_blocks_no_reader(tmp_path: Path) -> None:
    """Readers follow the line before as long as no other can have begun; then fleet time is unknown. It goes on."""
    path = tmp_path / "clock"
    writer = ClockPageWriter(path)
    now = raw_now_ns()
    line = ClockLine(now, 10**18, 0)
    first = page_of(1)._replace(
        current=line, previous=line, bound_ref_raw_ns=now, valid_until_raw_ns=now + 60 * 10**9
    )
    writer.write(first)
    reader = ClockPageReader(path)
    begins_ns = now + 200_000_000
    later = first._replace(current=ClockLine(begins_ns, line.at(begins_ns), 5), previous=line)
    file = writer._map
    assert write_and_die(writer, later, begins_ns, stores=2)
    writer._map = file
    seen: dict[ClockStatus, tuple[int, int, int]] = {}
    while ClockStatus.UNKNOWN not in seen:
        before = raw_now_ns()
        shown = reader.now()
        seen.setdefault(shown.status, (before, shown.fleet_ns, raw_now_ns()))
    before, fleet_ns, after = seen[ClockStatus.SYNCHRONIZED]
    assert line.at(before) <= fleet_ns <= line.at(after)
    assert seen[ClockStatus.UNKNOWN][2] >= begins_ns
    assert reader.convert(time.time_ns()).status == reader.read().status == ClockStatus.UNKNOWN
    assert clock_at(path.read_bytes(), raw_now_ns())[2] == ClockStatus.UNKNOWN, "C"

    writer._set_sequence(writer._sequence)

    assert reader.read() == later._replace(time_namespace=time_namespace())
    assert reader.now().status == ClockStatus.SYNCHRONIZED


@pytest.mark.thorough
def test_writers_killed_and_stopped_while_they_write(tmp_path: Path) -> None:
    """Thirty processes that write as fast as they can are stopped, then killed, at any moment: each time a reader has a
    whole page, no older than one that it has seen, and the next writer goes on with it."""
    path = tmp_path / "clock"
    ClockPageWriter(path).write(page_of(1))
    reader = ClockPageReader(path)
    rng = random.Random(1)
    for _ in range(30):
        last = reader.read().bound_ns
        child = os.fork()
        if not child:
            heir, n = ClockPageWriter(path), last
            while True:
                n += 1
                heir.write(page_of(n), begins_ns=2**62 if n % 2 else None)
        try:
            while reader.read().bound_ns < last + rng.randint(1, 50):
                pass
            os.kill(child, signal.SIGSTOP)
            os.waitpid(child, os.WUNTRACED)
            page = reader.read()
            whole = page_of(page.bound_ns)
            # Stopped as it decides which page is in force: there may be none, and readers say so.
            deciding = bool(path.read_bytes()[SEQUENCE_OFFSET] & 1)
            none = deciding and page.status == ClockStatus.UNKNOWN
            assert page == reader.read() == (whole._replace(status=page.status) if none else whole)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert reader.read() == page
        held = ClockPageWriter(path).in_force
        assert reader.read() == held == (whole if none else page)


def test_a_new_writer_goes_on_with_the_page(tmp_path: Path) -> None:
    """Its readers need not open another."""
    path = tmp_path / "clock"
    first = ClockPageWriter(path)
    first.write(page_of(1))
    reader = ClockPageReader(path)

    second = ClockPageWriter(path)
    assert reader.read() == second.in_force == page_of(1)
    second.write(page_of(2))
    assert not reader.stale()
    assert reader.read() == page_of(2)


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
    assert first.removed() == (what not in ("hard link", "symbolic link"))

    ClockPageWriter(path)

    assert reader.stale()
    assert first.removed()
    assert reader.read() == page_of(1)
    assert not path.is_symlink()
    assert ClockPageReader(path).read().status == ClockStatus.UNKNOWN


def test_an_expired_page_is_unknown() -> None:
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


def test_a_broken_virtual_clock_is_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that names no clock page stops the daemon; no variable means the kernel's clock."""
    monkeypatch.setenv(ENV, str(tmp_path / "absent"))
    with pytest.raises(UserError, match="is not a virtual clock"):
        open_virtual_clock()

    monkeypatch.delenv(ENV)
    assert open_virtual_clock() is None
