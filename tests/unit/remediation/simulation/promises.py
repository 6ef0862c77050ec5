"""What must hold in a simulated fleet, whatever becomes of it, counted from what is true and from what was decided:

capacity    at most a quarter of a host's NICs is out, and none leaves that is the last one that works
job         at most two NICs of a job of six hosts with four NICs
budget      one action at a time, twenty a minute, three hosts within five minutes until a resume
leaf        of a leaf that has failed no NIC leaves once four of its hosts have an alert
people      nothing is decided while paused or while the breaker of that direction is tripped
blind       nothing is decided about a host whose agent is silent
hold        a NIC comes back after so many seconds in which it was seen healthy, the last of them without a gap
order       generations rise, and one never says two things
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit.remediation.simulation.simulated_nic import Nic
from tests.unit.remediation.simulation.simulated_policy import (
    A_MINUTE,
    AGENT_TIMEOUT_S,
    BREAKER_HOSTS,
    BREAKER_WINDOW_S,
    HOLD_S,
    IN_FLIGHT,
    JOB_NICS,
    NICS,
    REVALIDATE_S,
    TICK_S,
    TOGETHER_HOSTS,
    TOGETHER_S,
    job_of,
)

from fabricpulse.remediation.receiver.state.model import State
from fabricpulse.remediation.receiver.state.transaction import Transition

NEVER_ARRIVED = "it never reached its agent"
UNDONE = ("rolled back", "no agent fetched", "released by", NEVER_ARRIVED)


class ViolationError(AssertionError):
    """What must hold does not. name : of the promise."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Promises:
    """Each method raises ViolationError. now : by the receiver's clock."""

    def __init__(self, nics: Mapping[str, Nic]) -> None:
        self._nics = nics
        self._avoids: list[tuple[float, str]] = []
        self._generations: dict[str, tuple[int, str]] = {}

    def clock_was_set(self, now: float) -> None:
        """Nothing was decided later than now."""
        self._avoids = [(min(at, now), key) for at, key in self._avoids]

    def check_people(
        self, decided: Sequence[Transition], pause: Any, breakers: Mapping[str, Any], now: float
    ) -> None:
        """pause, breakers : before the decisions."""
        paused = pause is not None and (not pause.until or now < pause.until)
        for line in decided:
            if line.event not in ("nic.avoid", "nic.restore") or line.detail["reason"].startswith(UNDONE):
                continue
            direction = "failover" if line.event == "nic.avoid" else "failback"
            if paused or direction in breakers:
                raise ViolationError("people", f"{line} while {pause or breakers}")

    def check_line(
        self, line: Transition, state: State, now: float, resumed_at: float, leaves_down: set[str]
    ) -> None:
        """A decision. state : before it. leaves_down : in truth."""
        if line.event == "nic.avoid":
            self._check_avoid(line, state, now, resumed_at, leaves_down)
        elif line.event == "nic.restore" and line.detail["reason"] == NEVER_ARRIVED:
            if self._nics[line.subject].generation >= state.targets[line.subject].generation:
                raise ViolationError("hold", f"{line.subject} returns, and its agent has what took it out")
        elif line.event == "nic.restore" and not line.detail["reason"].startswith(UNDONE):
            self._check_restore(line)

    def _check_avoid(
        self, line: Transition, state: State, now: float, resumed_at: float, leaves_down: set[str]
    ) -> None:
        nic = self._nics[line.subject]
        agent = state.agents.get(nic.host)
        if agent is None or now - agent.seen_at > AGENT_TIMEOUT_S:
            raise ViolationError("blind", f"{line.subject} leaves, and its agent is silent")
        others = [d for d, usable in agent.devices.items() if usable and d != nic.device]
        if not others:
            raise ViolationError("capacity", f"{line.subject} is the last NIC that works")
        if nic.leaf in leaves_down:
            alerted = [n for n in self._nics.values() if n.leaf == nic.leaf and n.fires_since]
            near = {n.host for n in alerted if abs(n.reported_at - nic.reported_at) <= TOGETHER_S / 2}
            if len(near) >= TOGETHER_HOSTS and nic.host in near:
                raise ViolationError("leaf", f"{line.subject} leaves, {nic.leaf} is down for {sorted(near)}")
        self._avoids = [entry for entry in self._avoids if now - entry[0] <= BREAKER_WINDOW_S]
        self._avoids.append((now, line.subject))
        if sum(now - at <= 60.0 for at, _ in self._avoids) > A_MINUTE:
            raise ViolationError("budget", f"more than {A_MINUTE} NICs left within a minute")
        hosts = {key.partition("/")[0] for at, key in self._avoids if at > resumed_at}
        if len(hosts) > BREAKER_HOSTS:
            raise ViolationError("budget", f"{sorted(hosts)} within {BREAKER_WINDOW_S:.0f} s")

    def _check_restore(self, line: Transition) -> None:
        nic = self._nics[line.subject]
        if nic.seen_s < HOLD_S - TICK_S or nic.without_gap_s < REVALIDATE_S - TICK_S:
            seen = f"{nic.seen_s:.0f} s seen healthy, {nic.without_gap_s:.0f} s without a gap"
            raise ViolationError("hold", f"{line.subject} returns after {seen}")

    def check_state(self, state: State) -> None:
        """After the decisions."""
        out: dict[str, list[str]] = defaultdict(list)
        jobs: Counter[str] = Counter()
        for key, target in state.targets.items():
            if target.generation:
                known, said = self._generations.get(key, (0, ""))
                if target.generation < known:
                    raise ViolationError("order", f"{key} went back from {known} to {target.generation}")
                if target.generation == known and said != target.desired:
                    raise ViolationError("order", f"generation {known} of {key} says two things")
                self._generations[key] = (target.generation, target.desired)
            if target.desired == "avoid":
                out[target.target.host].append(key)
                jobs[job_of(target.target.host)] += 1
        for keys in out.values():
            if len(keys) > NICS // 4:
                raise ViolationError("capacity", f"out: {keys}")
        for job, count in jobs.items():
            if count > JOB_NICS:
                raise ViolationError("job", f"{count} NICs of {job} are out: {dict(out)}")
        pending = [a for a in state.actions.values() if a.outcome == "pending"]
        decided = [a.target.host for a in pending if not a.reason.startswith(UNDONE)]
        if len(decided) > IN_FLIGHT or len(set(decided)) < len(decided):
            raise ViolationError("budget", f"under way: {decided}")
