"""The state of the receiver: episodes of alerts, targets, agents. Entries are immutable and replaced as a whole.

All times are seconds since 1970 on the receiver's clock, 0 for "not yet". `gc=False`: there may be tens of thousands
of these, none is part of a cycle, and a full collection that looks at each holds everybody up.
"""

from typing import Literal

import msgspec

from fabricpulse.remediation.receiver.state.episode_changes import EpisodeChanges
from fabricpulse.remediation.receiver.state.targets_of_host import TargetsOfHost

Desired = Literal["in_service", "avoid"]
Phase = Literal["in_service", "avoiding", "avoided", "restoring", "manual"]
ActionName = Literal["nic.avoid", "nic.restore"]
Direction = Literal["failover", "failback"]
# pending -> succeeded | refused | failed | expired | unknown | superseded | dry_run; succeeded -> rolled_back;
# failed, expired or unknown -> succeeded, when the agent says so after all.
Outcome = Literal[
    "pending",
    "succeeded",
    "refused",
    "failed",
    "expired",
    "unknown",
    "superseded",
    "dry_run",
    "rolled_back",
]
# Of a failover that has succeeded: what its host's jobs carry afterwards, by what the NICs that are left allow; ""
# while that is not known so far.
Recovery = Literal["", "recovered", "not_recovered", "idle", "unknown"]
RECOVERIES: tuple[Recovery, ...] = ("recovered", "not_recovered", "idle", "unknown")
OUTCOMES: tuple[Outcome, ...] = (
    "succeeded",
    "refused",
    "failed",
    "expired",
    "unknown",
    "superseded",
    "dry_run",
    "rolled_back",
)


class Target(msgspec.Struct, frozen=True, order=True, gc=False):
    """A NIC of a host: what an action is about."""

    host: str
    device: str

    @property
    def key(self) -> str:
        """`h0/rail1`, the name in the journal."""
        return f"{self.host}/{self.device}"


# Of an alert on what many NICs share, a leaf or a rail.
NO_TARGET = Target("", "")


class LaneSelector(msgspec.Struct, frozen=True, gc=False):
    """Lanes over a NIC that an alert names: of a job, of a connection, or one; "" and -1 name all."""

    device: str
    workload: str = ""
    connection: str = ""
    lane: int = -1


class Episode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One alert from its first `firing` to its end; key: fingerprint.

    causes : what it may share with other hosts, `network=rail0`; without a target, what is at fault. starts_at is the
    sender's, the last one where several say when it began. `expired` is an episode of which no Alertmanager knows any
    more though it never said `resolved`: not known to be healthy. lanes : of a rule about lanes. began_at : when the
    same fault was first seen, of one that fires again from the same start after an end that was false, without the time
    in which the receiver was away; 0 for any other.
    """

    fingerprint: str
    alert: str
    target: Target
    causes: tuple[str, ...] = ()
    starts_at: float
    first_seen: float
    last_seen: float
    status: Literal["firing", "resolved", "expired"]
    ended_at: float = 0.0
    lanes: LaneSelector | None = None
    began_at: float = 0.0

    @property
    def fault_seen_at(self) -> float:
        """When the fault was first seen."""
        return self.began_at or self.first_seen


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about a target. op_id is the idempotency key all the way to the plugin.

    received_at : when the alert behind it came in. created_at : decided. sent_at : handed to the agent. applied_at :
    every process did it. verified_at : every process shows it. restored_at : of a `nic.avoid`, when the NIC was back.
    traffic : what the agent saw afterwards on the job's other lanes. goodput_before, goodput_allowed, goodput_after :
    of a failover, what the host's jobs carried when it was decided, may carry with one NIC less, and did, bytes per
    second. predicted, measured : allowed and after by before. 0 where something is not known. users : who had processes
    on the host (uid), () if not known. refused_at : of a failover that has succeeded, since when its agent refuses to
    keep it up, after its own restart.
    """

    op_id: str
    target: Target
    action: ActionName
    desired: Desired
    generation: int
    reason: str
    alert: str = ""
    received_at: float = 0.0
    created_at: float
    dry_run: bool = False
    sent_at: float = 0.0
    applied_at: float = 0.0
    verified_at: float = 0.0
    restored_at: float = 0.0
    outcome: Outcome = "pending"
    message: str = ""
    processes: int = 0
    traffic: str = ""
    goodput_before: float = 0.0
    goodput_allowed: float = 0.0
    goodput_after: float = 0.0
    predicted: float = 0.0
    measured: float = 0.0
    recovery: Recovery = ""
    users: tuple[int, ...] = ()
    refused_at: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a rule with `mode: approve` would do to a target. approved_at : 0 until an operator has approved it."""

    hash: str
    action: ActionName
    alert: str
    reason: str
    created_at: float
    approved_at: float = 0.0
    approved_by: str = ""


class TargetState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Phase and history of a target.

    generation rises with each decision. avoid_op_id : the last failover, "" where none was decided here: it was adopted
    from what an agent holds. quiet_since : start of the hold, 0 while an episode fires. healthy_s : seconds
    of the hold in which the NIC was observed healthy; healthy_at : the last such observation. alert : what it was
    taken out for. attempts : failovers that were decided, whatever became of them; retry_at : none before. needs_probe
    : its alert vanished without `resolved`; only a probe can show that it is healthy.
    plan : waits for an operator. would_restore : episode of which was written that it would end the hold. workloads :
    jobs on its host while it is out, as the agent said last.
    """

    target: Target
    desired: Desired = "in_service"
    phase: Phase = "in_service"
    generation: int = 0
    op_id: str = ""
    avoid_op_id: str = ""
    alert: str = ""
    quiet_since: float = 0.0
    hold_s: float = 0.0
    healthy_s: float = 0.0
    healthy_at: float = 0.0
    changed_at: float = 0.0
    failovers: tuple[float, ...] = ()
    attempts: tuple[float, ...] = ()
    retry_at: float = 0.0
    needs_probe: bool = False
    blocked: str = ""
    plan: Plan | None = None
    would_restore: str = ""
    workloads: tuple[str, ...] = ()


