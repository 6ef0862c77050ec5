"""What the demo has seen so far: one plain tree that observers write and milestones, view and result read.

Nothing in here was computed from what the demo did; every field comes from the output of a daemon, of Prometheus, of
Alertmanager, or of the workload. Times are `time.monotonic()` seconds at which the demo held the answer in its hands,
so a latency measured with them is never flattering.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fabricpulse.lab.demo.lateness import Lateness

HISTORY_S = 30.0
# How often a rank of the ring prints its figures.
REPORT_S = 0.2


class Series:
    """Samples of one quantity over the last seconds, oldest first."""

    def __init__(self, keep_s: float = HISTORY_S) -> None:
        self._keep_s = keep_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> None:
        """Adds a sample and forgets those that are too old."""
        self._samples.append((now, value))
        while self._samples and self._samples[0][0] < now - self._keep_s:
            self._samples.popleft()

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._samples[-1][1] if self._samples else None

    @property
    def last_at(self) -> float | None:
        """When the newest value came."""
        return self._samples[-1][0] if self._samples else None

    def values(self) -> list[float]:
        """All values, oldest first."""
        return [value for _, value in self._samples]

    def items(self) -> list[tuple[float, float]]:
        """(time, value), oldest first."""
        return list(self._samples)

    def between(self, start: float, end: float) -> list[float]:
        """Values with start <= time <= end."""
        return [value for at, value in self._samples if start <= at <= end]


class Rate:
    """A counter's growth per second over a sliding window."""

    def __init__(self, window_s: float = 1.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, total: float) -> None:
        """Adds a reading; a total below the last one is a new counter and starts anew."""
        if self._samples and total < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, total))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()

    @property
    def per_s(self) -> float | None:
        """Growth per second, or None before the window has been covered once."""
        if len(self._samples) < 2:
            return None
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        if end - start < self._window_s * 0.8:
            return None
        return (last - first) / (end - start)


@dataclass
class NicSeen:
    """One NIC, as the exporters and the plugin of its host report it."""

    device: str
    connected: bool | None = None
    disconnects: float | None = None
    owd_s: float | None = None
    in_service: bool | None = None
    sent: Rate = field(default_factory=Rate)
    received: Rate = field(default_factory=Rate)
    history: deque[str] = field(default_factory=lambda: deque(maxlen=60))

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of the workload through this NIC per second, both ways together."""
        if self.sent.per_s is None or self.received.per_s is None:
            return None
        return self.sent.per_s + self.received.per_s

    @property
    def colour(self) -> str:
        """green: connected and in service; yellow: connected, taken out of service; red: lost; gray: not known."""
        if self.connected is None:
            return "gray"
        if not self.connected:
            return "red"
        return "yellow" if self.in_service is False else "green"


@dataclass
class ClockSeen:
    """One host's clock: what its sidecar claims, and the truth, which only the lab has."""

    synchronized: bool | None = None
    bound_s: float | None = None
    true_error_s: float | None = None


@dataclass
class HostSeen:
    """One host. collective_bytes_per_s : bandwidth of the ring's all-reduce as the plugin's profiler measures it."""

    name: str
    nics: dict[str, NicSeen]
    clock: ClockSeen = field(default_factory=ClockSeen)
    edges_up: int = 0
    edges: int = 0
    collective_bytes_per_s: float | None = None


@dataclass(frozen=True)
class AlertSeen:
    """An alert as Prometheus or Alertmanager shows it."""

    name: str
    instance: str
    device: str
    state: str


@dataclass(frozen=True)
class PageSeen:
    """An alert as on-call got it. about : (label, value) of what it is about. group : Alertmanager's group."""

    ABOUT: ClassVar = ("instance", "device", "peer", "peer_device", "what", "faulty", "workload", "network")

    name: str
    about: tuple[tuple[str, str], ...]
    group: str

    def __str__(self) -> str:
        return f"{self.name} {' '.join(value for _, value in self.about)}".rstrip()


