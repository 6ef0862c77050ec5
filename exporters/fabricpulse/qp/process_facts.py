"""Processes of jobs by the kernel: their job or pod, their user, their start. Reads /proc.

A telemetry file names a process; that it is that process' own is believed only where a process with this number and
start time runs as the owner of the file. What the kernel says of another user's process is world-readable, but for
`hidepid`: there, and for a process that is gone, nothing is known.
"""

import math
import os
import pwd
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from fabricpulse.core.subordinate_ids import SubordinateIds, account_id
from fabricpulse.qp.cgroup import CgroupMembership, membership

# A line for each hierarchy of cgroup v1, each with a path of 4,096 bytes at most; ours are at the beginning.
_MOST_BYTES = 64 << 10
# Slurm and container runtimes move a process before it becomes the job; whoever moves it later is seen then.
_RECHECK_S = 60.0
# Processes of other PID namespaces are found by a walk over all processes, some 10 us each.
_WALK_EVERY_S = 30.0
_MOST_PROCESSES = 65_536
_MOST_USERS = 4096
_NAME_PATIENCE_S = 0.2
# Whom the name service does not know, or did not for want of descriptors or of its server, is asked about again.
_UNKNOWN_S = 60.0
Key = TypeVar("Key")
Value = TypeVar("Value")

ProcessId = tuple[int, int, int, int]  # TelemetrySnapshot.process: owner, pid, start ticks, start


class Writer(Protocol):
    """Who has written a telemetry file, as that file says; the owner as the kernel says."""

    @property
    def process(self) -> ProcessId: ...


@dataclass(frozen=True)
class ProcessFacts:
    """member_of : None where no job's or pod's cgroup is. user : its name, `uid:N` without one. start_s : since 1970,
    None where the process is not known."""

    user: str
    member_of: CgroupMembership | None = None
    start_s: float | None = None


