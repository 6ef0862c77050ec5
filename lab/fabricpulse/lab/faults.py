"""Faults on real links. Each is in force when the call returns, and is undone by `undo()`, `with`, or `lab.heal()`.

Directions are seen from the node that has the port: `in` arrives at it, `out` leaves it. Of a NIC: `rx` arrives at the
host, `tx` leaves it. A NIC's faults sit on the switch end of its cable, as in life: the host sees a lost carrier, or
nothing at all.
"""

import random
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from fabricpulse.core.errors import UserError
from fabricpulse.lab.channel import LabClosedError
from fabricpulse.lab.delay_line import MARK
from fabricpulse.lab.delay_line import start as start_delay_line
from fabricpulse.lab.fabric import BRIDGE, FRONT_END
from fabricpulse.lab.runtime import LabRuntime

Way = Literal["in", "out", "both"]
NicWay = Literal["rx", "tx", "both"]

# tbf lets a packet through at line rate while it has tokens: a bucket of 1 ms keeps the shaped rate smooth at the
# scale that probes see, and two packets is the least that works at all.
_BUCKET_S = 0.001


# Bytes from the start of a TCP header that has time stamps: of a frame's header, if one begins a packet, and of what
# follows.
_CORRUPT_AT = (34, 40, 60, 200, 1000)


class Fault:
    """Something broken on purpose. `undo()` repairs it; twice does no harm."""

    def __init__(self, lab: LabRuntime, what: str, undo: Callable[[], None]) -> None:
        self.what = what
        self._lab = lab
        self._undo: Callable[[], None] | None = undo
        self._lock = threading.Lock()
        lab.faults_in_force.append(self)

    @property
    def active(self) -> bool:
        """True until it is undone."""
        return self._undo is not None

    def undo(self) -> None:
        """Mends what this fault has broken."""
        with self._lock:
            undo, self._undo = self._undo, None
            if undo is not None:
                with suppress(LabClosedError):  # with the lab the fault is gone
                    undo()
                with suppress(ValueError):
                    self._lab.faults_in_force.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<Fault {self.what} {'active' if self.active else 'undone'}>"


@dataclass(frozen=True)
class LinkEvent:
    """A change of a link. The kernel made it between before_ns and after_ns (CLOCK_REALTIME)."""

    up: bool
    before_ns: int
    after_ns: int


class LinkDown(Fault):
    """A link held down. `event` says when it went."""

    def __init__(self, lab: LabRuntime, what: str, undo: Callable[[], None], event: LinkEvent) -> None:
        super().__init__(lab, what, undo)
        self.event = event


@dataclass
class FlapPlan:
    """When a flapping link goes down and comes back: alternating seconds (up, down), pure and seeded."""

    rate_hz: float
    count: int | None = None
    down_fraction: float = 0.5
    jitter: float = 0.2
    seed: int = 1
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.rate_hz <= 0 or not 0 < self.down_fraction < 1 or not 0 <= self.jitter < 1:
            raise UserError("a flap needs rate_hz > 0, 0 < down_fraction < 1 and 0 <= jitter < 1")
        self._random = random.Random(self.seed)  # noqa: S311 - a schedule, no secret

    def cycles(self) -> Iterable[tuple[float, float]]:
        """(seconds down, seconds up) of each flap; endless without `count`."""
        number = 0
        while self.count is None or number < self.count:
            period = 1 / self.rate_hz * self._random.uniform(1 - self.jitter, 1 + self.jitter)
            yield period * self.down_fraction, period * (1 - self.down_fraction)
            number += 1