RebalancePhase = Literal[
    "awaiting_approval",
    "moving",
    "measuring",
    "rolling_back",
    "kept",
    "rolled_back",
    "withdrawn",
    "rollback_failed",
    "dry_run",
    "dropped",
]


class LaneMove(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a rebalancing plan.

    before : source port, capacity (bytes per second) and count of re-paths when the plan was made. op_id, generation :
    of the operation under way or the last one. value : what it asks for, None for "another one". outcome : of it;
    `unknown` without an answer in time; `left` once the plugin has re-pathed the lane by itself: it stays where it is;
    `gone` where the process has no such lane any more. undone : how often it was ordered back. tries : new paths so
    far. kept : its capacity has risen; it is not moved again. entropy_best : source port when the plan had its best
    gain so far, 0 for none.
    """

    host: str
    process: str
    connection: str
    lane: int
    device: str
    entropy_before: int
    capacity_before: float
    repaths: int
    operation: Literal["lane.repath", "lane.weight"] = "lane.repath"
    value: int | None = None
    op_id: str = ""
    generation: int = 0
    outcome: Literal["", "pending", "applied", "refused", "failed", "unknown", "left", "gone"] = ""
    tries: int = 0
    kept: bool = False
    entropy_best: int = 0
    undone: int = 0

    @property
    def key(self) -> str:
        """`h0/4711-effffffc/5f0c9a7be1d20001/0`."""
        return f"{self.host}/{self.process}/{self.connection}/{self.lane}"


class Rebalance(msgspec.Struct, frozen=True, kw_only=True):
    """A plan to put lanes of one workload on other paths, from its proposal to the proof that it helped.

    before : goodput by workload when it was made, bytes per second; those of `scope` are to gain, none may lose.
    predicted, measured : goodput of the scope afterwards by before. best : the best that was measured in it without
    a loss. max_tries : new paths for a lane, 0 for as many as the configuration allows. returning : its lanes go
    back to where they had that. disturbed : how often a measurement began anew because the plugin had re-pathed
    lanes of it. reason : why it ended, or what it saw. alert, episode : what asked for it, "" for a plan of the
    controller's own. withdrawn : it is undone for another reason than what was measured.
    """

    id: str
    workload: str
    scope: tuple[str, ...]
    moves: tuple[LaneMove, ...]
    before: dict[str, float]
    predicted: float
    reason: str
    phase: RebalancePhase
    created_at: float
    changed_at: float
    measured: float = 0.0
    best: float = 0.0
    returning: bool = False
    tries: int = 0
    max_tries: int = 0
    disturbed: int = 0
    operations: int = 0
    blocked: str = ""
    hash: str = ""
    approved_at: float = 0.0
    approved_by: str = ""
    alert: str = ""
    episode: str = ""
    withdrawn: bool = False


DrainPhase = Literal[
    "awaiting_approval",
    "leaving",
    "draining",
    "drained",
    "returning",
    "returned",
    "failed",
    "dropped",
    "dry_run",
]


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is left, from the hand-off to its return. tries : of the command of this phase. retry_at : not
    before. message : of the last command, or why it ended. handed_off_at : when its jobs were notified, 0 if not."""

    id: str
    host: str
    alert: str
    reason: str
    phase: DrainPhase
    created_at: float
    changed_at: float
    hash: str = ""
    approved_at: float = 0.0
    approved_by: str = ""
    blocked: str = ""
    message: str = ""
    tries: int = 0
    retry_at: float = 0.0
    handed_off_at: float = 0.0


class Held(msgspec.Struct, frozen=True):
    """What an agent's journal holds of one NIC."""

    desired: Desired
    generation: int


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of an agent.

    devices : NICs that its jobs use -> usable (link up, not avoided). connected : whether the mesh's probes get
    through, where it is asked. health : NICs that it has observed. held : NICs that were ever given a
    desired state. workloads : jobs that run there. users : who own their processes (uid), () if not known.
    source : address that reports for a host for which others could as well, see counted_hosts.py; "" for one that has
    proven who it is.
    """

    host: str
    seen_at: float
    devices: dict[str, bool] = {}
    connected: dict[str, bool] = {}
    health: dict[str, Literal["healthy", "unhealthy"]] = {}
    held: dict[str, Held] = {}
    processes: int = 0
    workloads: tuple[str, ...] = ()
    users: tuple[int, ...] = ()
    first_seen: float = 0.0
    source: str = ""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The kill switch: while set, nothing is decided. until 0 = until somebody resumes."""

    reason: str
    owner: str
    since: float
    until: float = 0.0


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A tripped breaker stays tripped until a person resets it."""

    direction: Direction
    tripped_at: float
    reason: str


class Bucket(msgspec.Struct, frozen=True):
    """A token bucket at one moment."""

    tokens: float
    at: float


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. The dictionaries belong to the commit loop, which alone changes them.

    epoch : grows with each start of the receiver (fencing: agents refuse an older one). started_at : the last one, not
    kept. polled_at : when the Alertmanagers were last asked with success what is active. contact_at : when any of them
    was last in contact. held_back_at : when an alert last came that waits for their answer. answered_at : when the
    round of questions began that one of them answered last.
    watchdog : whether the alert that always fires was ever seen, and whether it is there. recent : (when, direction,
    target key) of the last actions. resumed_at : when an operator last resumed. episodes_version : another
    number, never used before in this process, whenever an episode begins, ends or goes. notified : how far in
    the journal each destination of `notify` has received. drains_blocked : host -> episode and guard for which it was
    last written that the host is not drained. lanes_blocked : fingerprint -> episode and reasons for which it was
    written that lanes stay as they are. wall_ahead_s : how far people's clock is ahead of the receiver's, which does
    not follow when it is set. targets_of_host : follows `targets`. episode_changes : what episodes_version was raised
    for.
    """

    epoch: int = 0
    started_at: float = 0.0
    episodes: dict[str, Episode] = {}
    targets: dict[str, TargetState] = {}
    actions: dict[str, Action] = {}
    agents: dict[str, AgentState] = {}
    rebalances: dict[str, Rebalance] = {}
    drains: dict[str, Drain] = {}
    breakers: dict[str, Breaker] = {}
    buckets: dict[str, Bucket] = {}
    pause: Pause | None = None
    recent: tuple[tuple[float, str, str], ...] = ()
    polled_at: float = 0.0
    contact_at: float = 0.0
    held_back_at: float = 0.0
    answered_at: float = 0.0
    resumed_at: float = 0.0
    watchdog: Literal["unknown", "seen", "lost"] = "unknown"
    episodes_version: int = 0
    notified: dict[str, int] = {}
    drains_blocked: dict[str, str] = {}
    lanes_blocked: dict[str, str] = {}
    wall_ahead_s: float = 0.0
    targets_of_host: TargetsOfHost = msgspec.field(default_factory=TargetsOfHost)
    episode_changes: EpisodeChanges = msgspec.field(default_factory=EpisodeChanges)
