"""Atomic writes, stamps, and opening files in places where others may write."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from fabricpulse.core.files import FileStamp, atomic_write, open_regular


def test_a_reader_gets_the_old_or_the_new_file(tmp_path: Path) -> None:
    """Never a part of one, however often it is replaced."""
    path = tmp_path / "state"
    contents = [bytes([n]) * 50_000 for n in range(4)]
    atomic_write(path, contents[0])
    done = threading.Event()
    torn = []

    def read() -> None:
        while not done.is_set():
            content = path.read_bytes()
            if content not in contents:
                torn.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(200):
        atomic_write(path, contents[n % 4], durable=False)
    done.set()
    reader.join()

    assert not torn
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    """The file has the mode asked for, and text is UTF-8."""
    before = os.umask(0o077)
    try:
        atomic_write(tmp_path / "a", "µs", mode=mode)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert (tmp_path / "a").read_bytes() == "µs".encode()


def test_a_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """Who plants a link in a directory that we write to does not make us overwrite what it names."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "state"
    link.symlink_to(victim)
    atomic_write(link, b"new")

    assert victim.read_text() == "precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


def test_what_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the old file and no other."""
    path = tmp_path / "state"
    atomic_write(path, b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        atomic_write(path, b"new")
    monkeypatch.undo()

    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_durable_means_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and directory are synced, the file before it gets its name."""
    path = tmp_path / "state"
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic_write(path, b"x", durable=False)
    assert synced == []
    path.unlink()
    atomic_write(path, b"x")
    assert synced == [(False, False), (True, True)]


def test_stamp(tmp_path: Path) -> None:
    """It changes with content, replacement, removal, and a modification time that was set back; not by itself."""
    path = tmp_path / "a"
    absent = FileStamp.of(path)
    assert not absent.exists
    path.write_text("one")
    first = FileStamp.of(path)
    assert first.exists
    assert first == FileStamp.of(path)
    with path.open() as file:
        assert FileStamp.of(file.fileno()) == first
    status = path.stat()
    path.write_text("longer")
    second = FileStamp.of(path)
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    third = FileStamp.of(path)
    atomic_write(path, b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    fourth = FileStamp.of(path)
    path.unlink()
    stamps = [first, second, fourth, absent]
    assert len(set(stamps)) == len(stamps)
    assert third not in (second, fourth)
    assert FileStamp.of(path) == absent


def test_open_regular_refuses_traps(tmp_path: Path) -> None:
    """A symbolic link is not followed, a FIFO not waited for, a device not used."""
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    for name, number in (("link", errno.ELOOP), ("fifo", errno.EINVAL)):
        with pytest.raises(OSError) as refused:
            open_regular(tmp_path / name, os.O_RDONLY)
        assert refused.value.errno == number
    with pytest.raises(OSError):
        open_regular(tmp_path / "fifo", os.O_WRONLY)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/null"), os.O_WRONLY)
    descriptor = open_regular(tmp_path / "real", os.O_RDONLY)
    assert os.read(descriptor, 9) == b"x"
    os.close(descriptor)
