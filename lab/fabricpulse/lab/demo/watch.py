"""Observers: each reads one real output again and again and writes what it says into `Observed`."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import aiohttp

from fabricpulse.core.shm.clock_page import ClockPageReader
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.core.shm.virtual_clock import VirtualClock
from fabricpulse.lab.demo.observed import ActionSeen, AlertSeen, ClockSeen, Observed, PlanSeen
from fabricpulse.lab.demo.scrape import Samples, parse_samples
from fabricpulse.plugin_ipc.control import ControlClient, ControlError

REQUEST_TIMEOUT_S = 2.0
# After so long without a reading what was read is not known any more. Longer than a busy machine takes now and then.
KNOWN_S = 5.0


class Watch(ABC):
    """Reads one output every `interval_s`. A failed reading is kept as a read error and tried again."""

    name: str
    interval_s: float

    @abstractmethod
    async def poll(self, observed: Observed) -> None:
        """One reading. Raises OSError, ClientError, TimeoutError, LayoutError, ControlError or ValueError."""

    def forget(self, observed: Observed) -> None:  # noqa: B027 (most keep what they have read)
        """Nothing could be read for KNOWN_S: what was is taken for unknown."""

    async def run(self, observed: Observed, changed: asyncio.Event) -> None:
        """Polls for ever."""
        read_at = time.monotonic()
        while True:
            started = time.monotonic()
            try:
                await self.poll(observed)
                observed.read_errors.pop(self.name, None)
                read_at = time.monotonic()
            except (
                OSError,
                aiohttp.ClientError,
                TimeoutError,
                LayoutError,
                ControlError,
                ValueError,
            ) as error:
                observed.read_errors[self.name] = f"{type(error).__name__}: {error}"
                if time.monotonic() - read_at >= KNOWN_S:
                    self.forget(observed)
            changed.set()
            await asyncio.sleep(max(0.01, started + self.interval_s - time.monotonic()))


class HttpWatch(Watch):
    """A reading over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, name: str, url: str, interval_s: float) -> None:
        self.name = name
        self.interval_s = interval_s
        self._session = session
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)

    async def get_text(self, path: str) -> str:
        async with self._session.get(self._url + path, timeout=self._timeout) as response:
            response.raise_for_status()
            return await response.text()

    async def get_json(self, path: str) -> Any:
        async with self._session.get(self._url + path, timeout=self._timeout) as response:
            response.raise_for_status()
            return await response.json(content_type=None)


class MeshWatch(HttpWatch):
    """`/metrics` of the mesh exporter of one host."""

    NAMES = (
        "fabricpulse_nic_connected",
        "fabricpulse_nic_disconnects_total",
        "fabricpulse_edge_up",
        "fabricpulse_edge_owd_seconds",
    )

    def __init__(self, session: aiohttp.ClientSession, host: str, url: str, interval_s: float) -> None:
        super().__init__(session, f"mesh exporter of {host}", url, interval_s)
        self._host = host

    async def poll(self, observed: Observed) -> None:
        samples = parse_samples(await self.get_text("/metrics"), self.NAMES)
        host = observed.hosts[self._host]
        edges = list(samples.all("fabricpulse_edge_up"))
        host.edges = len(edges)
        host.edges_up = sum(value == 1 for _, value in edges)
        for device, nic in host.nics.items():
            connected = samples.one("fabricpulse_nic_connected", device=device)
            nic.connected = None if connected is None else connected == 1
            nic.disconnects = samples.one("fabricpulse_nic_disconnects_total", device=device)
            nic.owd_s = _median(
                [
                    v
                    for _, v in samples.all("fabricpulse_edge_owd_seconds", device=device, quantile="0.5")
                    if not isnan(v)
                ]
            )

    def forget(self, observed: Observed) -> None:
        host = observed.hosts[self._host]
        host.edges = host.edges_up = 0
        for nic in host.nics.values():
            nic.connected = nic.owd_s = None


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


