"""A located fault goes straight to Alertmanager, under the very labels that the rule gives: one alert, not two."""

import time
from collections.abc import Callable, Iterable
from typing import Annotated

from msgspec import Meta

from fabricpulse.core.alerting.config import Alerting, Positive
from fabricpulse.core.alerting.pusher import AlertContent, Pusher
from fabricpulse.diagnosis.search.suspect import Suspect

ALERT_NAME = "FabricFaultLocated"
RUNBOOK_URL = f"https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/{ALERT_NAME}.md"
# What the rule alerts on: NICs and hosts have alerts of their own.
_KINDS = ("switch", "link")
_SEEN = {"mtu": "drop of large packets"}
Key = tuple[str, str, str, str, str, str]


class FaultAlerting(Alerting, frozen=True):
    """Where a located fault is pushed to at once.

    labels : labels that the rule's alert has beside its own, so that both are one alert: the cluster, external labels
    of Prometheus, what the rule was rendered with. confidence : probability of a suspect from which on it is pushed;
    the rule's knob faultConfidence. resolve_hold_s : how long after the fault is gone the alert is resolved, seconds;
    faultKeepFiring, the scrape interval and the evaluation interval together, so that the rule's copy has ended by
    then. At most three times resend_s.
    """

    OWN_LABELS = ("alertname", "severity", "component", "what", "kind", "faulty", "peer", "leaf", "network")

    confidence: Annotated[float, Meta(gt=0, le=1)] = 0.9
    resend_s: Positive = 60.0
    resolve_hold_s: Annotated[float, Meta(ge=0)] = 145.0


def fault_alert(config: FaultAlerting, suspect: Suspect) -> AlertContent:
    """Labels and annotations of the alert on one suspect."""
    named = {
        "what": suspect.what,
        "kind": suspect.kind,
        "faulty": suspect.component,
        "peer": suspect.peer,
        "leaf": suspect.leaf,
        "network": suspect.network,
    }
    labels = {
        "component": "clocksync",
        **config.labels,
        "alertname": ALERT_NAME,
        "severity": config.severity,
        # Prometheus has no labels that are empty.
        **{name: value for name, value in named.items() if value},
    }
    place = f"{suspect.component} to {suspect.peer}" if suspect.peer else suspect.component
    return AlertContent(
        labels,
        {
            "summary": "A switch or a link of the fabric is at fault.",
            "description": f"The {_SEEN.get(suspect.what, suspect.what)} that hosts see is that of "
            f"{suspect.kind} {place}, with a probability of {100 * suspect.confidence:.4g}%.",
            "runbook_url": RUNBOOK_URL,
        },
        config.generator_url,
    )


class FaultPusher(Pusher[Key]):
    """Alerts of suspects, by what the alert's labels are made of."""

    def __init__(
        self,
        config: FaultAlerting,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock : seconds since 1970."""
        super().__init__(config, clock, monotonic)
        self._alerting = config

    def follow(self, suspects: Iterable[Suspect]) -> None:
        """Those that are sure enough fire, and what fired and is none of them is over. One that was sure fires on while
        it is suspect.
        """
        now: dict[Key, Suspect] = {}
        firing = self.firing()
        for suspect in suspects:
            key = (
                *(suspect.what, suspect.kind, suspect.component, suspect.peer),
                suspect.leaf,
                suspect.network,
            )
            if suspect.kind in _KINDS and (key in firing or suspect.confidence >= self._alerting.confidence):
                now[key] = suspect
        for key in firing.keys() - now.keys():
            self.set_resolved(key)
        for key, suspect in now.items():
            self.set_firing(key, fault_alert(self._alerting, suspect))
