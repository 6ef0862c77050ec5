"""What this host itself has dropped or delayed while a test lasted: no fault of a path. Linux.

Packets that arrive wait in a queue of the processor (net.core.netdev_max_backlog), before it in the NIC's ring; where
a host is too busy to empty them they are dropped, and counted here. A thread that is ready to run and has no processor
makes TCP slow, and datagrams late; the kernel counts that time, too (CONFIG_SCHED_INFO).
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC, _SYS = Path("/proc"), Path("/sys")
# Of those that arrive: what the ring or the queue behind it had no room for. Frames with errors are not among them.
_RECEIVED = ("rx_dropped", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors")
_SENT = ("tx_dropped",)


@dataclass(frozen=True)
class HostCounts:
    """At one moment. dropped : packets, of all NICs where the kernel does not say which. starved_s : that this thread
    has waited for a processor since it began; 0 where the kernel does not say."""

    dropped: int
    starved_s: float


def host_counts(device: str, *, proc: Path = _PROC, sys: Path = _SYS) -> HostCounts:
    """Now, as the thread that asks sees it. device : the NIC of the test. What cannot be read counts as 0: then
    nothing is excused."""
    dropped = _softnet(proc)
    for name in (*_RECEIVED, *_SENT):
        with suppress(OSError, ValueError):
            dropped += int((sys / "class/net" / device / "statistics" / name).read_text())
    starved_s = 0.0
    with suppress(OSError, ValueError, IndexError):
        starved_s = int((proc / "thread-self/schedstat").read_text().split()[1]) / 1e9
    return HostCounts(dropped, starved_s)


def since(device: str, before: HostCounts, *, proc: Path = _PROC, sys: Path = _SYS) -> HostCounts:
    """What has come to `before`, asked by the same thread; never negative, as counters of a NIC may begin anew."""
    now = host_counts(device, proc=proc, sys=sys)
    return HostCounts(max(0, now.dropped - before.dropped), max(0.0, now.starved_s - before.starved_s))


def _softnet(proc: Path) -> int:
    """Drops of the queues of all processors: the second column, hexadecimal."""
    try:
        lines = (proc / "net/softnet_stat").read_text().splitlines()
        return sum(int(line.split()[1], 16) for line in lines)
    except (OSError, ValueError, IndexError):
        return 0