class QpWatch(HttpWatch):
    """`/metrics` of the qp exporter of one host: what the workload moves through each NIC, and how fast its collectives
    are.
    """

    NAMES = (
        "fabricpulse_qp_sent_bytes_total",
        "fabricpulse_qp_received_bytes_total",
        "fabricpulse_collective_bandwidth_bytes_per_second",
    )

    def __init__(self, session: aiohttp.ClientSession, host: str, url: str, interval_s: float) -> None:
        super().__init__(session, f"qp exporter of {host}", url, interval_s)
        self._host = host

    async def poll(self, observed: Observed) -> None:
        samples = parse_samples(await self.get_text("/metrics"), self.NAMES)
        now = time.monotonic()
        for device, nic in observed.hosts[self._host].nics.items():
            nic.sent.add(now, _total(samples, self.NAMES[0], device))
            nic.received.add(now, _total(samples, self.NAMES[1], device))
        observed.hosts[self._host].collective_bytes_per_s = samples.one(self.NAMES[2])


def _total(samples: Samples, name: str, device: str) -> float:
    return sum(value for _, value in samples.all(name, device=device))


class ClockWatch(HttpWatch):
    """`/metrics` of the sidecar of one host, and beside it the truth that only the lab can know.

    Fleet time is true when all hosts agree; all lab hosts share one kernel clock. So the true error of a host is what
    its clock page makes of the kernel's present, less what the first host's page makes of it.
    """

    NAMES = ("fabricpulse_clock_synchronized", "fabricpulse_clock_error_bound_seconds")

    def __init__(
        self, session: aiohttp.ClientSession, host: str, url: str, interval_s: float, truth: "FleetTruth"
    ) -> None:
        super().__init__(session, f"clock sidecar of {host}", url, interval_s)
        self._host = host
        self._truth = truth

    async def poll(self, observed: Observed) -> None:
        samples = parse_samples(await self.get_text("/metrics"), self.NAMES)
        synchronized = samples.one(self.NAMES[0])
        observed.hosts[self._host].clock = ClockSeen(
            None if synchronized is None else synchronized == 1,
            samples.one(self.NAMES[1]),
            self._truth.error_s(self._host),
        )


class FleetTruth:
    """Compares the clock pages of all hosts at one instant of the kernel clock."""

    def __init__(self, pages: dict[str, tuple[Path, Path]]) -> None:
        """pages : host -> (clock page, virtual clock page)."""
        self._paths = pages
        self._readers: dict[str, ClockPageReader] = {}
        self._clocks = {host: VirtualClock(virtual) for host, (_, virtual) in pages.items()}

    def error_s(self, host: str) -> float | None:
        """Fleet time of `host` less the median of all hosts, at one instant; None without a page that holds."""
        kernel_raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        times = {name: self._fleet_ns(name, kernel_raw_ns) for name in self._paths}
        mine = times[host]
        known = sorted(t for t in times.values() if t is not None)
        if mine is None or len(known) < 2:
            return None
        # Whole nanoseconds: a float since 1970 is only good for a quarter of a microsecond.
        middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) // 2
        return (mine - middle) * 1e-9

    def _fleet_ns(self, host: str, kernel_raw_ns: int) -> int | None:
        try:
            reader = self._readers.get(host)
            if reader is None or reader.stale():
                if reader is not None:
                    reader.close()
                    del self._readers[host]
                reader = self._readers[host] = ClockPageReader(self._paths[host][0])
            fleet = reader.read().at(self._clocks[host].raw_from_kernel(kernel_raw_ns))
        except (OSError, LayoutError):
            return None
        return fleet.fleet_ns if fleet.status.name in ("SYNCHRONIZED", "HOLDOVER") else None


