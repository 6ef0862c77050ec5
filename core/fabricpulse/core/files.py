"""Files that other processes read or replace at the same time: atomic writes, change detection, safe opening."""

import errno
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def named(folder: Path, ending: str) -> list[Path]:
    """What is in a folder with names that end so; nothing where there is no such folder. Raises OSError.

    Path.glob takes a folder that cannot be read for an empty one, by Python's version for another set of reasons.
    """
    try:
        return [path for path in folder.iterdir() if path.name.endswith(ending)]
    except FileNotFoundError:
        return []


def atomic_write(
    path: Path,
    content: bytes | str,
    *,
    mode: int = 0o644,
    owner: tuple[int, int] | None = None,
    durable: bool = True,
) -> None:
    """Replaces `path` by a file with `content`: readers see the old file or the new one, never a part.

    The new file is made beside the old one under an unpredictable name with O_EXCL (no symbolic link is followed), has
    `mode` whatever the umask, and `owner` (user and group id) if given, and replaces whatever `path` names: a symbolic
    link is replaced, not followed. durable : survives a power cut once this returns (fsync of the file and its
    directory), and a crash never leaves an empty file. Raises OSError, with nothing left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        try:
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_directory(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data`. Raises OSError; a part may have been written then."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that cannot: some of FUSE
            raise
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Identifies the state of a file. Equal stamps: it was not written, replaced or removed.

    Holds device, inode, modification and change time in ns, size; None when there is no file or it cannot be
    statted. The change time is the kernel's own: a writer that sets the modification time back is detected. A write in
    place, without a change of size, within one tick of the kernel's clock (4 ms) of the last stamp is not.

    For files. For the entries of a directory compare inode and modification time (`hostinfo`): its change time also
    changes with its permissions.
    """

    identity: tuple[int, int, int, int, int] | None

    @classmethod
    def of(cls, file: Path | int) -> "FileStamp":
        """The stamp of a path (symbolic links are followed) or of an open descriptor; never raises OSError."""
        with suppress(OSError):
            status = os.stat(file)  # noqa: PTH116 - of a descriptor, too
            return cls((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
        return cls(None)

    @property
    def exists(self) -> bool:
        """Whether there was a file."""
        return self.identity is not None


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """(device, inode) of the file, unique while it exists; the kernel may reuse the inode number afterwards."""
    return status.st_dev, status.st_ino


def file_identity(path: Path, *, follow_symlinks: bool = True) -> tuple[int, int] | None:
    """(device, inode) of what `path` names, the same until it is removed or replaced; None when there is nothing."""
    try:
        return identity_of(path.stat(follow_symlinks=follow_symlinks))
    except OSError:
        return None


def read_text_limited(path: Path, limit: int) -> str:
    """The text of a file of at most `limit` bytes; a pipe may be read, too.

    Raises OSError (EFBIG for more than that, without reading on) and UnicodeDecodeError.
    """
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit >> 20} MiB", str(path))
    return content.decode("utf-8")


def open_regular(path: Path, flags: int, mode: int = 0o644) -> int:
    """A descriptor of a regular file, for directories that others may write to: a symbolic link is not followed, a FIFO
    not waited for, a device not opened for use.

    flags : of open(2), O_CLOEXEC is added. mode : of a file that O_CREAT makes. Raises OSError (ELOOP for a symbolic
    link, EINVAL for anything else that is no regular file).
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
