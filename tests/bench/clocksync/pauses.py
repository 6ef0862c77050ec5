"""Machines that are paused while nobody may notice, in virtual time; `bound_violations` must be 0.

Each kind of event happens in `runs` fleets of 2 to 5 hosts and one or two coordinators, drawn by seed
(tests/unit/clocksync/fleet/virtual_fleet.py): the estimators, messages, solves and fleet clocks of the daemons, with
packets of which up to 80 % meet queues. A machine, in most runs the root of the timeline, stands still for 20 us to
10 s, and goes on with all its clocks behind. Judged fifty times a second, for 25 s after it: fleet times of two hosts
that say synchronized and differ by more than the sum of their bounds; and at the end who says so with a bound of a
pause, as it slews to another host's time for an hour.

The watch of probe engines over causality is not simulated: a host whose engine and sidecar run knows within 75 ms, as
do both of two. Nor is the heartbeat (clocksync/native/heartbeat): a page whose sidecar is dead is not synchronized
after 40 ms.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.unit.clocksync.fleet.virtual_fleet import VirtualFleet
from tests.unit.clocksync.fleet.virtual_host import Host

from fabricpulse.core.shm.clock_page import ClockStatus

_STARTED_S, _AFTER_S = 12.0, 25.0
# Three of the longest probe intervals. The heartbeat of a sidecar notices the end of an engine after 0.2 s, and ticks
# publish that here.
_NOTICED_S, _ENGINE_MISSED_S = 0.075, 0.5
# Where delays show a pause, and there is no third host, both take it for their own.
_PAIR = 2
# No path of these fleets hides so much.
_WIDE_NS = 1_000_000


@dataclass
class Pause:
    """One run. size : in [0, 1). without : the daemons of the machine that do not run ("sidecar", "engine"). away_s :
    for how long they do not, if it is longer than the pause. judged_s : from then on.
    """

    fleet: VirtualFleet
    random: random.Random
    size: float
    without: frozenset[str]
    victim: Host = field(init=False)
    lost_s: float = field(init=False)
    judged_s: float = 0.0

    def __post_init__(self) -> None:
        coordinator = self.fleet.coordinators[0]
        assert coordinator is not None
        names = sorted(self.fleet.hosts)
        follows_s = self.random.random() < 0.4
        name = self.random.choice(names) if follows_s else coordinator.fleet.root
        self.victim = self.fleet.hosts[name]
        self.lost_s = 20e-6 * 500_000**self.size

    def play(self, meanwhile: "Meanwhile | None" = None) -> None:
        """The daemons end, the machine is paused, they begin again. meanwhile : happens just before the pause."""
        fleet, host, random_ = self.fleet, self.victim, self.random
        before_s, after_s = random_.uniform(0, 3), random_.uniform(0, 3)
        back_s = fleet.t_s + before_s + self.lost_s + after_s
        if "sidecar" in self.without:
            host.kill()
        if "engine" in self.without:
            host.stop_engine(fleet.t_s, back_s)
            self.judged_s = fleet.t_s + _ENGINE_MISSED_S
        fleet.run_until(fleet.t_s + before_s)
        if meanwhile is not None:
            meanwhile(self)
        paused_s = fleet.t_s
        host.freeze(paused_s, self.lost_s)
        fleet.run_until(paused_s + self.lost_s)
        self.judged_s = max(self.judged_s, fleet.t_s + _NOTICED_S)
        if not self.without:
            both = len(fleet.hosts) <= _PAIR
            for watching in fleet.hosts.values() if both else (host,):
                fleet.at(fleet.t_s + _NOTICED_S / 2, watching.contradict)
        fleet.run_until(max(fleet.t_s, back_s))
        if "sidecar" in self.without:
            host.start(fleet.t_s)


Meanwhile = Callable[[Pause], None]


def _coordinator_restarts(run: Pause) -> None:
    fleet, random_ = run.fleet, run.random
    number = random_.randrange(len(fleet.coordinators))
    fleet.at(fleet.t_s + random_.uniform(0, 2), lambda _: fleet.end_coordinator(number))
    fleet.at(fleet.t_s + random_.uniform(2, 5), lambda _: fleet.start_coordinator(number))


def _divided(run: Pause) -> None:
    names = sorted(run.fleet.hosts)
    part = set(run.random.sample(names, max(1, len(names) // 2)))
    run.fleet.divide(part, run.fleet.t_s + run.random.uniform(0.5, 12))


def _one_edge_is_left(run: Pause) -> None:
    others = sorted(set(run.fleet.hosts) - {run.victim.name})
    for other in others[1:]:
        run.fleet.cut(run.victim.name, other, run.fleet.t_s + run.random.uniform(2, 12))


def _roots_change_twice(run: Pause) -> None:
    """The first is the victim's; the next one dies as well."""
    fleet = run.fleet

    def end_root(_: float) -> None:
        coordinator = fleet.coordinators[0]
        root = fleet.hosts.get(coordinator.fleet.root) if coordinator is not None else None
        if root is not None and root.clock is not None:
            root.kill()
            fleet.at(fleet.t_s + 6, root.start)

    fleet.at(fleet.t_s + run.lost_s + run.random.uniform(2, 12), end_root)


