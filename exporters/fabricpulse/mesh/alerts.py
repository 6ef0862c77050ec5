"""A lost NIC goes straight to Alertmanager, under the very labels that the rule gives: one alert, not two."""

import time
from collections.abc import Callable

from fabricpulse.core.alerting.pusher import AlertContent, Pusher
from fabricpulse.mesh.config import NicAlerting

ALERT_NAME = "FabricNicDisconnected"
# Those of the rule and of the scrape job in deploy/prometheus.yml.
DEFAULT_LABELS = {"component": "mesh", "job": "fabricpulse-mesh"}
RUNBOOK_URL = f"https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/{ALERT_NAME}.md"


def nic_alert(config: NicAlerting, host: str, device: str, network: str, leaf: str = "") -> AlertContent:
    """Labels and annotations of the alert on one disconnected NIC. leaf : "" where it is not known."""
    labels = {
        **DEFAULT_LABELS,
        "instance": host,
        **config.labels,
        "alertname": ALERT_NAME,
        "severity": config.severity,
        "device": device,
        "network": network,
        **({"leaf": leaf} if leaf else {}),
    }
    return AlertContent(
        labels,
        {
            "summary": "A NIC has lost the fabric.",
            "description": f"NIC {device} of {labels['instance']} reaches none of its peers on network {network}.",
            "runbook_url": RUNBOOK_URL,
        },
        config.generator_url,
    )


class AlertPusher(Pusher[tuple[str, str]]):
    """Alerts of NICs, by device and network."""

    def __init__(
        self,
        config: NicAlerting,
        host: str,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock : seconds since 1970."""
        super().__init__(config, clock, monotonic)
        self._alerting = config
        self._host = host

    def fire(self, device: str, network: str, leaf: str = "") -> None:
        """The NIC is disconnected. leaf : "" where it is not known."""
        self.set_firing((device, network), nic_alert(self._alerting, self._host, device, network, leaf))

    def resolve(self, device: str, network: str) -> None:
        """The NIC is connected again, is no longer ours, or nothing is known of it any more."""
        self.set_resolved((device, network))
