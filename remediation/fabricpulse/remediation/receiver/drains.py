"""Leaving a host: jobs are notified (hand-off), then the scheduler's command drains it. Pure.

    awaiting_approval -> leaving -> draining -> drained -> returning -> returned
            |               |           |                      |
            v               v           v                      v
         dropped         dropped      failed                 failed

A host that was drained comes back only when an operator releases it: nothing here can tell that it was repaired. The
commands run again after a restart, so they must set a state (`State=DRAIN`), not toggle one.
"""

import hashlib
import re
from typing import Literal

import msgspec

from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards.guards import SETTLING, Guards
from fabricpulse.remediation.receiver.guards.shared_cause import SharedCauses
from fabricpulse.remediation.receiver.state.in_flight import ACTING, is_paused
from fabricpulse.remediation.receiver.state.model import Drain, DrainPhase, Episode
from fabricpulse.remediation.receiver.state.plans import APPROVAL_VALID_S
from fabricpulse.remediation.receiver.state.transaction import Transaction, with_changes

# These hosts count as out: the effect of a command that failed is unknown.
OUT: tuple[DrainPhase, ...] = ("leaving", "draining", "drained", "returning", "failed")
_OPEN: tuple[DrainPhase, ...] = ("awaiting_approval", "leaving", "draining", "returning")
# Ended, and the host may be left again.
_BACK: tuple[DrainPhase, ...] = ("returned", "dropped")
_ENDED_KEPT = 200
_DAY_S = 86_400.0
_MAX_TRIES = 3
_RETRY_S = 30.0
_NO_UNDO = "no undo is configured: bring it back in the scheduler by hand"


class Order(msgspec.Struct, frozen=True):
    """A command that is to be run now. phase, tries : of the drain, as it is ordered: a result counts for that command
    alone. arguments : with host, reason and operation filled in; never a shell's."""

    drain: str
    phase: DrainPhase
    tries: int
    arguments: tuple[str, ...]


