"""What this host itself has dropped or delayed while a test lasted: no fault of a path. Linux.

Packets that arrive wait in a queue of the processor (net.core.netdev_max_backlog), before it in the NIC's ring; where
a host is too busy to empty them they are dropped, and counted here. Threads that are ready to run and have no processor
make TCP slow, and datagrams late; the kernel counts that time, too (CONFIG_SCHED_INFO). All threads of the process
count: one that runs Python code keeps the others waiting. A virtual machine may have no processor at all for a while:
its kernel sends nothing then (proc(5), `steal`).
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PROC, _SYS = Path("/proc"), Path("/sys")
# Of those that arrive: what the ring or the queue behind it had no room for. Frames with errors are not among them.
_RECEIVED = ("rx_dropped", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors")
_SENT = ("tx_dropped",)


@dataclass(frozen=True)
class HostCounts:
    """At one moment. dropped : packets, by the counter that says so; of all NICs where the kernel does not say which.
    starved_s : that threads of this process have waited for a processor since they began; None where that is not known.
    stolen_s : of each processor, that its virtual machine was not given. idle_s, all_s : that processors had nothing to
    do, and in all, of all together; 0 where the kernel does not say."""

    dropped: Mapping[str, int]
    starved_s: float | None
    stolen_s: tuple[float, ...] = ()
    idle_s: float = 0.0
    all_s: float = 0.0


@dataclass(frozen=True)
class HostLosses:
    """Between two moments, as HostCounts. stolen_s : of the processor that lacked most. busy : share of the time of all
    processors in which they had something to do; 0 where the kernel does not say."""

    dropped: int
    starved_s: float
    stolen_s: float = 0.0
    busy: float = 0.0


def host_counts(device: str, *, proc: Path = _PROC, sys: Path = _SYS) -> HostCounts:
    """Now. device : the NIC of the test. What cannot be read is left out, and excuses nothing: as 0 it would make all
    that was counted before the test a loss of the test."""
    dropped = _softnet(proc)
    for name in (*_RECEIVED, *_SENT):
        with suppress(OSError, ValueError):
            dropped[name] = int((sys / "class/net" / device / "statistics" / name).read_text())
    return HostCounts(dropped, _starved_s(proc), _stolen(proc), *_idle(proc))


def since(device: str, before: HostCounts, *, proc: Path = _PROC, sys: Path = _SYS) -> HostLosses:
    """What has come to `before`; never negative, as counters of a NIC may begin anew and threads end. 0 of what was not
    known at both moments."""
    now = host_counts(device, proc=proc, sys=sys)
    dropped = [now.dropped[name] - first for name, first in before.dropped.items() if name in now.dropped]
    starved_s = 0.0 if before.starved_s is None or now.starved_s is None else now.starved_s - before.starved_s
    stolen = [after - first for after, first in zip(now.stolen_s, before.stolen_s, strict=False)]
    passed_s, idle_s = now.all_s - before.all_s, now.idle_s - before.idle_s
    return HostLosses(
        max(0, sum(dropped)),
        max(0.0, starved_s),
        max([0.0, *stolen]),
        max(0.0, 1 - max(0.0, idle_s) / passed_s) if before.all_s > 0 and passed_s > 0 else 0.0,
    )


def _starved_s(proc: Path) -> float | None:
    """Of all threads that are there."""
    starved_ns = 0
    try:
        for thread in (proc / "self/task").iterdir():
            # One that ends meanwhile is no longer counted at the end either.
            with suppress(FileNotFoundError, ProcessLookupError):
                starved_ns += int((thread / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return starved_ns / 1e9


def _stolen(proc: Path) -> tuple[float, ...]:
    """Of each processor that is on."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        ticks = [int(line.split()[8]) for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
        return tuple(count / _TICKS_A_SECOND for count in ticks)
    except (OSError, ValueError, IndexError):
        return ()


def _idle(proc: Path) -> tuple[float, float]:
    """idle and iowait, and all, since the start; time of guests is in that of others (proc(5))."""
    try:
        words = (proc / "stat").read_text().partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9]] if words[0] == "cpu" else []
        return sum(ticks[3:5]) / _TICKS_A_SECOND, sum(ticks) / _TICKS_A_SECOND
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def _softnet(proc: Path) -> dict[str, int]:
    """Drops of the queues of all processors: the second column, hexadecimal."""
    try:
        lines = (proc / "net/softnet_stat").read_text().splitlines()
        return {"softnet": sum(int(line.split()[1], 16) for line in lines)}
    except (OSError, ValueError, IndexError):
        return {}
