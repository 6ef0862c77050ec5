"""Whose user ids of /etc/subuid are (subuid(5)): rootless containers of one user have many uids.

Ids that another source gives out, as nsswitch's `subid`, or a kubelet that does not use the file, are users of their
own. A daemon in a container needs the file of its host.
"""

import pwd
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from fabricpulse.core.log import get_logger

log = get_logger(__name__)
Name = TypeVar("Name")

SUBUID = Path("/etc/subuid")
# Some 40,000 users. What is larger is not read in part: whose ids the rest are would be wrong.
MAX_BYTES = 1 << 20
_MAX_ID = 2**32 - 1


@dataclass(frozen=True)
class IdRange:
    """`count` ids from `first` on. owner : name or number, as the file has it."""

    owner: str
    first: int
    count: int

    @property
    def end(self) -> int:
        """The first id after it."""
        return self.first + self.count


def parse_subuid(text: str) -> list[IdRange]:
    """The ranges of a file; lines that make no sense are passed over, as by newuidmap(1). Pure."""
    found = []
    for line in text.splitlines():
        owner, *numbers = line.strip().split(":")
        if (
            owner
            and len(numbers) == 2
            and all(n.isascii() and n.isdecimal() and len(n) <= 10 for n in numbers)
        ):
            first, count = map(int, numbers)
            if 0 < first <= _MAX_ID and count:
                found.append(IdRange(owner, first, count))
    return found


class SubordinateIds:
    """The ranges of a file, read again when it has changed. One thread at a time."""

    def __init__(self, path: Path = SUBUID) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        # By their first ids; how far those up to each one reach; None where they are not known.
        self._ranges: list[IdRange] | None = []
        self._reach: list[int] = []

    def owners(self, uids: Mapping[Name, int]) -> dict[Name, int]:
        """The same with the users to whom the ids are given; without those of whom that is not known: their user has no
        account here, or the file cannot be read."""
        self._read()
        if self._ranges is None:
            return {}
        given = {uid: self._owner(uid, self._ranges) for uid in set(uids.values())}
        accounts = {owner: account_id(owner) for owner in given.values() if owner is not None}
        of = {uid: uid if owner is None else accounts[owner] for uid, owner in given.items()}
        return {name: owner for name, uid in uids.items() if (owner := of[uid]) is not None}

    def owner(self, uid: int) -> str | None:
        """To whom the id is given, by name or number; None for a user's own, and where that is not known."""
        self._read()
        return None if self._ranges is None else self._owner(uid, self._ranges)

    def _owner(self, uid: int, ranges: list[IdRange]) -> str | None:
        """To whom the id is given, None for a user's own. Where ranges overlap, the last to begin counts."""
        at = bisect_right(ranges, uid, key=lambda each: each.first) - 1
        while at >= 0 and self._reach[at] > uid:
            if uid < ranges[at].end:
                return ranges[at].owner
            at -= 1
        return None

    def _read(self) -> None:
        try:
            status = self._path.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if version == self._version:
                return
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            self._set(parse_subuid(content.decode("utf-8", "replace")) if len(content) <= MAX_BYTES else None)
            self._version = version
        except FileNotFoundError:
            self._set([])
            self._version = None
            return
        except OSError as error:
            if self._ranges is not None:
                log.warning("whose processes they are is not known", file=str(self._path), error=str(error))
            self._set(None)
            self._version = None
            return
        if self._ranges is None:
            log.warning("whose processes they are is not known", file=str(self._path), most_bytes=MAX_BYTES)

    def _set(self, ranges: list[IdRange] | None) -> None:
        self._ranges = None if ranges is None else sorted(ranges, key=lambda each: each.first)
        self._reach = list(accumulate((each.end for each in self._ranges or []), max))


def account_id(owner: str) -> int | None:
    """Its user id; None without an account. Asks the name service."""
    if owner.isdecimal():
        return int(owner)
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        return None