class Drains:
    """The rules with `action: host.drain`, of one configuration."""

    def __init__(self, config: ReceiverConfig, nics: dict[str, frozenset[str]]) -> None:
        """nics : see Guards."""
        self._config = config
        self._drain = config.drain
        self._nics = nics
        self._rules = {rule.alert: rule for rule in config.rules if rule.action == "host.drain"}
        self._shared = SharedCauses(config.guards)

    def reconcile(self, transaction: Transaction, now: float) -> None:
        """Goes on with drains under way, and begins those that rules ask for and guards allow."""
        under_way = [drain for drain in transaction.drains.values() if drain.phase in _OPEN]
        firing = self._firing(transaction) if self._rules or under_way else {}
        if not under_way and not firing:
            return
        guards = Guards(self._config, self._nics, transaction, now, self._shared)
        for drain in under_way:
            self._step(transaction, guards, drain, firing.get(drain.host), now)
        for host, episode in firing.items():
            self._begin(transaction, guards, host, episode, now)
        self._forget(transaction, now)

    def orders(self, transaction: Transaction, now: float) -> list[Order]:
        """Commands to run now, one a host: none of a phase without a command, none that drains while paused."""
        found = []
        paused = is_paused(transaction.pause, now)
        for drain in transaction.drains.values():
            template = {"draining": self._drain.command, "returning": self._drain.undo}.get(drain.phase)
            if template and now >= drain.retry_at and not (paused and drain.phase == "draining"):
                found.append(Order(drain.id, drain.phase, drain.tries, arguments_of(template, drain)))
        return found

    def on_result(self, transaction: Transaction, order: Order, message: str, now: float) -> None:
        """What became of a command; message : "" for exit code 0. One that was overtaken is ignored: the host was
        released or forgotten while it ran."""
        drain = transaction.drains.get(order.drain)
        if drain is None or (drain.phase, drain.tries) != (order.phase, order.tries):
            return
        if not message:
            self._move(transaction, drain, "drained" if drain.phase == "draining" else "returned", now)
        elif drain.tries + 1 >= _MAX_TRIES:
            self._move(transaction, drain, "failed", now, message=message)
        else:
            transaction.put_drain(
                with_changes(
                    drain, tries=drain.tries + 1, retry_at=now + _RETRY_S * 2.0**drain.tries, message=message
                )
            )
            transaction.log(drain.host, "drain_retried", op_id=drain.id, message=message)

    def approve(self, transaction: Transaction, plan_hash: str, owner: str, now: float) -> bool:
        """Approves the drain with this hash. False when no such one waits."""
        for drain in transaction.drains.values():
            if (
                drain.hash == plan_hash
                and drain.phase == "awaiting_approval"
                and (not drain.approved_at or now - drain.approved_at > APPROVAL_VALID_S)
            ):
                transaction.put_drain(with_changes(drain, approved_at=now, approved_by=owner))
                transaction.log(
                    drain.host,
                    "approved",
                    op_id=drain.id,
                    plan=plan_hash,
                    action="host.drain",
                    owner=owner,
                )
                return True
        return False

    def release(self, transaction: Transaction, host: str, owner: str, now: float) -> bool:
        """Brings a host back that was drained, or was to be. False when there is none."""
        for drain in transaction.drains.values():
            if drain.host != host or drain.phase not in ("leaving", "draining", "drained", "failed"):
                continue
            transaction.log(host, "released", op_id=drain.id, owner=owner)
            begun = drain.phase != "leaving"
            phase: DrainPhase = "returning" if begun and self._drain.undo else "returned"
            by_hand = begun and self._drain.command and not self._drain.undo
            message = f"released by {owner}" + (f"; {_NO_UNDO}" if by_hand else "")
            self._move(transaction, drain, phase, now, message=message)
            return True
        return False

    def forget(self, transaction: Transaction, host: str, owner: str, now: float) -> None:
        """Ends the drains of a host that was retired: it counts as out no more, and nothing brings it back."""
        for drain in list(transaction.drains.values()):
            if drain.host == host and drain.phase in (*OUT, *_OPEN):
                self._move(transaction, drain, "dropped", now, message=f"forgotten by {owner}")

    # --- deciding ------------------------------------------------------------------------------------------------

    def _firing(self, transaction: Transaction) -> dict[str, Episode]:
        """Host -> the first episode that asks for its drain."""
        found: dict[str, Episode] = {}
        for episode in transaction.episodes.values():
            if episode.status == "firing" and episode.alert in self._rules:
                known = found.get(episode.target.host)
                if known is None or episode.first_seen < known.first_seen:
                    found[episode.target.host] = episode
        return dict(sorted(found.items(), key=lambda item: item[1].first_seen))

    def _begin(
        self, transaction: Transaction, guards: Guards, host: str, episode: Episode, now: float
    ) -> None:
        rule = self._rules[episode.alert]
        past = [drain for drain in transaction.drains.values() if drain.host == host]
        last = max(past, key=lambda drain: drain.created_at, default=None)
        if rule.mode == "observe" or (last is not None and (last.phase in OUT or last.phase in _OPEN)):
            return
        if last is not None and last.phase == "dry_run" and last.created_at >= episode.first_seen:
            return
        reason = self._forbidden(transaction, guards, host, episode, now)
        if reason == SETTLING:
            return
        back = [drain.changed_at for drain in past if drain.phase in _BACK and _left_at(drain)]
        if not reason and back and now - max(back) < self._drain.cooldown_s:
            reason = "cooldown"
        if reason:
            # A drain that is not begun has no row: the reason is written once an episode and reason.
            self._note_blocked(transaction, host, episode, reason)
            return
        number = int(now * 1000)
        bound = [host, "host.drain", episode.alert, episode.fingerprint, episode.first_seen, number]
        first: dict[str, DrainPhase] = {"dry_run": "dry_run", "approve": "awaiting_approval"}
        drain = Drain(
            id=f"{host}#{number}",
            host=host,
            alert=episode.alert,
            reason=f"{episode.alert} is firing",
            phase=first.get(rule.mode, "leaving"),
            hash=hashlib.sha256(msgspec.json.encode(bound)).hexdigest()[:16],
            created_at=now,
            changed_at=now,
        )
        transaction.put_drain(drain)
        self._clear_blocked(transaction, host)
        if drain.phase == "dry_run":
            transaction.log(host, "would_drain", op_id=drain.id, reason=drain.reason)
        elif drain.phase == "awaiting_approval":
            transaction.log(
                host,
                "awaiting_approval",
                op_id=drain.id,
                plan=drain.hash,
                action="host.drain",
                reason=drain.reason,
            )
        else:
            self._hand_off(transaction, drain, now)

    def _forbidden(
        self, transaction: Transaction, guards: Guards, host: str, episode: Episode, now: float, own: str = ""
    ) -> str:
        if reason := guards.host(host, episode):
            return reason
        others = [drain for drain in transaction.drains.values() if drain.id != own]
        out = sum(drain.phase in OUT for drain in others)
        if out >= self._drain.max_hosts:
            return "budget"
        # Each hand-off moves jobs away, though the alert ended before the command ran.
        today = sum(now - _left_at(drain) <= _DAY_S for drain in others)
        return "rate" if today >= self._drain.hosts_per_day else ""

    def _step(
        self, transaction: Transaction, guards: Guards, drain: Drain, episode: Episode | None, now: float
    ) -> None:
        rule = self._rules.get(drain.alert)
        if drain.phase in ("awaiting_approval", "leaving") and episode is None:
            self._move(transaction, drain, "dropped", now, message="no alert fires")
        elif drain.phase in ("awaiting_approval", "leaving") and (rule is None or rule.mode not in ACTING):
            self._move(transaction, drain, "dropped", now, message="its rule acts no more")
        elif drain.phase == "awaiting_approval" and episode is not None:
            if not drain.approved_at or now - drain.approved_at > APPROVAL_VALID_S:
                return
            reason = self._forbidden(transaction, guards, drain.host, episode, now, drain.id)
            if reason and reason != drain.blocked:
                transaction.put_drain(with_changes(drain, blocked=reason))
                transaction.log(drain.host, "blocked", reason=reason, op_id=drain.id)
            elif not reason:
                self._hand_off(transaction, drain, now)
        elif drain.phase == "draining" and not self._drain.command:
            self._move(transaction, drain, "failed", now, message="no command is configured any more")
        elif drain.phase == "returning" and not self._drain.undo:
            self._move(transaction, drain, "failed", now, message=_NO_UNDO)
        elif drain.phase == "leaving" and now - drain.changed_at >= self._drain.grace_s:
            # Paused within the grace: the command waits. Jobs were already notified, which has no side effect.
            if guards.people(drain.host):
                return
            self._move(transaction, drain, "draining" if self._drain.command else "drained", now)

    def _hand_off(self, transaction: Transaction, drain: Drain, now: float) -> None:
        transaction.put_drain(
            with_changes(drain, phase="leaving", changed_at=now, handed_off_at=now, blocked="")
        )
        transaction.log(
            drain.host,
            "hand_off",
            op_id=drain.id,
            alert=drain.alert,
            reason=drain.reason,
            owner=drain.approved_by,
            drains_at=round(now + self._drain.grace_s, 3),
        )

    @staticmethod
    def _move(
        transaction: Transaction, drain: Drain, phase: DrainPhase, now: float, message: str = ""
    ) -> None:
        transaction.put_drain(
            with_changes(
                drain, phase=phase, changed_at=now, tries=0, retry_at=0.0, blocked="", message=message
            )
        )
        event: dict[DrainPhase, Literal["host.drain", "host.return"]] = {
            "draining": "host.drain",
            "returning": "host.return",
        }
        name = event.get(phase, f"drain_{phase}")
        transaction.log(drain.host, name, op_id=drain.id, reason=drain.reason, message=message)

    def _note_blocked(self, transaction: Transaction, host: str, episode: Episode, reason: str) -> None:
        noted = f"{episode.fingerprint} {reason}"
        if transaction.drains_blocked.get(host) != noted:
            transaction.set(drains_blocked={**transaction.drains_blocked, host: noted})
            transaction.log(host, "blocked", reason=reason, action="host.drain")

    @staticmethod
    def _clear_blocked(transaction: Transaction, host: str) -> None:
        if host in transaction.drains_blocked:
            left = {name: noted for name, noted in transaction.drains_blocked.items() if name != host}
            transaction.set(drains_blocked=left)

    def _forget(self, transaction: Transaction, now: float) -> None:
        counts_s = max(_DAY_S, self._drain.cooldown_s)
        ended = [
            drain
            for drain in transaction.drains.values()
            if drain.phase not in (*OUT, *_OPEN)
            and not (_left_at(drain) and now - drain.changed_at <= counts_s)
        ]
        if len(ended) > _ENDED_KEPT:
            ended.sort(key=lambda drain: drain.changed_at)
            transaction.drop("drains", [drain.id for drain in ended[:-_ENDED_KEPT]])
        firing = {e.target.host for e in transaction.episodes.values() if e.status == "firing"}
        if gone := transaction.drains_blocked.keys() - firing:
            left = {name: noted for name, noted in transaction.drains_blocked.items() if name not in gone}
            transaction.set(drains_blocked=left)


def _left_at(drain: Drain) -> float:
    """When the host was handed off, 0 if it was not; an older journal has it only of hosts that were left for good."""
    return drain.handed_off_at or (drain.changed_at if drain.phase in (*OUT, "returned") else 0.0)


def arguments_of(template: tuple[str, ...], drain: Drain) -> tuple[str, ...]:
    """The command for one host: each argument stays one argument, whatever the text."""
    values = {"{host}": drain.host, "{reason}": f"fabricpulse: {drain.reason}", "{op_id}": drain.id}
    names = re.compile("|".join(re.escape(name) for name in values))
    # In one pass: what a value holds is filled in no second time.
    return tuple(names.sub(lambda found: values[found[0]], argument) for argument in template)