def _other_route(run: Pause) -> None:
    """A migration: the machine is elsewhere afterwards, and one way of its paths is longer by up to 100 us."""
    for name in run.fleet.hosts:
        if name != run.victim.name:
            ends = (run.victim.name, name) if run.random.random() < 0.5 else (name, run.victim.name)
            run.fleet.lengthen(*ends, 100e3 * run.random.random())


_SIDECAR, _ENGINE = frozenset({"sidecar"}), frozenset({"engine"})
_ANY = (frozenset[str](), _SIDECAR, _ENGINE, _SIDECAR | _ENGINE)
EVENTS: dict[str, tuple[tuple[frozenset[str], ...], Meanwhile | None]] = {
    "pauses": ((frozenset(),), None),
    "pauses without a sidecar": ((_SIDECAR,), None),
    "pauses without a probe engine": ((_ENGINE,), None),
    "pauses without either": ((_SIDECAR | _ENGINE,), None),
    "pauses beside a coordinator that restarts": (_ANY, _coordinator_restarts),
    "pauses in a divided network": (_ANY, _divided),
    "pauses of a host with one live edge": (_ANY, _one_edge_is_left),
    "pauses, and the root changes twice": (_ANY, _roots_change_twice),
    "migrations to asymmetric paths": (_ANY, _other_route),
}


def violations(event: str, seed: int, size: float) -> tuple[int, int, int]:
    """Of one run: moments at which two hosts were outside their bounds; synchronized hosts with a bound of a pause at
    its end; and synchronized hosts that were looked at.
    """
    without, meanwhile = EVENTS[event]
    random_ = random.Random(f"{event} {seed}")
    hosts, coordinators = random_.choice((2, 2, 3, 3, 4, 5)), random_.choice((1, 1, 2))
    fleet = VirtualFleet(hosts, coordinators, random_.randrange(2**31), waits=random_.choice((0.0, 0.3, 0.8)))
    fleet.run_until(_STARTED_S + random_.random())
    run = Pause(fleet, random_, size, random_.choice(without))
    run.play(meanwhile)
    fleet.run_until(fleet.t_s + _AFTER_S)
    says = ClockStatus.SYNCHRONIZED
    false = [
        found_s
        for found_s, _, one, _, other in fleet.outside
        if other is not None and one.status == other.status == says and found_s > run.judged_s
    ]
    ends = [host.shown.at(host.raw_ns(fleet.t_s)) for host in fleet.hosts.values() if host.shown is not None]
    wide = sum(shown.status == says and shown.bound_ns > _WIDE_NS for shown in ends)
    return len(false), wide, fleet.looked


def bench_pauses(report: Callable[..., None], runs: int = 30) -> None:
    """Every event of EVENTS, `runs` times."""
    for event in EVENTS:
        rows = [violations(event, seed, (seed + 0.5) / runs) for seed in range(runs)]
        false, wide, looked = (sum(column) for column in zip(*rows, strict=True))
        report(f"virtual fleet, {event}", "bound_violations", false, "reads", "== 0",
               runs=runs, reads=looked, false_runs=sum(row[0] > 0 for row in rows))  # fmt: skip
        report(f"virtual fleet, {event}", "synchronized_with_a_pause", wide, "hosts")


def bench_healthy(report: Callable[..., None], hours: float = 1.0, hosts: int = 3) -> None:
    """Healthy fleets of `hosts` hosts for `hours` in all, at three loads: how long they are synchronized."""
    for waits in (0.0, 0.3, 0.8):
        fleet = VirtualFleet(hosts, 1, seed=1, waits=waits)
        fleet.run_until(_STARTED_S)
        fleet.looked = fleet.looks = 0
        fleet.run_until(_STARTED_S + hours * 1200)
        percent = 100 * fleet.looked / (fleet.looks * hosts)
        case = f"virtual fleet, healthy, {waits:.0%} of the packets wait"
        report(case, "synchronized_percent", round(percent, 3), "%", ">= 99.9", hours=round(hours / 3, 2))
        report(case, "bound_violations", len(fleet.outside), "reads", "== 0", reads=fleet.looked)
