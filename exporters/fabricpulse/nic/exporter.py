"""The exporter put together: inventory, collectors, runner, exposition."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabricpulse.core.event_log import EventLog
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.common import COLLECTOR_DURATION, COLLECTOR_SUCCESS
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.hostinfo.device_filter import DeviceFilter
from fabricpulse.hostinfo.inventory import Inventory, Scanner
from fabricpulse.hostinfo.sources import HostSources, host_sources
from fabricpulse.hostinfo.sysfs import DescriptorBudget, ReadErrors
from fabricpulse.nic import scrape_metrics
from fabricpulse.nic.collectors.base import HOST, Collector, Context, Environment
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.flap_service import FlapService
from fabricpulse.nic.gid_changes import GidChanges
from fabricpulse.nic.metrics import METRICS
from fabricpulse.nic.recent_errors import RecentErrors
from fabricpulse.nic.recent_traffic import RecentTraffic
from fabricpulse.nic.registry import registered
from fabricpulse.nic.runner import Outcome, Plan, Runner, Task

log = get_logger(__name__)


Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class _InventoryCollector:
    """Finds the NICs; run like a collector, because reading a dead NIC can hang too."""

    name = "inventory"

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self.found = Inventory()

    def collect(self, target: str, context: Context) -> None:
        self.found = self._scanner.scan(context.errors)


class NicExporter:
    """All collectors of one host.

    sources : of the host. run_dir : where flap state and event log are kept, None for nowhere. clock : host time in
    seconds.
    """

    def __init__(
        self,
        config: NicConfig,
        sources: HostSources | None = None,
        *,
        run_dir: Path | None = None,
        clock: Callable[[], float] = time.time,
        boot_id: str = "",
    ) -> None:
        self._config = config
        self._sources = sources if sources is not None else host_sources()
        self.errors = ReadErrors()
        self._runner = Runner(config.read_timeout_s)
        self._one_at_a_time = asyncio.Lock()
        self._rescan: asyncio.Task[None] | None = None
        self._spawn: Spawn = asyncio.create_task
        self._gid_changes = GidChanges()
        self._recent_errors = RecentErrors()
        self._recent_traffic = RecentTraffic()
        enabled = enabled_collectors(config)
        self._counts_flaps = "flaps" in enabled
        wanted = DeviceFilter(config.device.include, config.device.exclude)
        self.flaps = FlapService(
            wanted,
            clock,
            event_log(config, run_dir),
            run_dir / "nic-flaps.json" if run_dir is not None and self._counts_flaps else None,
            boot_id,
            config.flaps.holdoff_poll_s,
            self._link_changed,
            self._unknown_link,
        )
        environment = Environment(
            self._sources,
            DescriptorBudget(),
            self.flaps,
            self._gid_changes,
            config.gid,
            config.nccl,
            config.expected,
            config.raw_counters,
            config.networks,
        )
        self._inventory = _InventoryCollector(Scanner(str(self._sources.sysfs), wanted))
        made = (found.collector.make(environment) for name, found in registered().items() if name in enabled)
        self.collectors: list[Collector] = [collector for collector in made if collector is not None]

    @property
    def inventory(self) -> Inventory:
        """The NICs as last found."""
        return self._inventory.found

    async def start(self, spawn: Spawn = asyncio.create_task) -> None:
        """Finds the NICs and follows link events from now on. spawn : starts a task; the daemon supervises them."""
        self._spawn = spawn
        await self._scan()
        if self._counts_flaps:
            await self.flaps.start(self.inventory, follow=self._sources.link_events)
        for collector in self.collectors:
            collector.start(self.inventory)

    def stop(self) -> None:
        """Keeps the state of flaps and gives everything back."""
        if self._rescan is not None:
            self._rescan.cancel()
        for collector in self.collectors:
            collector.stop()
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
            collector.after_scrape()
        return body

    def collect(self) -> bytes:
        """One exposition, from the calling thread; not while an event loop scrapes."""
        return self._render(self._runner.run(*self._begin()))

    def collect_once(self) -> bytes:
        """One exposition without a daemon: flaps are what the kernel has counted."""
        context = Context(time.monotonic(), self.inventory, self.errors)
        self._runner.run([(self._inventory, HOST)], context)
        self.flaps.use(self.inventory)
        if self._counts_flaps:
            self.flaps.poll(self.inventory.netdevs, "start")
        return self.collect()

    def _begin(self) -> tuple[list[Task], Context, Plan]:
        """What the runner needs: the inventory first, the collectors' targets when it is known."""
        self.errors.begin()
        context = Context(time.monotonic(), self.inventory, self.errors)

        def plan() -> list[Task]:
            context.inventory = self.inventory
            return [
                (collector, target) for collector in self.collectors for target in collector.targets(context)
            ]

        return [(self._inventory, HOST)], context, plan

    async def _scan(self) -> None:
        async with self._one_at_a_time:
            context = Context(time.monotonic(), self.inventory, self.errors)
            await self._runner.run_async([(self._inventory, HOST)], context)

    def _unknown_link(self) -> None:
        """A link has appeared: its labels are found without waiting for the next scrape."""
        if self._rescan is None:
            # While the daemon stops no task is started any more.
            with suppress(RuntimeError):
                self._rescan = self._spawn(self._scan_again())

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
        now = time.monotonic()
        self._recent_errors.take(now, lines)
        self._recent_traffic.take(now, lines)
        for family, line in (*self._recent_errors.lines(), *self._recent_traffic.lines()):
            lines.setdefault(family, []).append(line)
        names = ["inventory", *(collector.name for collector in self.collectors)]
        for name in names:
            exposition.add(COLLECTOR_DURATION, (name,), round(outcome.duration_s.get(name, 0.0), 6))
        for name in names:
            exposition.add(COLLECTOR_SUCCESS, (name,), int(outcome.success.get(name, True)))
        for labels, count in sorted(self._read_failures().items()):
            exposition.add(scrape_metrics.DEVICE_FAILURES, labels, count)
        for reason, count in sorted(self.errors.total.copy().items()) or [("none", 0)]:
            exposition.add(scrape_metrics.READ_FAILURES, (reason,), count)
        for spec in METRICS:
            found = lines.get(spec.name)
            if found:
                exposition.add_block(spec, "".join(found), len(found))
        return exposition.render(text_format)

    def _read_failures(self) -> dict[tuple[str, str], int]:
        """(device, rdma_device) -> files that could not be read; of devices that are well 0."""
        errors, inventory = self.errors.now.copy(), self.inventory
        known = {device.name: device.labels for device in inventory.rdma}
        known |= {name: (name, name) for name in inventory.unreadable_rdma}
        failures = {labels: errors[name] for name, labels in known.items()}
        others = {netdev.name for netdev in inventory.netdevs} | {name for name in errors if name}
        return failures | {(name, ""): errors[name] for name in others - known.keys()}

    def _link_changed(self, link: str) -> None:
        rdma_device = self.flaps.labels(link)[1]
        if rdma_device:
            self._gid_changes.touch(rdma_device, time.monotonic())


def enabled_collectors(config: NicConfig) -> set[str]:
    """The collectors that the configuration switches on."""
    return {
        name
        for name, found in registered().items()
        if config.collectors.get(name, found.collector.on_by_default)
    }


def event_log(config: NicConfig, run_dir: Path | None) -> EventLog:
    """The event log that the configuration asks for.

    One that writes nothing without a run directory (`--once`, `show`), or when no collector is on that has events.
    """
    path = None
    has_events = not enabled_collectors(config).isdisjoint(("flaps", "kernel_log", "verbs"))
    if run_dir is not None and has_events and config.flaps.event_log != "none":
        path = Path(config.flaps.event_log) if config.flaps.event_log else run_dir / "nic-events.jsonl"
    return EventLog(path, config.flaps.event_log_max_bytes)
