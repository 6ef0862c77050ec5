"""Which control sockets of the plugin directory are asked, and for how long they are waited for.

Everybody may create sockets there. Sockets of users who run no jobs are passed over, so are more than a bound of one
user's, his containers' among them; and one that did not answer is left out of orders and asked again later and for a
short time only: two hundred hanging sockets must not delay an action on the processes that answer.
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path

from fabricpulse.core.files import named
from fabricpulse.core.log import get_logger
from fabricpulse.core.subordinate_ids import SubordinateIds
from fabricpulse.remediation.node.control_calls import Answer, Failure

log = get_logger(__name__)

MAX_OF_USER = 128
MAX_SOCKETS = 512
# For a socket that has not answered before, or not the last time.
SHORT_TIMEOUT_S = 0.5
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 10.0

# Tells one process from the next with the same pid: inode and change time of its socket.
Identity = tuple[int, int]


class ControlSockets:
    """The sockets of one directory, and what is known of them."""

    def __init__(
        self,
        directory: Path,
        timeout_s: float,
        users: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
        ids: SubordinateIds | None = None,
    ) -> None:
        """users : whose sockets count, root's always; empty for everybody's. timeout_s : for one that answers. ids : of
        users' containers, those of this host by default."""
        self._directory = directory
        self._timeout_s = timeout_s
        self._users = users
        self._clock = clock
        self._ids = ids or SubordinateIds()
        self._answered: set[Identity] = set()
        self._retry: dict[Identity, tuple[float, float]] = {}
        self._present: dict[str, Identity] = {}
        # Of the sockets that are there: their users, where these are known.
        self.owners: dict[str, int] = {}
        self._limited = False
        # The folder could not be read the last time.
        self.unread = False

    def present(self) -> dict[str, Identity]:
        """Sockets that are there now, those of the last time where the folder cannot be read. Files and links with the
        name of one are passed over."""
        found: list[tuple[int, str, int, Identity]] = []
        try:
            paths = named(self._directory, ".sock")
        except OSError as error:  # no descriptor is left; jobs have not ended for that
            if not self.unread:
                log.warning("folder of control sockets cannot be read", reason=error.strerror)
            self.unread = True
            return dict(self._present)
        self.unread = False
        for path in paths:
            try:
                status = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode) and (not self._users or status.st_uid in {0, *self._users}):
                identity = (status.st_ino, status.st_ctime_ns)
                found.append((status.st_ctime_ns, path.stem, status.st_uid, identity))
        owners = self._ids.owners({name: uid for _, name, uid, _ in found})
        # The oldest of each user, then the second of each, and so on: neither a flood of new ones nor several users
        # together push out the jobs that run.
        of_user: Counter[int] = Counter()
        ranked = []
        for _, name, uid, identity in sorted(found):
            user = owners.get(name, uid)
            of_user[user] += 1
            if of_user[user] <= MAX_OF_USER:
                ranked.append((of_user[user], name, identity))
        ranked.sort(key=itemgetter(0))
        kept = {name: identity for _, name, identity in ranked[:MAX_SOCKETS]}
        if len(kept) < len(found) and not self._limited:
            log.warning("more control sockets than are queried", sockets=len(found), asked=len(kept))
        self._limited = len(kept) < len(found)
        known = set(kept.values())
        self._answered &= known
        self._retry = {identity: retry for identity, retry in self._retry.items() if identity in known}
        self._present = kept
        self.owners = {name: owner for name, owner in owners.items() if name in kept}
        return dict(kept)

    def due(self) -> list[str]:
        """Names to ask now: those that answer, and the others when their time has come."""
        now = self._clock()
        return [
            name
            for name, identity in self._present.items()
            if self._retry.get(identity, (0.0, 0.0))[0] <= now
        ]

    def answering(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are not known to hang."""
        return [name for name in names if self._present.get(name) not in self._retry]

    def timeout_s(self, name: str) -> float:
        """How long to wait for an answer."""
        answered = self._present.get(name) in self._answered
        return self._timeout_s if answered else min(SHORT_TIMEOUT_S, self._timeout_s)

    def note(self, answers: dict[str, Answer]) -> None:
        """Remembers who has answered."""
        now = self._clock()
        for name, answer in answers.items():
            identity = self._present.get(name)
            if identity is None:
                continue
            if isinstance(answer, Failure):
                _, before = self._retry.get(identity, (0.0, _FIRST_RETRY_S / 2))
                wait = min(_LAST_RETRY_S, before * 2)
                self._retry[identity] = (now + wait, wait)
                self._answered.discard(identity)
            else:
                self._retry.pop(identity, None)
                self._answered.add(identity)
