"""The exporter put together: inventory, collectors, runner, exposition."""

import asyncio
import ipaddress
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.common import BUILD_INFO, COLLECTOR_DURATION, COLLECTOR_SUCCESS
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.nic.collectors.bonding import BondingCollector
from fabricpulse.nic.collectors.contract import HOST, Collector, Context
from fabricpulse.nic.collectors.dcb import DcbCollector
from fabricpulse.nic.collectors.ethtool import EthtoolCollector
from fabricpulse.nic.collectors.flaps import FlapCollector
from fabricpulse.nic.collectors.gid import GidCollector
from fabricpulse.nic.collectors.infiniband import InfinibandCollector
from fabricpulse.nic.collectors.kernel_log import KernelLogCollector
from fabricpulse.nic.collectors.module import ModuleCollector
from fabricpulse.nic.collectors.netdev import NetdevCollector
from fabricpulse.nic.collectors.pcie import PcieCollector
from fabricpulse.nic.collectors.resources import QueuePairsCollector, ResourcesCollector
from fabricpulse.nic.collectors.verbs import VerbsCollector
from fabricpulse.nic.config import COLLECTORS, OFF_BY_DEFAULT, NicConfig
from fabricpulse.nic.event_log import EventLog
from fabricpulse.nic.filters import DeviceFilter
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.gid_rules import NcclRules
from fabricpulse.nic.inventory import Inventory, Scanner
from fabricpulse.nic.kernel.dcb import DcbSource, KernelDcb
from fabricpulse.nic.kernel.ethtool import EthtoolSource, KernelEthtool
from fabricpulse.nic.kernel.rdma import KernelRdma, RdmaSource
from fabricpulse.nic.metrics import METRICS, scrape
from fabricpulse.nic.reader import DescriptorBudget, Faults
from fabricpulse.nic.runner import Outcome, Plan, Runner, Step

log = get_logger(__name__)


@dataclass(frozen=True)
class Sources:
    """Where data comes from that is not in sysfs; None for a source that is not there.

    Two of a kind (ethtool and module, rdma and queue_pairs): each collector has its own, because one that hangs goes on
    with its socket on a thread of its own.
    """

    ethtool: EthtoolSource | None = None
    module: EthtoolSource | None = None
    dcb: DcbSource | None = None
    rdma: RdmaSource | None = None
    queue_pairs: RdmaSource | None = None
    kmsg: Path | None = None
    verbs: bool = False
    link_events: bool = True


def kernel_sources(sysfs: Path) -> Sources:
    """The running kernel's, if `sysfs` is its own: it knows nothing of the devices of a copied tree."""
    try:
        is_own = os.path.samefile(sysfs, "/sys")
    except OSError:
        is_own = False
    if not is_own:
        return Sources()
    return Sources(
        KernelEthtool(),
        KernelEthtool(),
        KernelDcb(),
        KernelRdma(),
        KernelRdma(),
        Path("/dev/kmsg"),
        verbs=True,
    )


class _InventoryCollector:
    """Finds the NICs; run like a collector, because looking at a dead NIC can hang too."""

    name = "inventory"

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self.found = Inventory()

    def targets(self, context: Context) -> Sequence[str]:
        return [HOST]

    def collect(self, target: str, context: Context) -> None:
        self.found = self._scanner.scan(context.faults)

    def close(self) -> None:
        """Nothing is held."""