class PrometheusWatch(HttpWatch):
    """The alerts that Prometheus has, and the gain of the last plan, once there is one."""

    GAIN = "fabricpulse_remediation_rebalance_gain_ratio"

    async def poll(self, observed: Observed) -> None:
        if observed.plans:
            found = (await self.get_json(f"/api/v1/query?query={self.GAIN}"))["data"]["result"]
            observed.gains = {series["metric"]["kind"]: float(series["value"][1]) for series in found}
        answer = await self.get_json("/api/v1/alerts")
        observed.firing = tuple(
            _alert(alert["labels"], alert["state"])
            for alert in answer["data"]["alerts"]
            if _matters(alert["labels"])
        )
        observed.prometheus_answers = True


class AlertmanagerWatch(HttpWatch):
    """The alerts that Alertmanager has."""

    async def poll(self, observed: Observed) -> None:
        answer = await self.get_json("/api/v2/alerts?active=true")
        observed.notified = tuple(
            _alert(alert["labels"], alert["status"]["state"]) for alert in answer if _matters(alert["labels"])
        )
        observed.alertmanager_answers = True


def _matters(labels: dict[str, str]) -> bool:
    """False for the watchdog, which fires always and says nothing about the fabric."""
    return labels.get("severity") != "none"


def _alert(labels: dict[str, str], state: str) -> AlertSeen:
    return AlertSeen(labels.get("alertname", ""), labels.get("instance", ""), labels.get("device", ""), state)


class PluginWatch(Watch):
    """What the plugin in each process of one host says about its lanes, over the control socket."""

    def __init__(self, host: str, folder: Path, interval_s: float) -> None:
        self.name = f"plugin of {host}"
        self.interval_s = interval_s
        self._host = host
        self._folder = folder

    async def poll(self, observed: Observed) -> None:
        answers = await asyncio.to_thread(_statuses, self._folder)
        for device, nic in observed.hosts[self._host].nics.items():
            nic.in_service = in_service(answers, device)


def _statuses(folder: Path) -> list[dict[str, Any]]:
    answers = []
    for path in sorted(folder.glob("*.sock")):
        with ControlClient(path, timeout_s=1.0) as client:
            answers.append(client.call({"op": "status"}))
    return answers


def in_service(answers: Sequence[dict[str, Any]], device: str) -> bool | None:
    """Whether the jobs of a host use a NIC.

    False when every process has been asked to avoid it and no lane over it is up, True when none avoids it, None
    without a process or when it is neither.
    """
    found = [nic for answer in answers for nic in answer.get("devices", ()) if nic["device"] == device]
    if not found or len(found) < len(answers):
        return None
    if all(nic["avoided"] and nic["lanes_up"] == 0 for nic in found):
        return False
    return None if any(nic["avoided"] for nic in found) else True


class RemediationWatch(HttpWatch):
    """The journal of the remediation receiver: its actions, its plans, and the NICs that wait out a hold-down."""

    async def poll(self, observed: Observed) -> None:
        actions = await self.get_json("/api/v1/actions")
        targets = await self.get_json("/api/v1/targets")
        plans = await self.get_json("/api/v1/rebalances")
        observed.plans = tuple(
            PlanSeen(
                id=plan["id"],
                alert=plan["alert"],
                workload=plan["workload"],
                phase=plan["phase"],
                at=tuple(sorted({(move["host"], move["device"]) for move in plan["moves"]})),
                tries=plan["tries"],
                predicted=plan["predicted"],
                measured=plan["measured"],
            )
            for plan in plans
        )
        observed.actions = {
            entry["op_id"]: ActionSeen(
                id=entry["op_id"],
                action=entry["action"],
                instance=entry["target"]["host"],
                device=entry["target"]["device"],
                state=entry["outcome"],
                alert=entry["reason"],
            )
            for entry in actions
        }
        observed.hold_downs = frozenset(
            (entry["target"]["host"], entry["target"]["device"])
            for entry in targets
            if entry["phase"] == "avoided" and entry["quiet_since"] > 0
        )
