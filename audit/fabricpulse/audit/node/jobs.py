"""Does a NIC carry a job? Then no test may put traffic on it."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.plugin_ipc.process import parse_name, process_exists
from fabricpulse.plugin_ipc.verbs import is_locked

# A NIC that moves more than this is in use: probes of a mesh are two orders below.
BUSY_BYTES_PER_S = 5e6
WINDOW_S = 0.1
# Of a NIC that a test of ours uses: headers and what TCP sends again are this much of the test's bytes at most, and
# buffers of this host hold so many that the NIC has counted and the test has not.
OWN_MORE, OWN_BUFFERED = 1.25, 32e6


def job_on(plugin: Path) -> str:
    """Which process of this host has the NCCL plugin, or the verbs interposer, loaded: a sentence, "" for none.

    A process of another PID namespace whose file is there counts: whether it lives cannot be asked.
    """
    with suppress(OSError):
        for name in sorted(os.listdir(plugin)):  # noqa: PTH208 - names are all that is wanted
            stem, _, kind = name.rpartition(".")
            process = parse_name(stem)
            if process is None or kind not in ("telemetry", "verbs"):
                continue
            if kind == "verbs" and not is_locked(plugin / name):
                continue
            if process.is_foreign() or process_exists(process.pid):
                return f"a job runs here (process {process.pid})"
    return ""


def queue_pairs_on(host: HostReader, device: str, own: int = 0) -> str:
    """Whether user processes have connected queue pairs on the NIC, beside `own` of a test of ours, by RDMA netlink: a
    sentence, "" for none or where the kernel does not say."""
    if host.sources.rdma is None:
        return ""
    with suppress(OSError):
        source = host.sources.rdma()
        try:
            for port in host.ports:
                if port.netdev != device:
                    continue
                index = source.indices().get(port.device.name)
                pairs = source.queue_pairs(index) if index is not None else {}
                connected = sum(
                    count
                    for (kind, state), count in pairs.items()
                    if kind in ("rc", "xrc_ini", "xrc_tgt", "driver") and state in ("rtr", "rts", "sqd")
                )
                if connected > own:
                    return f"{connected - own} connected queue pairs on {port.device.name}"
        finally:
            source.close()
    return ""


def traffic_on(
    host: HostReader, device: str, sleep: Callable[[float], None] = time.sleep, window_s: float = WINDOW_S
) -> str:
    """Whether the NIC moves packets in earnest, watched for `window_s`: a sentence, "" if not. A NIC whose counters
    cannot be read is said to be in use: nothing proves that it is not."""
    before = _octets(host, device)
    begun = time.monotonic()
    sleep(window_s)
    after, elapsed = _octets(host, device), time.monotonic() - begun
    if before is None or after is None:
        return f"the counters of {device} cannot be read"
    rate = (after - before) / max(elapsed, 1e-3)
    return f"{device} carries {rate * 8 / 1e6:.0f} Mb/s" if rate > BUSY_BYTES_PER_S else ""


def _octets(host: HostReader, device: str) -> int | None:
    """Bytes that the NIC has moved, with RDMA where its driver counts that by itself; None if it says nothing."""
    counts = [host.number(f"/sys/class/net/{device}/statistics/{name}") for name in ("rx_bytes", "tx_bytes")]
    return None if None in counts else sum(count or 0 for count in counts) + _rdma_octets(host, device)


def _rdma_octets(host: HostReader, device: str) -> int:
    """Of RoCE, which the counters of a netdev leave out; the files count words of four bytes. On InfiniBand they count
    what the netdev counts, too."""
    found = 0
    for port in host.ports:
        if port.netdev == device and port.link_layer == "Ethernet":
            for name in ("port_xmit_data", "port_rcv_data"):
                found += 4 * (
                    host.number(Path(f"{port.device.path}/ports/{port.number}/counters/{name}")) or 0
                )
    return found


def in_use(host: HostReader, device: str, plugin: Path, *, own_traffic: bool = False) -> str:
    """Why the NIC may not be tested with traffic now, "" if it may. own_traffic : a test of ours may be under way, so
    that traffic proves nothing."""
    return job_on(plugin) or queue_pairs_on(host, device) or ("" if own_traffic else traffic_on(host, device))


class PluginJobWatch:
    """Whether a job begins on this host, by its plugin alone."""

    def __init__(self, plugin: Path) -> None:
        self._plugin = plugin

    def found(self) -> str:
        """A sentence, "" for nothing."""
        return job_on(self._plugin)


class QueuePairWatch:
    """Whether a job begins on a NIC while our only queue pair there writes, or is written to: by its plugin and its own
    queue pairs. Traffic tells nothing: who is written to does not see how much of it is ours."""

    def __init__(self, host: HostReader, device: str, plugin: Path) -> None:
        self._host = host
        self._device = device
        self._plugin = plugin

    def found(self) -> str:
        """A sentence, "" for nothing. Blocks for some milliseconds."""
        return job_on(self._plugin) or queue_pairs_on(self._host, self._device, own=1)


class JobWatch:
    """Whether a job begins on a NIC while a test of ours uses it. own : bytes that tests of ours have moved on the NIC
    so far, headers left out; never fewer than before."""

    def __init__(self, host: HostReader, device: str, plugin: Path, own: Callable[[], int]) -> None:
        self._host = host
        self._device = device
        self._plugin = plugin
        self._own = own
        self._first = _octets(host, device), own(), time.monotonic()

    def found(self) -> str:
        """What of a job is seen: a sentence, "" for nothing. Blocks for some milliseconds."""
        return job_on(self._plugin) or queue_pairs_on(self._host, self._device) or self._traffic()

    def _traffic(self) -> str:
        octets, own, begun = self._first
        now = _octets(self._host, self._device)
        if octets is None or now is None:
            return f"the counters of {self._device} cannot be read"
        elapsed = time.monotonic() - begun
        others = now - octets - OWN_MORE * (self._own() - own)
        if others <= OWN_BUFFERED + BUSY_BYTES_PER_S * elapsed:
            return ""
        return f"{self._device} carries {others * 8 / 1e6 / elapsed:.0f} Mb/s of others"