class NicExporter:
    """All collectors of one host.

    sysfs : root of the file system. run_dir : where flap state and event log are kept, None for nowhere. clock : host
    time in seconds. sources : None for those of the running kernel.
    """

    def __init__(
        self,
        config: NicConfig,
        *,
        sysfs: Path = Path("/sys"),
        run_dir: Path | None = None,
        clock: Callable[[], float] = time.time,
        boot_id: str = "",
        sources: Sources | None = None,
    ) -> None:
        self._config = config
        self._build = (version("fabricpulse"), "nic", platform.python_version())
        self._wanted = DeviceFilter(config.device.include, config.device.exclude)
        self._sysfs = str(sysfs)
        self.faults = Faults()
        self._runner = Runner(config.stall_seconds)
        self._inventory = _InventoryCollector(Scanner(self._sysfs, self._wanted))
        self._one_at_a_time = asyncio.Lock()
        self._rescan: asyncio.Task[None] | None = None
        budget = DescriptorBudget()
        self.gid = GidCollector(
            nccl_rules(config), config.gid.refresh_seconds, config.gid.max_info, lambda: self.flaps.is_live
        )
        enabled = enabled_collectors(config)
        self._counts_flaps = "flaps" in enabled
        self.flaps = FlapService(
            self._sysfs,
            self._wanted,
            clock,
            event_log(config, run_dir),
            run_dir / "nic-flaps.json" if run_dir is not None and self._counts_flaps else None,
            boot_id,
            config.flaps.holdoff_poll_seconds,
            self._link_changed,
            self._unknown_link,
        )
        found = sources if sources is not None else kernel_sources(sysfs)
        self._follows_links = found.link_events
        made: dict[str, Callable[[], Collector]] = {
            "infiniband": lambda: InfinibandCollector(
                budget, raw=config.raw_counters, networks=config.networks
            ),
            "netdev": lambda: NetdevCollector(budget),
            "gid": lambda: self.gid,
            "pcie": lambda: PcieCollector(self._sysfs, budget),
            "bonding": BondingCollector,
            "flaps": lambda: FlapCollector(self.flaps),
            "dcb": lambda: DcbCollector(found.dcb, budget),
        }
        if found.ethtool is not None:
            ethtool = found.ethtool
            made["ethtool"] = lambda: EthtoolCollector(ethtool)
        if found.module is not None:
            module = found.module
            made["module"] = lambda: ModuleCollector(module)
        if found.rdma is not None:
            rdma = found.rdma
            made["resources"] = lambda: ResourcesCollector(rdma)
        if found.queue_pairs is not None:
            queue_pairs = found.queue_pairs
            made["queue_pairs"] = lambda: QueuePairsCollector(queue_pairs)
        self._kernel_log: KernelLogCollector | None = None
        if found.kmsg is not None and "kernel_log" in enabled:
            kernel_log = self._kernel_log = KernelLogCollector(self.flaps, found.kmsg)
            made["kernel_log"] = lambda: kernel_log
        self._verbs: VerbsCollector | None = None
        if found.verbs and "verbs" in enabled:
            verbs = self._verbs = VerbsCollector(
                self.flaps, lambda device: self.gid.touch(device, time.monotonic())
            )
            made["verbs"] = lambda: verbs
        self.collectors: list[Collector] = [
            made[name]() for name in COLLECTORS if name in enabled and name in made
        ]

    @property
    def inventory(self) -> Inventory:
        """The NICs as last found."""
        return self._inventory.found

    async def start(self) -> None:
        """Finds the NICs and follows link events from now on."""
        await self._scan()
        if self._counts_flaps:
            await self.flaps.start(self.inventory, follow=self._follows_links)
        if self._kernel_log is not None:
            self._kernel_log.start(self.inventory)
        if self._verbs is not None:
            self._verbs.start()

    def stop(self) -> None:
        """Keeps the state of flaps and gives everything back."""
        if self._rescan is not None:
            self._rescan.cancel()
        if self._kernel_log is not None:
            self._kernel_log.stop()
        self.flaps.stop()
        self.close()

    def close(self) -> None:
        """Gives descriptors and threads back, after a scrape that is under way."""

        def clean_up() -> None:
            for collector in self.collectors:
                collector.close()

        self._runner.close(clean_up)

    async def scrape(self, text_format: TextFormat = TextFormat.PLAIN) -> bytes:
        """One exposition. The event loop stays free for link events meanwhile."""
        async with self._one_at_a_time:
            if self._counts_flaps and not self.flaps.is_live:
                self.flaps.poll(self.inventory.netdevs)
            outcome = await self._runner.run_async(*self._begin())
            body = self._render(outcome, text_format)
        self.flaps.use(self.inventory)
        for collector in self.collectors:
            if isinstance(collector, InfinibandCollector) and self._counts_flaps:
                self.flaps.port_states(collector.port_states())
        return body

    def collect(self) -> bytes:
        """One exposition, from the calling thread; not while an event loop scrapes."""
        return self._render(self._runner.run(*self._begin()))

    def collect_once(self) -> bytes:
        """One exposition without a daemon: flaps are what the kernel has counted."""
        context = Context(time.monotonic(), self.inventory, self.faults)
        self._runner.run([(self._inventory, HOST)], context)
        self.flaps.use(self.inventory)
        if self._counts_flaps:
            self.flaps.poll(self.inventory.netdevs, "start")
        return self.collect()

    def _begin(self) -> tuple[list[Step], Context, Plan]:
        """What the runner needs: the inventory first, the collectors' targets when it is known."""
        self.faults.begin()
        context = Context(time.monotonic(), self.inventory, self.faults)

        def plan() -> list[Step]:
            context.inventory = self.inventory
            return [
                (collector, target) for collector in self.collectors for target in collector.targets(context)
            ]

        return [(self._inventory, HOST)], context, plan

    async def _scan(self) -> None:
        async with self._one_at_a_time:
            context = Context(time.monotonic(), self.inventory, self.faults)
            await self._runner.run_async([(self._inventory, HOST)], context)

    def _unknown_link(self) -> None:
        """A link has appeared: its labels are found without waiting for the next scrape."""
        if self._rescan is None:
            self._rescan = asyncio.get_running_loop().create_task(self._scan_again())

    async def _scan_again(self) -> None:
        # udev renames a new link at once; RDMA devices come a little after their netdevs.
        await asyncio.sleep(0.1)
        self._rescan = None
        await self._scan()
        self.flaps.use(self.inventory)

    def _render(self, outcome: Outcome, text_format: TextFormat = TextFormat.PLAIN) -> bytes:
        exposition = Exposition(self._config.sample_cap)
        lines: dict[str, list[str]] = {}
        for sink in outcome.sinks:
            # Copies: a thread that was given up may still be writing.
            for family, more in list(sink.lines.items()):
                lines.setdefault(family, []).extend(more[:])
        exposition.add(BUILD_INFO, self._build, 1)
        names = ["inventory", *(collector.name for collector in self.collectors)]
        for name in names:
            exposition.add(COLLECTOR_DURATION, (name,), round(outcome.duration_s.get(name, 0.0), 6))
        for name in names:
            exposition.add(COLLECTOR_SUCCESS, (name,), int(outcome.success.get(name, True)))
        faulty = self.faults.now.copy()
        inventory = self.inventory
        devices = {device.name for device in inventory.rdma} | {netdev.device for netdev in inventory.netdevs}
        for device in sorted(devices | {name for name in faulty if name}):
            exposition.add(scrape.DEVICE_FAILURES, (device,), faulty[device])
        for reason, count in sorted(self.faults.total.copy().items()) or [("none", 0)]:
            exposition.add(scrape.READ_FAILURES, (reason,), count)
        for spec in METRICS:
            found = lines.get(spec.name)
            if found:
                exposition.add_block(spec, "".join(found), len(found))
        return exposition.render(text_format)

    def _link_changed(self, link: str) -> None:
        device = self.flaps.labels(link)[0]
        self.gid.touch(device, time.monotonic())


def enabled_collectors(config: NicConfig) -> set[str]:
    """The collectors that the configuration switches on."""
    return {name for name in COLLECTORS if config.collectors.get(name, name not in OFF_BY_DEFAULT)}


def nccl_rules(config: NicConfig) -> NcclRules:
    """The configuration's `nccl` section as rules."""
    section = config.nccl
    network = ipaddress.ip_network(section.address_range, strict=False) if section.address_range else None
    return NcclRules(section.gid_index, section.address_family, network, section.roce_version)


def event_log(config: NicConfig, run_dir: Path | None) -> EventLog:
    """The event log that the configuration asks for.

    One that writes nothing without a run directory (`--once`, `show`), or when no collector is on that has events.
    """
    path = None
    has_events = not enabled_collectors(config).isdisjoint(("flaps", "kernel_log", "verbs"))
    if run_dir is not None and has_events and config.flaps.event_log != "none":
        path = Path(config.flaps.event_log) if config.flaps.event_log else run_dir / "nic-events.jsonl"
    return EventLog(path, config.flaps.event_log_max_bytes)
