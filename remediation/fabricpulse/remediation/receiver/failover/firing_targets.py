"""Which NICs an alert fires about, and which of its alerts counts: for failovers, and for returns asked for."""

from collections.abc import Mapping
from operator import attrgetter

from fabricpulse.remediation.receiver.rule_config import RuleConfig, keeps_out
from fabricpulse.remediation.receiver.state.model import Episode
from fabricpulse.remediation.receiver.state.transaction import Transaction

_MODE_RANK = {"observe": 0, "dry_run": 1, "approve": 2, "auto": 3}


class FiringTargets:
    """Follows the episodes that begin and end. asked_back : target key -> fingerprint of the episode of a rule with
    nic.restore that counts for it, as of the last call of `of`."""

    def __init__(self, rules: Mapping[str, RuleConfig]) -> None:
        """rules : by the name of the alert."""
        self._rules = rules
        self.asked_back: dict[str, str] = {}
        self._order: dict[str, str] = {}
        # By target key, of those that fire: all fingerprints, since one that ends leaves the others. Of one target
        # there may be thousands of forged ones.
        self._firing: dict[str, dict[str, None]] = {}
        self._asking: dict[str, dict[str, None]] = {}
        # fingerprint -> where it is kept.
        self._place: dict[str, tuple[bool, str]] = {}
        self._version = 0

    def of(self, transaction: Transaction) -> dict[str, str]:
        """Target key -> fingerprint of the firing episode that counts for it; in the order in which they began to
        fire."""
        changed = transaction.episodes_changed_since(self._version)
        if changed is None:
            for kept in (self.asked_back, self._order, self._firing, self._asking, self._place):
                kept.clear()
            firing = [e for e in transaction.episodes.values() if e.status == "firing"]
            changed = {e.fingerprint: None for e in sorted(firing, key=attrgetter("first_seen"))}
        touched: dict[tuple[bool, str], None] = {}
        for fingerprint in changed:
            before = self._place.pop(fingerprint, None)
            after = self._placed(transaction.episodes.get(fingerprint))
            if before is not None:
                self._remove(before, fingerprint)
                touched[before] = None
            if after is not None:
                kept = self._asking if after[0] else self._firing
                kept.setdefault(after[1], {})[fingerprint] = None
                self._place[fingerprint] = after
                touched[after] = None
        for asks, key in touched:
            counted = self.asked_back if asks else self._order
            found = (self._asking if asks else self._firing).get(key)
            if found:
                # Of two alike the one that came first.
                counted[key] = max(found, key=lambda name: self._weight(transaction.episodes[name]))
            else:
                counted.pop(key, None)
        self._version = transaction.episodes_version
        return self._order

    def _placed(self, episode: Episode | None) -> tuple[bool, str] | None:
        """Whether it asks for a return, and its target; None for one that counts for nothing here."""
        if episode is None or episode.status != "firing" or not episode.target.device:
            return None  # or about a host or a leaf; its rule may be another one by now
        if keeps_out(self._rules, episode.alert):
            return False, episode.target.key
        return (True, episode.target.key) if self._rules[episode.alert].action == "nic.restore" else None

    def _remove(self, place: tuple[bool, str], fingerprint: str) -> None:
        asks, key = place
        kept = self._asking if asks else self._firing
        del kept[key][fingerprint]
        if not kept[key]:
            del kept[key]

    def _weight(self, episode: Episode) -> tuple[int, float]:
        rule = self._rules.get(episode.alert)
        return (_MODE_RANK[rule.mode] if rule is not None else -1, -episode.first_seen)
