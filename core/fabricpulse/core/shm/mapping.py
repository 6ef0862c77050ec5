"""Files that processes map together."""

import mmap
import os
import stat
from pathlib import Path


class LayoutError(Exception):
    """A mapped file is not what it should be: other magic, other version, too short."""


def create_mapping(path: Path, size: int, mode: int = 0o644, initial: bytes = b"") -> mmap.mmap:
    """A new mapping at `path`, in place of what was there: `initial` and then zeros.

    `initial` holds what a reader checks when it opens the file, which must be true before the name appears. The old
    file is unlinked, not overwritten: a reader that still maps it keeps its old, consistent content and finds the new
    file when it looks again (`MappedFile.stale`). Raises OSError, with nothing left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    # O_EXCL: whatever stands there now, a symbolic link for example, was put there by somebody else.
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        # Allocated now: in a file with holes a full file system is a SIGBUS at the first write, without a word.
        os.posix_fallocate(descriptor, 0, size)
        mapping = mmap.mmap(descriptor, size)
        mapping[: len(initial)] = initial
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return mapping


def reopen_mapping(path: Path, size: int, head: bytes) -> mmap.mmap | None:
    """The file that an earlier writer left at `path`, to go on with; None if there is none that begins with `head`.

    Only a regular file of ours: a symbolic link, or another user's file, was put there by somebody else.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        if not ours or status.st_size != size:
            return None
        mapping = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    if mapping[: len(head)] == head:
        return mapping
    mapping.close()
    return None


def file_identity(path: Path) -> tuple[int, int] | None:
    """What `path` names, the same as long as nobody removes or replaces it; None when there is nothing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class MappedFile:
    """A read-only mapping of a file that another process writes."""

    def __init__(self, path: Path, magic: int, version: int, minimum: int) -> None:
        """Raises LayoutError if the file is not of this layout, FileNotFoundError if it is not there."""
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_size < minimum:
                raise LayoutError(f"{path}: {status.st_size} bytes, {minimum} expected")
            self.map = mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        got_magic = int.from_bytes(self.map[0:8], "little")
        got_version = int.from_bytes(self.map[8:12], "little")
        if got_magic != magic or got_version != version:
            self.map.close()
            raise LayoutError(
                f"{path}: layout {got_magic:#x} version {got_version}, expected {magic:#x} version {version}"
            )

    def stale(self) -> bool:
        """True when the path now names another file: the writer has started anew."""
        return file_identity(self.path) != self._identity

    def close(self) -> None:
        """Unmaps the file."""
        self.map.close()