@dataclass(frozen=True)
class ActionSeen:
    """An action in the journal of the remediation receiver. done : its agents have reported success."""

    id: str
    action: str
    instance: str
    device: str
    state: str
    alert: str

    @property
    def done(self) -> bool:
        """True once the node agent has reported that the job has applied it."""
        return self.state in ("applied", "verified", "succeeded")


@dataclass(frozen=True)
class PlanSeen:
    """A plan of the remediation receiver to put lanes of a job on other paths. at : (host, device) of its lanes.

    predicted, measured : goodput of the jobs that are to gain, afterwards by before.
    """

    id: str
    alert: str
    workload: str
    phase: str
    at: tuple[tuple[str, str], ...]
    tries: int
    predicted: float
    measured: float


@dataclass
class WorkloadSeen:
    """The ring: what it prints. Counts are totals over all ranks since its start."""

    rounds: int = 0
    bandwidth: Series = field(default_factory=lambda: Series(keep_s=300.0))
    errors: int = 0
    corrupt_bytes: int = 0
    longest_gap: Series = field(default_factory=lambda: Series(keep_s=300.0))
    exited: list[str] = field(default_factory=list)
    round_history: Series = field(default_factory=lambda: Series(keep_s=300.0))

    @property
    def last_line_at(self) -> float | None:
        """When the ring last printed a result."""
        return self.bandwidth.last_at

    def rounds_at(self, at: float) -> int | None:
        """Rounds that had been reported by a moment, None before the first report."""
        earlier = self.round_history.between(0.0, at)
        return int(earlier[-1]) if earlier else None

    def stall(self, start: float, end: float) -> tuple[float, float, float] | None:
        """The longest gap between completed chunks that any rank reported in a span of time.

        (milliseconds, start, end of the time in which it lies): a rank reports its gaps each REPORT_S.
        """
        gaps = [(gap, at) for at, gap in self.longest_gap.items() if start <= at <= end]
        if not gaps:
            return None
        gap, at = max(gaps)
        return gap, at - REPORT_S - gap * 1e-3, at


@dataclass
class Observed:
    """All of it."""

    hosts: dict[str, HostSeen]
    workload: WorkloadSeen = field(default_factory=WorkloadSeen)
    lateness: Lateness = field(default_factory=Lateness)
    firing: tuple[AlertSeen, ...] = ()
    notified: tuple[AlertSeen, ...] = ()
    pages: dict[PageSeen, float] = field(default_factory=dict)
    prometheus_answers: bool = False
    alertmanager_answers: bool = False
    actions: dict[str, ActionSeen] = field(default_factory=dict)
    plans: tuple[PlanSeen, ...] = ()
    gains: dict[str, float] = field(default_factory=dict)
    hold_downs: frozenset[tuple[str, str]] = frozenset()
    marks: dict[str, float] = field(default_factory=dict)
    read_errors: dict[str, str] = field(default_factory=dict)

    def nic(self, host: str, device: str) -> NicSeen:
        """The NIC `device` of `host`."""
        return self.hosts[host].nics[device]

    def action(self, action: str, host: str, device: str) -> ActionSeen | None:
        """The newest journal entry of this kind about one NIC, or None."""
        found = None
        for entry in self.actions.values():
            if (entry.action, entry.instance, entry.device) == (action, host, device):
                found = entry
        return found

    def nics(self) -> list[tuple[HostSeen, NicSeen]]:
        """All NICs, host by host."""
        return [(host, nic) for host in self.hosts.values() for nic in host.nics.values()]


def new_observed(fleet: Mapping[str, Iterable[str]]) -> Observed:
    """Nothing seen yet of a fleet of host name -> device names."""
    return Observed(
        {
            host: HostSeen(host, {device: NicSeen(device) for device in devices})
            for host, devices in fleet.items()
        }
    )


def find_alert(alerts: Iterable[AlertSeen], name: str, instance: str, device: str) -> AlertSeen | None:
    """The alert `name` about one NIC, or None."""
    for alert in alerts:
        if (alert.name, alert.instance, alert.device) == (name, instance, device):
            return alert
    return None
