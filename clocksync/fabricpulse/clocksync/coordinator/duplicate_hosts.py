"""Two hosts that report under one name: a cloned image, or settings that name one host and were copied to others.

Their reports would take turns, each with the clock of another host, and the line of one would go to the other. A
restarted sidecar is a newcomer of the same name, too, but the previous one never reports again. So a newcomer waits
until the previous one has been silent for `_SILENT_S`; if that reports again meanwhile both are alive, and neither is
accepted, as it is not known whose name it is. Pure.
"""

from dataclasses import dataclass

# As a suspicion, for the log and the alert.
DUPLICATE = "two hosts report under this name"
# More than two rounds of a running sidecar, less than people notice of one that was restarted.
_SILENT_S = 2.5
# Reports sent before a restart may arrive after the first ones sent after it.
_LATE_S = 0.5


class NameHeldError(Exception):
    """The sidecar of this name that reported just now may still live: its successor has to wait."""


class NameTakenError(Exception):
    """Two hosts report under this name."""


@dataclass
class _Newcomer:
    first_s: float
    last_s: float


@dataclass
class _Duplicate:
    epoch: int
    until_s: float


class DuplicateHostDetector:
    """Of one fleet. duplicates : names that several hosts report under."""

    def __init__(self) -> None:
        self._newcomers: dict[str, _Newcomer] = {}
        self._duplicates: dict[str, _Duplicate] = {}

    @property
    def duplicates(self) -> tuple[str, ...]:
        """Names under which two hosts report; neither is a member."""
        return tuple(sorted(self._duplicates))

    def check(self, name: str, epoch: int, now_s: float, lease_s: float) -> None:
        """A report under a name that no member has. Raises NameTakenError while two hosts have used it in the last
        lease.
        """
        duplicate = self._duplicates.get(name)
        if duplicate is None or now_s > duplicate.until_s:
            self._duplicates.pop(name, None)
            return
        if epoch != duplicate.epoch:
            duplicate.epoch, duplicate.until_s = epoch, now_s + lease_s
        raise NameTakenError(_taken(name))

    def replace(self, name: str, epoch: int, received_s: float, now_s: float, lease_s: float) -> None:
        """A report of another sidecar than the member of this name, whose last report came at `received_s`.

        Raises NameHeldError while it may still live, NameTakenError when it does.
        """
        newcomer = self._newcomers.get(name)
        if newcomer is None or now_s - newcomer.last_s > lease_s:
            newcomer = self._newcomers[name] = _Newcomer(now_s, now_s)
        newcomer.last_s = now_s
        if received_s > newcomer.first_s + _LATE_S:
            self._duplicates[name] = _Duplicate(epoch, now_s + lease_s)
            del self._newcomers[name]
            raise NameTakenError(_taken(name))
        if now_s - received_s <= _SILENT_S:
            raise NameHeldError(f"the sidecar that reported as {name!r} until now may still live")
        del self._newcomers[name]

    def expire(self, now_s: float, lease_s: float) -> None:
        """Forgets what is over."""
        self._duplicates = {name: one for name, one in self._duplicates.items() if now_s <= one.until_s}
        self._newcomers = {
            name: one for name, one in self._newcomers.items() if now_s - one.last_s <= lease_s
        }


def _taken(name: str) -> str:
    return (
        f"two hosts report as {name!r}, and neither is accepted: give each host a name of its own (hostname, host in "
        "the settings of mesh and sidecar)"
    )
