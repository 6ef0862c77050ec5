"""Files that processes map together."""

import mmap
import os
import stat
from pathlib import Path

from fabricpulse.core.files import file_identity, identity_of, open_regular


class LayoutError(Exception):
    """A mapped file is not what it should be: other magic, other version, too short."""


def create_mapping(path: Path, size: int, mode: int = 0o644, initial: bytes = b"") -> mmap.mmap:
    """A new mapping at `path`, in place of what was there: `initial` and then zeros.

    `initial` holds what a reader checks when it opens the file, which must be true before the name appears. The old
    file is unlinked, not overwritten: a reader that still maps it keeps its old, consistent content and finds the new
    file when it asks again (`MappedFile.stale`). Raises OSError, with nothing left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    # O_EXCL: whatever stands there now, a symbolic link for example, was not put there by us.
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

    Only a regular file of ours: a symbolic link, or another user's file, was not put there by us.
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


class ChangedFileError(LayoutError):
    """A file has become shorter than its header: its writer, or who has replaced it, is not to be trusted."""


class SharedFile:
    """A file that another process maps and writes, read by copies.

    For directories that others may write to: a mapping of a file that is truncated meanwhile is SIGBUS, a copy of it
    is short. A regular file of one name only, at most `maximum` bytes; nothing is waited for or followed.
    """

    def __init__(self, path: Path, magic: int, version: int, minimum: int, maximum: int) -> None:
        """Raises LayoutError if the file is not of this layout or is too large, OSError if it cannot be opened."""
        self.path = path
        self._descriptor = open_regular(path, os.O_RDONLY)
        try:
            status = os.fstat(self._descriptor)
            if not minimum <= status.st_size <= maximum:
                raise LayoutError(f"{path}: {status.st_size} bytes, {minimum} to {maximum} expected")
            if status.st_nlink > 1:
                raise LayoutError(f"{path}: a file with {status.st_nlink} names")
            self.size = status.st_size
            self.owner = status.st_uid
            self._identity = identity_of(status)
            _check_layout(path, self.read(0, 12), magic, version)
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, length: int) -> bytes:
        """A copy. Raises ChangedFileError where there are fewer bytes, OSError if it cannot be read."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) < length:
            raise ChangedFileError(
                f"{self.path}: truncated, {length} bytes expected at {offset}, got {len(data)}"
            )
        return data

    def stale(self) -> bool:
        """True when the path now names another file, or none."""
        return file_identity(self.path) != self._identity

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _check_layout(path: Path, head: bytes, magic: int, version: int) -> None:
    got_magic, got_version = int.from_bytes(head[0:8], "little"), int.from_bytes(head[8:12], "little")
    if got_magic != magic:
        raise LayoutError(f"{path}: not a file of this kind, or not written yet (magic {got_magic:#x})")
    if got_version != version:
        raise LayoutError(
            f"{path}: its layout has version {got_version}, this fabricpulse reads version {version}"
        )


class MappedFile:
    """A read-only mapping of a file that a process of ours writes.

    Only for directories that nobody else may write to: see SharedFile.
    """

    def __init__(self, path: Path, magic: int, version: int, minimum: int) -> None:
        """Raises LayoutError if the file is not of this layout, OSError if it is no regular file."""
        self.path = path
        descriptor = open_regular(path, os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            if status.st_size < minimum:
                raise LayoutError(f"{path}: {status.st_size} bytes, {minimum} expected")
            self.map = mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._identity = identity_of(status)
        try:
            _check_layout(path, self.map[0:12], magic, version)
        except LayoutError:
            self.map.close()
            raise

    def stale(self) -> bool:
        """True when the path now names another file: the writer has restarted."""
        return file_identity(self.path) != self._identity

    def close(self) -> None:
        """Unmaps the file."""
        self.map.close()