class Flap(Fault):
    """A link that goes down and up until its count is reached or it is undone; it is left up.

    events : every change so far, in order. Changes run in a thread of the parent.
    """

    def __init__(
        self, lab: LabRuntime, what: str, set_link: Callable[[bool], LinkEvent], plan: FlapPlan
    ) -> None:
        self._stop = threading.Event()
        self._set_link = set_link
        self._plan = plan
        self.events: list[LinkEvent] = []
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lab-{what}", daemon=True)
        super().__init__(lab, what, self._end)
        self._thread.start()
        self._first.wait(10)

    def wait(self, timeout: float | None = None) -> bool:
        """True once all flaps are over (with `count`)."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def flaps(self) -> int:
        """How often the link has gone down so far."""
        return sum(not event.up for event in self.events)

    def _run(self) -> None:
        try:
            for down_s, up_s in self._plan.cycles():
                self.events.append(self._set_link(False))
                self._first.set()
                stopped = self._stop.wait(down_s)
                self.events.append(self._set_link(True))
                if stopped or self._stop.wait(up_s):
                    return
        except (OSError, UserError):
            return  # the lab was closed under it
        finally:
            self._first.set()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()


class Port:
    """One end of a cable on a node; the place where its faults are made."""

    def __init__(self, lab: LabRuntime, node: str, device: str, peer: tuple[str, str]) -> None:
        self._lab = lab
        self.node = node
        self.device = device
        self.peer = peer
        self._limits: list[tuple[int, str]] = []

    def __repr__(self) -> str:
        return f"{self.node}:{self.device}"

    @property
    def _mtu(self) -> int:
        return 1500 if FRONT_END in (self.node, self.peer[0]) else self._lab.fabric.mtu

    @property
    def _is_bridge_port(self) -> bool:
        fabric = self._lab.fabric
        return self.node == FRONT_END or (
            self.node in fabric.leaf_names and self.peer[0] in fabric.host_names
        )

    def set_up(self, up: bool) -> LinkEvent:
        """Sets this end administratively up or down; the other end gains or loses carrier."""
        answer, _ = self._lab.request("link", node=self.node, device=self.device, up=up)
        return LinkEvent(up, answer["before_ns"], answer["after_ns"])

    def down(self) -> LinkDown:
        """Holds the link down from this end: the other end loses its carrier."""
        event = self.set_up(False)

        def undo() -> None:
            self.set_up(True)

        return LinkDown(self._lab, f"down {self}", undo, event)

    def flap(self, rate_hz: float = 1.0, count: int | None = None, **plan: float) -> Flap:
        """Down and up at `rate_hz`; see FlapPlan for down_fraction, jitter, seed."""
        seed = int(plan.pop("seed", 1))
        return Flap(self._lab, f"flap {self}", self.set_up, FlapPlan(rate_hz, count, seed=seed, **plan))

    def loss(self, percent: float, way: Way = "both", match: str = "") -> Fault:
        """Drops each packet with this probability. match : nft expression (`udp dport 9620`) of those to hit."""
        if not 0 < percent <= 100:
            raise UserError(f"loss of {percent} % is not possible: choose more than 0, at most 100")
        chance = "" if percent == 100 else f"numgen random mod 1000000 < {round(percent * 10_000)}"
        return self._filter(f"loss {percent:g}% {way} {self}", way, [f"{match} {chance} counter drop"])

    def black_hole(self, way: Way = "both", match: str = "") -> Fault:
        """Drops everything this way while both ends keep their carrier: a grey failure."""
        return self.loss(100, way, match)

    def corrupt(self, percent: float, way: Way = "both", match: str = "") -> Fault:
        """Overwrites one byte behind the TCP header of packets with this probability, at one of a few places.

        No checksum notices: the hosts of a lab leave theirs to hardware that is not there, as a switch does that
        damages a frame and computes its checksum anew.
        """
        if not 0 < percent <= 100:
            raise UserError(f"damage to {percent} % is not possible: choose more than 0, at most 100")
        chance = f"numgen random mod 1000000 < {round(percent * 10_000 / len(_CORRUPT_AT))}"
        rules = [
            f"{match} meta l4proto tcp {chance} @th,{at * 8},8 set {0x5A + at % 7:#x} counter"
            for at in _CORRUPT_AT
        ]
        return self._filter(f"corrupt {percent:g}% {way} {self}", way, rules)

    def ecn_mark(self, percent: float = 100, way: Way = "out", match: str = "") -> Fault:
        """Marks ECN-capable packets CE with this probability, as a congested switch does."""
        chance = "" if percent == 100 else f"numgen random mod 1000000 < {round(percent * 10_000)}"
        rules = [
            f"{match} ip ecn {{ ect0, ect1 }} {chance} counter ip ecn set ce",
            f"{match} ip6 ecn {{ ect0, ect1 }} {chance} counter ip6 ecn set ce",
        ]
        return self._filter(f"ecn mark {percent:g}% {way} {self}", way, rules)

    def limit(self, mbit: float, queue_ms: float = 20.0) -> Fault:
        """Sends at most `mbit` Mbit/s out of this port; at most `queue_ms` of traffic waits, the rest is dropped.

        Of several limits of one port the newest holds.
        """
        line = tbf(self.device, mbit, queue_ms, self._mtu)
        number = self._lab.next_number()
        limits = self._limits
        self._lab.batch(self.node, "tc", [line])
        limits.append((number, line))

        def undo() -> None:
            was_newest = limits[-1][0] == number
            limits[:] = [entry for entry in limits if entry[0] != number]
            if was_newest:
                remaining = limits[-1][1] if limits else f"qdisc del dev {self.device} root"
                self._lab.batch(self.node, "tc", [remaining])

        return Fault(self._lab, f"limit {mbit:g} Mbit/s {self}", undo)

    def delay(self, delay_ms: float) -> Fault:
        """Sends every UDP packet out of this port later by so much, in order. Raises UserError if it is not above 0."""
        if delay_ms <= 0:
            raise UserError(f"a delay of {delay_ms} ms is not possible: it must be above 0")
        number = self._lab.next_number()
        table, tap = f"fabricpulse_{number}", f"delay{number}"
        order = {"device": self.device, "tap": tap, "delay_s": delay_ms / 1e3, "mtu": self._mtu}
        process = start_delay_line(self._lab, self.node, tap, "fabricpulse.lab.delay_line", order)
        hook = f'type filter hook egress device "{self.device}" priority 0 ;'
        try:
            self._lab.batch(self.node, "ip", [f"link set dev {tap} mtu {self._mtu} up"])
            self._lab.batch(
                self.node,
                "nft",
                [
                    f"add table netdev {table}",
                    f"add chain netdev {table} egress {{ {hook} }}",
                    f'add rule netdev {table} egress meta mark != {MARK} meta l4proto udp fwd to "{tap}"',
                ],
            )
        except BaseException:
            process.kill()
            raise

        def undo() -> None:
            self._lab.batch(self.node, "nft", [f"delete table netdev {table}"])
            process.kill()
            process.wait(10)

        return Fault(self._lab, f"delay {delay_ms:g} ms {self}", undo)

    def mtu(self, size: int) -> Fault:
        """Takes no frame of more than `size` bytes (IP header included) from its cable, and says nothing about it."""
        usual = self._mtu
        if not 68 <= size <= usual:
            raise UserError(f"an MTU of {size} at {self} is no fault: choose 68 to {usual}")

        def change(value: int) -> None:
            lines = [f"link set dev {self.device} mtu {value}"]
            if self._is_bridge_port:
                # A bridge lowers its own MTU to that of its ports, which would be another fault.
                lines.append(f"link set dev {BRIDGE} mtu {usual}")
            self._lab.batch(self.node, "ip", lines)

        change(size)
        return Fault(self._lab, f"mtu {size} {self}", lambda: change(usual))

    def _filter(self, what: str, way: Way, rules: list[str]) -> Fault:
        table = f"fabricpulse_{self._lab.next_number()}"
        hooks = {"in": ["ingress"], "out": ["egress"], "both": ["ingress", "egress"]}[way]
        lines = [f"add table netdev {table}"]
        for hook in hooks:
            lines.append(
                f'add chain netdev {table} {hook} {{ type filter hook {hook} device "{self.device}" priority 0 ; }}'
            )
            lines += [f"add rule netdev {table} {hook} {rule}" for rule in rules]
        self._lab.batch(self.node, "nft", lines)

        def undo() -> None:
            self._lab.batch(self.node, "nft", [f"delete table netdev {table}"])

        return Fault(self._lab, what, undo)


def tbf(device: str, mbit: float, queue_ms: float, mtu: int) -> str:
    """The tc line that shapes `device`. Raises UserError for a rate that cannot be."""
    if mbit <= 0 or queue_ms <= 0:
        raise UserError(
            f"a limit of {mbit} Mbit/s with a queue of {queue_ms} ms is not possible: both must be above 0"
        )
    bytes_per_s = mbit * 1e6 / 8
    burst = max(2 * (mtu + 18), round(bytes_per_s * _BUCKET_S))
    limit = max(burst, round(bytes_per_s * queue_ms / 1000))
    return f"qdisc replace dev {device} root tbf rate {round(mbit * 1e6)}bit burst {burst}b limit {limit}b"


def together(lab: LabRuntime, what: str, faults: Iterable[Fault]) -> Fault:
    """Several faults as one."""
    parts = list(faults)

    def undo() -> None:
        for part in reversed(parts):
            part.undo()

    return Fault(lab, what, undo)
