"""What a scenario is: the phases of a fault, and the checks at its end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

from fabricpulse.lab.demo.observed import Observed
from fabricpulse.lab.demo.scenario_run import Phase, ScenarioRun
from fabricpulse.lab.demo.workload import Job


class Stage(Protocol):
    """What a scenario may do to the lab."""

    async def link(self, host: str, device: str, up: bool) -> None:
        """Puts the link of a NIC down or up, on the real veth."""

    async def lose(self, host: str, device: str, percent: float) -> None:
        """Drops a share of the packets towards a NIC, at the switch; 0 ends it."""

    async def slow(self, host: str, device: str, mbit: float) -> None:
        """Lets no more than so many Mbit/s through to a NIC; 0 gives it its own speed again."""

    async def shrink_mtu(self, host: str, device: str, size: int) -> None:
        """Gives a NIC an MTU of so many bytes; 0 gives it its own again."""

    async def lose_time(self, host: str, lost_ns: int) -> None:
        """Both clocks of a host lose so many nanoseconds, as in a pause of its machine."""

    async def power_off(self, host: str) -> None:
        """Kills a host, for good."""

    async def power_leaf(self, leaf: str, *, on: bool) -> None:
        """Takes the power of a leaf, or gives it back: all who are cabled to it lose their carrier."""

    async def straggle(self, host: str) -> None:
        """Makes the rank of a host enter each round of the ring late, or no more if it does."""

    async def skew(self, host: str) -> None:
        """Makes the rank of a host send more to the hot rank than to others, or no more if it does."""

    async def suspend_rank(self, host: str, suspended: bool) -> None:
        """Stops the ring's process of a host where it is, and lets it go on."""

    async def load(
        self,
        source: str,
        destination: str,
        mbit: float,
        beside: tuple[str, str] | None = None,
        apart: tuple[str, str] | None = None,
    ) -> None:
        """Sends so many Mbit/s from "h0-rail0" to "h3-rail0", which no daemon sees; 0 ends it.

        beside : over the spine that the job takes from the first of these NICs to the second. apart : not over the one
        of acknowledgements of what it sends from the first of these to the second.
        """

    async def detour(self, source: str, destination: str, delay_ms: float) -> None:
        """Sends TCP from "h1-rail0" to "h2-rail0" over a way that is so much longer; 0 ends it."""

    async def sleep(self, seconds: float) -> None:
        """Waits without holding up the observers."""

    def mark(self, name: str) -> None:
        """Remembers the time of something that the scenario did, the first time that it does it."""

    def seen(self, milestone: str) -> bool:
        """True once the run has seen a milestone."""


@dataclass(frozen=True)
class Fleet:
    """Who takes part: names of hosts, of devices, and of the leaf of each device, in order."""

    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """What a scenario is played on.

    pods : groups of hosts with leaves of their own. spines : between leaves. uplink_mbit : speed of each cable between
    leaf and spine, None = as fast as this machine can. leaves : whether the membership names the leaf of each NIC.
    rules : knobs of the mixin, beside those of every demo. repaths : whether remediation gives contended flows other
    paths. poll_s : how often the mesh is asked, in seconds, and twice as often how late this machine is; each answer
    costs milliseconds of the cores that the fleet runs on.
    """

    pods: int = 1
    spines: int = 2
    uplink_mbit: float | None = None
    leaves: bool = False
    job: Job = field(default_factory=Job)
    rules: Mapping[str, Any] = field(default_factory=dict)
    repaths: bool = False
    poll_s: float = 0.2


class Judgement(Enum):
    """What came of a check."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Check:
    """Something measured that must hold at the end. value : None if it could not be measured, which breaks it.

    late : by how much this machine can have delayed it, in the unit of the value; with it the limit is not moved, but
    a value that is beyond the limit by no more than that says nothing about the fleet.
    """

    name: str
    text: str
    value: float | None
    limit: float
    unit: str
    late: float = 0.0

    @property
    def judgement(self) -> Judgement:
        """Kept within the limit; beyond it broken, or not judged where the machine was late by as much."""
        if self.value is None:
            return Judgement.BROKEN
        if self.value <= self.limit:
            return Judgement.KEPT
        return Judgement.NOT_JUDGED if self.value - self.late <= self.limit else Judgement.BROKEN


# Name in the JSON result (none for what only the text output has), label and value in the text output.
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Outcome(ABC):
    """The figures of a scenario's result, one field each; None where one was not measured."""

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The closing table."""

    @abstractmethod
    def checks(self) -> Sequence[Check]:
        """What must hold of the figures; the demo fails when one does not."""


class Scenario(ABC):
    """One fault on one fleet.

    least_hosts : how many the fleet must have for it. diagnosis : whether the coordinator must know the topology.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    least_hosts: ClassVar[int] = 2
    diagnosis: ClassVar[bool] = False
    setting: ClassVar[Setting] = Setting()

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """The phases, in order."""

    @abstractmethod
    def outcome(self, run: ScenarioRun, observed: Observed) -> Outcome:
        """The figures, from the times at which milestones were seen and what the workload printed."""


def shown(value: float | None, factor: float, unit: str, digits: int) -> str:
    """`value` times `factor` with its unit, as a person reads it."""
    return "not measured" if value is None else f"{value * factor:.{digits}f} {unit}".rstrip()


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean, None of nothing."""
    return sum(values) / len(values) if values else None
