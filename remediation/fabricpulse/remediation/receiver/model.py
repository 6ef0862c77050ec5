"""What the receiver knows: episodes of alerts, targets, agents. Immutable values; the reconciler replaces them."""

from typing import Literal

import msgspec

Desired = Literal["in_service", "avoid"]
Phase = Literal["in_service", "avoiding", "avoided", "restoring", "manual"]
Outcome = Literal[
    "pending", "applied", "succeeded", "failed", "refused", "rolled_back", "superseded", "dry_run"
]


class Target(msgspec.Struct, frozen=True, order=True):
    """A NIC of a host: what an action is about."""

    host: str
    device: str

    @property
    def key(self) -> str:
        """`h0/rail1`, the name in the journal."""
        return f"{self.host}/{self.device}"


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One alert from its first `firing` to its end; key: fingerprint. Times in seconds since 1970, our clock.

    starts_at is the sender's and may move to earlier within an episode. `expired` is an episode of which no
    Alertmanager knows any more though it never said `resolved`: not known to be healthy.
    """

    fingerprint: str
    alert: str
    target: Target
    starts_at: float
    first_seen: float
    last_seen: float
    status: Literal["firing", "resolved", "expired"]
    ended_at: float = 0.0


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about a target. op_id is the idempotency key all the way to the plugin.

    sent_at, applied_at, verified_at : seconds since 1970 on the receiver's clock, 0 while not reached.
    """

    op_id: str
    target: Target
    action: Literal["nic.avoid", "nic.restore"]
    desired: Desired
    generation: int
    reason: str
    created_at: float
    dry_run: bool = False
    sent_at: float = 0.0
    applied_at: float = 0.0
    verified_at: float = 0.0
    outcome: Outcome = "pending"
    message: str = ""
    processes: int = 0


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a target stands. generation rises with each decision; quiet_since is 0 while an episode fires."""

    target: Target
    desired: Desired = "in_service"
    phase: Phase = "in_service"
    generation: int = 0
    op_id: str = ""
    quiet_since: float = 0.0
    hold_s: float = 0.0
    changed_at: float = 0.0
    failovers: tuple[float, ...] = ()
    attempts: tuple[float, ...] = ()
    blocked: str = ""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent said last. devices : NICs that its jobs use -> usable (link up, not avoided)."""

    host: str
    seen_at: float
    devices: dict[str, bool] = {}
    connected: dict[str, bool] = {}
    processes: int = 0


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The kill switch: while set, nothing is decided. until 0 = until somebody resumes."""

    reason: str
    owner: str
    since: float
    until: float = 0.0


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A tripped breaker stays tripped until a person resets it."""

    direction: Literal["failover", "failback"]
    tripped_at: float
    reason: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything; one value. epoch counts the starts of the receiver (fencing: agents refuse an older one)."""

    epoch: int = 0
    episodes: dict[str, Episode] = {}
    targets: dict[str, TargetState] = {}
    actions: dict[str, Action] = {}
    agents: dict[str, AgentState] = {}
    breakers: dict[str, Breaker] = {}
    pause: Pause | None = None
    recent: tuple[tuple[float, str, str], ...] = ()  # (when, direction, target key) of the last actions
