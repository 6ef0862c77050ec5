"""A located fault goes straight to Alertmanager, under the very labels that the rule gives: one alert, not two."""

import time
from collections.abc import Callable, Iterable
from typing import Annotated

from msgspec import Meta

from fabricpulse.core.alerting.labels import check_labels, check_resolve_hold
from fabricpulse.core.alerting.pusher import AlertContent, Pusher
from fabricpulse.core.config import Section
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url
from fabricpulse.diagnosis.fleet_evidence import Suspect

ALERT_NAME = "FabricFaultLocated"
RUNBOOK_URL = f"https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/{ALERT_NAME}.md"
# What the rule alerts on: NICs and hosts have alerts of their own.
_KINDS = ("switch", "link")
_OWN_LABELS = ("alertname", "severity", "component", "what", "kind", "faulty", "peer", "leaf", "network")
Positive = Annotated[float, Meta(gt=0)]
Key = tuple[str, str, str, str, str, str]


class FaultAlerting(Section, frozen=True):
    """Where a located fault is pushed to at once.

    alertmanagers : base URLs; each gets every alert. http_client : TLS, client certificate, password or token that they
    ask for. labels : those that the rule's alert has beside its own, so that both are one alert: the cluster, external
    labels of Prometheus, what the rule was rendered with. severity, confidence : as the rule has them
    (faultConfidence). generator_url : link shown beside the alert. resend_s : how often a firing alert is sent again.
    resolve_hold_s : how long after the fault is gone the end is told; faultKeepFiring, the scrape interval and the
    evaluation interval together, so that the rule's copy has ended by then. At most three times resend_s.
    retry_s : pause after a failed push, doubled up to resend_s.
    """

    alertmanagers: tuple[str, ...] = ()
    http_client: HttpClientConfig = HttpClientConfig(timeout_s=2.0)
    labels: dict[str, str] = {}
    severity: Annotated[str, Meta(min_length=1)] = "critical"
    confidence: Annotated[float, Meta(gt=0, le=1)] = 0.9
    generator_url: str = ""
    resend_s: Positive = 60.0
    resolve_hold_s: Annotated[float, Meta(ge=0)] = 145.0
    retry_s: Positive = 0.2

    def validate(self) -> None:
        for url in self.alertmanagers:
            check_base_url("alertmanager", url)
        check_labels(self.labels, _OWN_LABELS)
        check_resolve_hold(self.resolve_hold_s, self.resend_s)


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
            "description": f"The {suspect.what} that hosts see is that of {suspect.kind} {place}, "
            f"with a probability of {100 * suspect.confidence:.4g}%.",
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
            self.end(key)
        for key, suspect in now.items():
            self.tell(key, fault_alert(self._alerting, suspect))
