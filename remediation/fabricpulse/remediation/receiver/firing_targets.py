"""Which NICs an alert fires about, and which of its alerts counts: for failovers, and for returns asked for."""

from collections.abc import Mapping

from fabricpulse.remediation.receiver.model import Episode
from fabricpulse.remediation.receiver.rule_config import RuleConfig, keeps_out
from fabricpulse.remediation.receiver.transaction import Transaction

_MODE_RANK = {"observe": 0, "dry_run": 1, "approve": 2, "auto": 3}


class FiringTargets:
    """Remembered while no episode begins or ends. asked_back : target key -> fingerprint of the episode of a rule with
    nic.restore that counts for it, as of the last call of `of`."""

    def __init__(self, rules: Mapping[str, RuleConfig]) -> None:
        """rules : by the name of the alert."""
        self._rules = rules
        self.asked_back: dict[str, str] = {}
        self._order: dict[str, str] = {}
        self._version = -1

    def of(self, transaction: Transaction) -> dict[str, str]:
        """Target key -> fingerprint of the firing episode that counts for it, first come first."""
        if transaction.episodes_version != self._version or not self._version:
            firing: dict[str, Episode] = {}
            asked: dict[str, Episode] = {}
            # Of each alert's name; of all others nothing follows here.
            counts_in = {alert: asked for alert, rule in self._rules.items() if rule.action == "nic.restore"}
            counts_in |= dict.fromkeys((a for a in self._rules if keeps_out(self._rules, a)), firing)
            for episode in transaction.episodes.values():
                if episode.status != "firing":
                    continue
                target, alert = episode.target, episode.alert
                if not target.device:
                    continue  # about a host or a leaf; its rule may be another one by now
                counted = counts_in.get(alert)
                if counted is None:
                    if alert in self._rules:
                        continue
                    counted = firing  # no rule names it any more
                key = target.key
                known = counted.setdefault(key, episode)
                if known is not episode and self._weight(episode) > self._weight(known):
                    counted[key] = episode
            self.asked_back = {key: episode.fingerprint for key, episode in asked.items()}
            times = {key: episode.first_seen for key, episode in firing.items()}
            self._order = {key: firing[key].fingerprint for key in sorted(times, key=times.__getitem__)}
            self._version = transaction.episodes_version
        return self._order

    def _weight(self, episode: Episode) -> tuple[int, float]:
        rule = self._rules.get(episode.alert)
        return (_MODE_RANK[rule.mode] if rule is not None else -1, -episode.first_seen)