class NameService(Generic[Key, Value]):
    """What the name service says of users. It may be a server that does not answer: a thread of its own asks it."""

    def __init__(
        self, look_up: Callable[[Key], Value | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        # With the moment from which on it is asked again.
        self._known: dict[Key, tuple[Value | None, float]] = {}
        self._asking: threading.Thread | None = None

    def find(self, key: Key) -> Value | None:
        """None where it is not known, or not yet."""
        found, again_s = self._known.get(key, (None, -math.inf))
        room = key in self._known or len(self._known) < _MOST_USERS
        wanted = room and self._clock() >= again_s
        if wanted and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(key,), daemon=True, name="name service")
            self._asking.start()
            self._asking.join(_NAME_PATIENCE_S)
            found, _ = self._known.get(key, (None, 0.0))
        return found

    def _ask(self, key: Key) -> None:
        found = self._look_up(key)
        self._known[key] = found, math.inf if found is not None else self._clock() + _UNKNOWN_S


class UserNames:
    """Names of users."""

    def __init__(self, look_up: Callable[[int], str | None] | None = None) -> None:
        self._names = NameService[int, str](look_up or _name_of)

    def name(self, uid: int) -> str:
        """`uid:N` for a user without a name, and while it is not known yet."""
        return self._names.find(uid) or f"uid:{uid}"


class Users:
    """Whose a user id is: of one that /etc/subuid gives to somebody, that user's own.

    Ranks of a job in rootless containers have such ids, on each host others: by them one job would be several. Ids that
    a kubelet gives out without that file remain users of their own, as nothing tells two of its pods' users apart.
    """

    def __init__(
        self, given: SubordinateIds | None = None, look_up: Callable[[str], int | None] | None = None
    ) -> None:
        self._given = given or SubordinateIds()
        self._accounts = NameService[str, int](look_up or account_id)

    def of(self, uid: int) -> int:
        """The id itself where it is given to nobody, and while that is not known."""
        owner = self._given.owner(uid)
        if owner is None:
            return uid
        found = self._accounts.find(owner)
        return uid if found is None else found


def _name_of(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


class ProcessTable:
    """Facts of the processes that write telemetry, kept while they write."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        names: UserNames | None = None,
        uptime_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """uptime_s : since boot, what start times of processes count from. now_s : since 1970."""
        self._proc = proc
        self._names = names or UserNames()
        self._uptime_s = uptime_s
        self._now_s = now_s
        self._known: dict[ProcessId, tuple[float, ProcessFacts]] = {}
        self._elsewhere: dict[ProcessId, int] = {}
        self._next_walk_s = 0.0

    def facts(self, writers: Iterable[Writer], now_s: float) -> dict[ProcessId, ProcessFacts]:
        """By process. now_s : monotonic. Raises nothing."""
        wanted = {writer.process for writer in writers}
        self._known = {process: entry for process, entry in self._known.items() if process in wanted}
        self._elsewhere = {process: pid for process, pid in self._elsewhere.items() if process in wanted}
        due = [p for p in sorted(wanted) if p not in self._known or self._known[p][0] <= now_s]
        pids = {process: pid for process in due if (pid := self._pid_of(process)) is not None}
        lost = [process for process in due if process not in pids]
        if lost and now_s >= self._next_walk_s:
            self._next_walk_s = now_s + _WALK_EVERY_S
            pids |= self._walk(lost)
        for process in due:
            pid = pids.get(process)
            # Who is not found is looked for again at the next walk.
            again_s = self._next_walk_s if pid is None else now_s + _RECHECK_S
            self._known[process] = (again_s, self._facts_of(process, pid))
        return {process: facts for process, (_, facts) in self._known.items()}

    def _facts_of(self, process: ProcessId, pid: int | None) -> ProcessFacts:
        owner, _, ticks, _ = process
        user = self._names.name(owner)
        if pid is None:
            return ProcessFacts(user)
        member_of = membership(self._read(pid, "cgroup"))
        # The number may have become another's meanwhile: asked after the cgroup was read.
        if self._start_ticks(pid) != ticks:
            return ProcessFacts(user)
        known = self._known.get(process)
        start_s = known[1].start_s if known else None
        if start_s is None:
            age_s = self._uptime_s() - ticks / os.sysconf("SC_CLK_TCK")
            start_s = self._now_s() - age_s
        return ProcessFacts(user, member_of, start_s)

    def _pid_of(self, process: ProcessId) -> int | None:
        """The number of a process in our PID namespace; None where that is not known."""
        owner, pid, ticks, _ = process
        for number in (pid, self._elsewhere.get(process)):
            if number is not None and self._start_ticks(number) == ticks and self._status(number)[0] == owner:
                return number
        return None

    def _walk(self, lost: list[ProcessId]) -> dict[ProcessId, int]:
        """Processes of other PID namespaces, by their number there."""
        by_start = {ticks for _, _, ticks, _ in lost}
        found: dict[ProcessId, int] = {}
        for number in self._numbers():
            ticks = self._start_ticks(number)
            if ticks not in by_start:
                continue
            uid, inner = self._status(number)
            for process in lost:
                if process[:3] == (uid, inner, ticks):
                    found[process] = self._elsewhere[process] = number
        return found

    def _numbers(self) -> Iterator[int]:
        with suppress(OSError), os.scandir(self._proc) as entries:
            for count, entry in enumerate(entries):
                if count >= _MOST_PROCESSES:
                    return
                if entry.name.isascii() and entry.name.isdigit():
                    yield int(entry.name)

    def _start_ticks(self, pid: int) -> int | None:
        # The command name may hold anything, also ") ": fields are counted from the last one.
        fields = self._read(pid, "stat").rpartition(") ")[2].split()
        return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None

    def _status(self, pid: int) -> tuple[int | None, int | None]:
        """Effective user id, and the number in the innermost PID namespace."""
        uid = inner = None
        for line in self._read(pid, "status").splitlines():
            name, _, rest = line.partition(":")
            values = rest.split()
            if name == "Uid" and len(values) == 4:
                uid = int(values[1])
            elif name == "NSpid" and values:
                inner = int(values[-1])
        return uid, inner

    def _read(self, pid: int, name: str) -> str:
        """ "" where there is none. A name in it that is no UTF-8 is replaced."""
        with suppress(OSError), (self._proc / str(pid) / name).open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
        return ""
