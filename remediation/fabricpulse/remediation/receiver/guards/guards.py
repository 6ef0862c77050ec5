"""Guards: may this action be taken now? Pure: made from one state at one moment.

Each guard answers with a reason of a closed set, which is also the label of `fabricpulse_remediation_blocked_total`.
What they need of the whole fleet is gathered once per cycle, not per target.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property

from fabricpulse.remediation.receiver.config import GuardConfig, ReceiverConfig
from fabricpulse.remediation.receiver.guards.maintenance import in_maintenance
from fabricpulse.remediation.receiver.guards.rule_record import FLEET, stops_of
from fabricpulse.remediation.receiver.guards.shared_cause import SharedCauses
from fabricpulse.remediation.receiver.state.counted_hosts import counted_hosts
from fabricpulse.remediation.receiver.state.in_flight import is_paused
from fabricpulse.remediation.receiver.state.model import (
    AgentState,
    Bucket,
    Direction,
    Episode,
    Target,
    TargetState,
)
from fabricpulse.remediation.receiver.state.transaction import Transaction

REASONS = (
    "paused",
    "maintenance",
    "breaker",
    "frozen",
    "alertmanager_lost",
    "alerting_dead",
    "agent_lost",
    "last_nic",
    "capacity",
    "cooldown",
    "attempts",
    "in_flight",
    "budget",
    "rate",
    "shared_cause",
    "backoff",
    "harmful",
    "not_acting",
    "manual",
    "unproven",
    "unhelpful",
    "workload",
    "unconfirmed",
    "not_measured",
    "no_gain",
)
# An alert is too young to be acted on; every one is at first, so that this is no reason to write down.
SETTLING = "settling"
# They change within seconds: going from one to another is not worth a line in the journal.
TRANSIENT = frozenset({"in_flight", "budget", "rate"})

# A host counts in relative limits after it has reported for so long.
_OBSERVED_AFTER_S = 600.0


class Guards:
    """The guards, for one state at one moment; `took` keeps them true while actions are decided one after another."""

    def __init__(
        self,
        config: ReceiverConfig,
        nics: dict[str, frozenset[str]],
        state: Transaction,
        now: float,
        shared: SharedCauses | None = None,
    ) -> None:
        """nics : the devices of each host, where a membership file names them. shared : follows the episodes from cycle
        to cycle."""
        self._config = config
        self._limits = config.guards
        self._nics = nics
        self._state = state
        self._now = now
        # Windows are of people's time.
        self._wall = now + state.wall_ahead_s
        self._busy_hosts: set[str] = set()
        self._in_flight = 0
        for action in state.actions.values():
            if action.outcome == "pending" and not action.dry_run:
                self._busy_hosts.add(action.target.host)
                self._in_flight += 1
        self._out: defaultdict[str, set[str]] = defaultdict(set)
        # Of these, what this receiver has decided: what a host only says that it holds out limits no other host.
        self._taken: defaultdict[str, set[str]] = defaultdict(set)
        # Of hosts whose agents have not reported since the start; they are of the job that ran there before.
        self._out_unseen: Counter[str] = Counter()
        for target in state.targets.values():
            if target.desired == "avoid" or target.phase in ("restoring", "manual"):
                self._out[target.target.host].add(target.target.device)
                if not target.avoid_op_id:
                    continue
                self._taken[target.target.host].add(target.target.device)
                if target.target.host not in state.agents:
                    self._out_unseen.update(target.workloads)
        # When many agents are lost at once, it is the receiver that is cut off: decide nothing. Of those that have
        # reported for long as well: many that have just registered must not hide it. Nor cause it, where they may be
        # made up and there are others to go by.
        counted = counted_hosts(state.agents.values(), nics)
        known = [agent for agent in counted if agent.seen_at - agent.first_seen >= _OBSERVED_AFTER_S]
        young = [agent for agent in counted if agent.seen_at - agent.first_seen < _OBSERVED_AFTER_S]
        proven = known + [agent for agent in young if not agent.source]
        self._frozen = self._many_lost(proven if known[2:] else counted) or self._many_lost(known)
        self._observed = [agent for agent in counted if self._is_observed(agent)]
        self._observed_names = {agent.host for agent in self._observed}
        self._shared_causes = shared
        self._by_workload: defaultdict[str, list[AgentState]] = defaultdict(list)
        self._stopped: dict[str, dict[str, str]] = {}
        self._hosts: dict[str, set[str]] = {
            direction: {
                key.partition("/")[0]
                for when, past, key in state.recent
                if past == direction and now - when <= self._limits.breaker_window_s
            }
            for direction in ("failover", "failback")
        }
        self._tokens = {
            d: bucket_level(self._limits, state.buckets.get(d), now) for d in ("failover", "failback")
        }

    def failover(self, current: TargetState, episode: Episode) -> str:
        """The reason that forbids taking the target out of service, or "" if nothing does."""
        if reason := self._standing("failover", current.target):
            return reason
        if self._config.alertmanagers and self._now - self._state.contact_at > self._config.poll_timeout_s:
            return "alertmanager_lost"
        limits = self._limits
        if current.phase == "manual":
            return "manual"
        if self._now - episode.first_seen < limits.settle_s or self._holds_back():
            return SETTLING
        if self._now < current.retry_at:
            return "backoff"
        if current.failovers and self._now - current.failovers[-1] < limits.cooldown_s:
            return "cooldown"
        recent = sum(1 for when in current.attempts if self._now - when <= limits.attempts_window_s)
        if recent >= limits.max_attempts:
            return "attempts"
        if episode.fingerprint in self._shared:
            return "shared_cause"
        if reason := self._stop_of(episode.alert, current.target.host):
            return reason
        return (
            self._capacity(current.target)
            or self._workload(current.target)
            or self._room("failover", current.target.host)
        )

    def failback(self, current: TargetState) -> str:
        """The reason that forbids putting the target back into service, or ""."""
        if current.phase == "manual":
            return "manual"
        if reason := self._standing("failback", current.target):
            return reason
        if self._config.alertmanagers and self._now - self._state.polled_at > self._config.poll_timeout_s:
            return "alertmanager_lost"
        if self._config.watchdog and self._state.watchdog == "lost":
            return "alerting_dead"
        connected = self._state.agents[current.target.host].connected.get(current.target.device)
        if current.needs_probe and not connected:
            return "unproven"
        return self._room("failback", current.target.host)

    def host(self, host: str, episode: Episode) -> str:
        """The reason that forbids draining this host, or "". Its agent need not report: it may be what is broken."""
        if reason := self.people(host):
            return reason
        if self._frozen:
            return "frozen"
        if self._config.alertmanagers and self._now - self._state.contact_at > self._config.poll_timeout_s:
            return "alertmanager_lost"
        if self._now - episode.first_seen < self._limits.settle_s or self._holds_back():
            return SETTLING
        return "shared_cause" if episode.fingerprint in self._shared else ""

    def _holds_back(self) -> bool:
        """Whether alerts wait for an Alertmanager's answer: they may be of one leaf with those that did not. Not for
        longer than what is overdue is held back at all."""
        state = self._state
        waits: bool = state.held_back_at > state.answered_at
        return waits and self._now - state.polled_at <= self._config.poll_timeout_s

    def people(self, host: str) -> str:
        """Whether people, or a breaker that waits for them, forbid to leave this host."""
        if is_paused(self._state.pause, self._now):
            return "paused"
        if in_maintenance(self._config.maintenance, Target(host, ""), self._wall):
            return "maintenance"
        return "breaker" if "failover" in self._state.breakers else ""

    def lane(self, target: Target) -> str:
        """The reason that forbids changing lanes over this NIC, or ""."""
        return self._standing("failover", target)

    def lane_alert(self, episode: Episode) -> str:
        """The reason that forbids believing an alert that asks for other paths or weights of lanes, or ""."""
        if self._config.alertmanagers and self._now - self._state.contact_at > self._config.poll_timeout_s:
            return "alertmanager_lost"
        return SETTLING if self._now - episode.first_seen < self._limits.settle_s else ""

    def breaker(self, direction: Direction, host: str) -> str:
        """Why an action on `host` must trip the breaker instead, or "".

        The relative limit is of hosts that were observed for long, and is bounded itself: who registers many hosts must
        not raise it, and no fleet is so large that many of its hosts fail within the window by themselves.
        """
        hosts = self._hosts[direction] | {host}
        relative = int(self._limits.breaker_fraction * len(self._observed))
        limit = max(self._limits.breaker_hosts, min(self._limits.breaker_max_hosts, relative))
        if len(hosts) <= limit:
            return ""
        window = f"{self._limits.breaker_window_s:.0f} s"
        return f"{direction} would touch {len(hosts)} hosts within {window}, {limit} allowed"

    def took(self, direction: Direction, target: Target) -> Bucket:
        """Counts an action that has been decided; returns the bucket that it has been taken from."""
        self._busy_hosts.add(target.host)
        self._in_flight += 1
        self._hosts[direction].add(target.host)
        if direction == "failover":
            self._out[target.host].add(target.device)
            self._taken[target.host].add(target.device)
        self._tokens[direction] -= 1
        return Bucket(self._tokens[direction], self._now)

    def _standing(self, direction: Direction, target: Target) -> str:
        if is_paused(self._state.pause, self._now):
            return "paused"
        if in_maintenance(self._config.maintenance, target, self._wall):
            return "maintenance"
        if direction in self._state.breakers:
            return "breaker"
        if self._frozen:
            return "frozen"
        agent = self._state.agents.get(target.host)
        if agent is None or self._now - agent.seen_at > self._limits.agent_timeout_s:
            return "agent_lost"
        return ""

    def _room(self, direction: Direction, host: str) -> str:
        if host in self._busy_hosts:
            return "in_flight"
        if self._in_flight >= self._limits.max_in_flight:
            return "budget"
        return "rate" if self._tokens[direction] < 1 else ""

    def _many_lost(self, agents: Iterable[AgentState]) -> bool:
        """Whether too many of these are lost. Hosts that were retired long ago do not count."""
        silences = [self._now - agent.seen_at for agent in agents]
        alive = sum(1 for silence in silences if silence <= self._limits.agent_timeout_s)
        counted = sum(1 for silence in silences if silence <= self._limits.lost_agents_window_s)
        return counted > 2 and (counted - alive) / counted > self._limits.lost_agents_fraction

    def _is_observed(self, agent: AgentState) -> bool:
        """Whether a counted host counts in relative limits: reported for long, a NIC was observed healthy."""
        if self._now - agent.seen_at > self._limits.agent_timeout_s:
            return False
        return self._now - agent.first_seen >= _OBSERVED_AFTER_S and "healthy" in agent.health.values()

    @cached_property
    def _shared(self) -> SharedCauses:
        # Not needed in most cycles.
        shared = self._shared_causes or SharedCauses(self._limits)
        return shared.follow(self._state, self._observed_hosts, self._now)

    @cached_property
    def _observed_devices(self) -> Counter[frozenset[str]]:
        """Devices of a host -> observed hosts with just these: there are few kinds of hosts."""
        return Counter(frozenset(agent.health) for agent in self._observed)

    def _observed_hosts(self, devices: frozenset[str]) -> int:
        """Observed hosts that have one of `devices`."""
        return sum(n for own, n in self._observed_devices.items() if not devices.isdisjoint(own))

    def _stop_of(self, alert: str, host: str) -> str:
        """See rule_record.stops_of."""
        if alert not in self._stopped:
            actions, resumed_at = self._state.actions.values(), self._state.resumed_at
            self._stopped[alert] = stops_of(
                alert, actions, self._limits, resumed_at, self._state.agents.values()
            )
        stops = self._stopped[alert]
        return stops.get(FLEET) or stops.get(host, "")

    def _workload(self, target: Target) -> str:
        """A job loses so much bandwidth at most, on however many hosts it runs. A job without a name has no limit."""
        if not self._by_workload:
            for agent in self._state.agents.values():
                for name in agent.workloads:
                    self._by_workload[name].append(agent)
        for name in self._state.agents[target.host].workloads:
            agents = self._by_workload[name]
            out = self._out_unseen[name] + sum(len(self._taken[agent.host]) for agent in agents)
            # Who registers and claims the job must not raise its limit.
            nics = sum(len(agent.devices) for agent in agents if agent.host in self._observed_names)
            allowed = max(2, int(self._limits.workload_fraction * nics))
            if out >= min(allowed, self._limits.max_workload_nics):
                return "workload"
        return ""

    def _capacity(self, target: Target) -> str:
        """Never the last NIC, and never below the fraction; checked again by the agent and by the plugin."""
        agent = self._state.agents[target.host]
        seen: set[str] = agent.devices.keys() | agent.connected.keys() | agent.health.keys()
        members = self._nics.get(target.host, frozenset())
        # What processes and agents report of NICs outside membership does not count, nor does what membership has and
        # nobody sees: it may be broken for good.
        known = (set(members) & seen or set(members) if members else seen) | {target.device}
        out = self._out[target.host]
        remaining = [
            device
            for device in known
            if device != target.device
            and device not in out
            and agent.devices.get(device, True)
            and agent.connected.get(device, True)
            # Only where the mesh measures it: what processes say of links could stop all failovers of their host.
            and not (device in agent.connected and agent.health.get(device) == "unhealthy")
        ]
        if len(known) == 1 and not agent.processes:
            return ""  # no job there, no other NIC known: nothing to lose, and the plugin guards the jobs that come
        if not remaining:
            return "last_nic"
        if len(remaining) < self._limits.min_nics_in_service:
            return "capacity"
        may_be_out = max(1, int(len(known) * (1 - self._limits.min_fraction_in_service)))
        return "capacity" if len(known) - len(remaining) > may_be_out else ""


def bucket_level(limits: GuardConfig, bucket: Bucket | None, now: float) -> float:
    """Tokens in a bucket at `now`; one that was never used is full."""
    if bucket is None:
        return float(limits.burst)
    refill = max(0.0, now - bucket.at) * limits.actions_per_minute / 60
    return min(float(limits.burst), bucket.tokens + refill)
