"""Where a daemon pushes alerts to: the settings of `alerting` that all of them share."""

from typing import Annotated, ClassVar

from msgspec import Meta

from fabricpulse.core.alerting.labels import check_labels, check_resolve_hold
from fabricpulse.core.config import Section
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url

Positive = Annotated[float, Meta(gt=0)]


class Alerting(Section, frozen=True):
    """Where alerts are pushed to at once, under the labels of the rule's alert, so that both are one.

    alertmanagers : base URLs of Alertmanagers; each gets every alert. http_client : TLS, client certificate, password
    or token that they ask for. labels : labels that the rule's alert has beside its own, so that both are one alert.
    severity : the label `severity` of the alert, the same as the rule's. generator_url : link shown beside the alert.
    resend_s : how often a firing alert is sent again, seconds. resolve_hold_s : for how long the end of an alert is
    held back, seconds; at most three times resend_s, or the alert would expire before. retry_s : pause after a failed
    push, seconds; doubled up to resend_s.
    """

    # The labels that the daemon sets itself.
    OWN_LABELS: ClassVar[tuple[str, ...]] = ()

    alertmanagers: tuple[str, ...] = ()
    http_client: HttpClientConfig = HttpClientConfig(timeout_s=2.0)
    labels: dict[str, str] = {}
    severity: Annotated[str, Meta(min_length=1)] = "critical"
    generator_url: str = ""
    resend_s: Positive = 30.0
    resolve_hold_s: Annotated[float, Meta(ge=0)] = 22.0
    retry_s: Positive = 0.2

    def validate(self) -> None:
        for url in self.alertmanagers:
            check_base_url("alertmanager", url)
        check_labels(self.labels, self.OWN_LABELS)
        check_resolve_hold(self.resolve_hold_s, self.resend_s)
