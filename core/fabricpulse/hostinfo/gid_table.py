"""Reading the GID table of a port: `gids/I`, `gid_attrs/types/I`, `gid_attrs/ndevs/I`."""

import errno
import os

from fabricpulse.hostinfo.gid_rules import Gid, parse_gid
from fabricpulse.hostinfo.sysfs import ReadErrors, clean_text, numbers, read_once, reason_of

_EMPTY = b"0000:0000:0000:0000:0000:0000:0000:0000\n"
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_table(path: str, device: str, errors: ReadErrors) -> tuple[dict[int, Gid], int]:
    """The entries of a port's GID table that are not zero, by index, and the size of the table.

    path : directory of the port. device : what errors are counted under. Raises nothing: what cannot be read is left
    out and counted in `errors`; a port without a table has none.
    """
    entries: dict[int, Gid] = {}
    size = 0
    try:
        folder = os.open(f"{path}/gids", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return entries, 0
    except OSError as error:
        errors.add(device, f"{path}/gids", reason_of(error))
        return entries, 0
    try:
        for index in numbers(os.listdir(folder)):
            size = index + 1
            try:
                raw = _slot(str(index), folder)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENODEV):
                    errors.add(device, f"{path}/gids/{index}", reason_of(error))
                continue
            if raw == _EMPTY:
                continue
            value = parse_gid(raw.strip())
            if value is None:
                errors.add(device, f"{path}/gids/{index}", "unparsable" if raw else "empty")
            elif any(value):
                kind = clean_text(read_once(f"{path}/gid_attrs/types/{index}", device, errors) or b"")
                netdev = clean_text(read_once(f"{path}/gid_attrs/ndevs/{index}", device, errors) or b"")
                entries[index] = Gid(value, kind, netdev)
    except OSError as error:
        errors.add(device, f"{path}/gids", reason_of(error))
    finally:
        os.close(folder)
    return entries, size


def _slot(name: str, folder: int) -> bytes:
    """At most 64 bytes of a slot; nearly all are empty, so this is as bare as can be. A FIFO gives nothing at once."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        return os.read(descriptor, 64)
    finally:
        os.close(descriptor)
