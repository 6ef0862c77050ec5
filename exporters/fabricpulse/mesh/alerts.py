"""A NIC that is lost or flaps goes straight to Alertmanager, under the labels that the rule gives: one alert."""

import time
from collections.abc import Callable
from typing import NamedTuple

from fabricpulse.core.alerting.pusher import AlertContent, Pusher
from fabricpulse.mesh.config import NicAlerting

DISCONNECTED, FLAPPING = "FabricNicDisconnected", "FabricNicFlapping"
# Those of the rules and of the scrape job in deploy/prometheus.yml.
DEFAULT_LABELS = {"component": "mesh", "job": "fabricpulse-mesh"}
RUNBOOK_URL = "https://github.com/fabricpulse/fabricpulse/blob/main/docs/runbooks/{}.md"


class Nic(NamedTuple):
    """A NIC of this host. leaf : "" where it is not known."""

    device: str
    network: str
    leaf: str = ""


def nic_alert(config: NicAlerting, host: str, device: str, network: str, leaf: str = "") -> AlertContent:
    """Labels and annotations of the alert on one disconnected NIC. leaf : "" where it is not known."""
    return _alert(
        config,
        host,
        Nic(device, network, leaf),
        {"alertname": DISCONNECTED, "severity": config.severity},
        "A NIC has lost the fabric.",
        f"reaches none of its peers on network {network}.",
    )


def flap_alert(config: NicAlerting, host: str, nic: Nic, disconnects: int) -> AlertContent:
    """Labels and annotations of the alert on one NIC that was disconnected so often within `flap_window_s`."""
    return _alert(
        config,
        host,
        nic,
        {"alertname": FLAPPING, "severity": config.flap_severity},
        "A NIC keeps losing the fabric and coming back.",
        f"on network {nic.network} was disconnected {disconnects} times within {config.flap_window_s:g} s.",
        # By it Alertmanager's route to remediation takes the alert, and a label of a rule is always there.
        {"remediate": "nccl"},
    )


def _alert(
    config: NicAlerting,
    host: str,
    nic: Nic,
    own: dict[str, str],
    summary: str,
    description: str,
    more: dict[str, str] | None = None,
) -> AlertContent:
    """`config.labels` may replace the defaults and `more`, never `own`."""
    labels = {
        **DEFAULT_LABELS,
        **(more or {}),
        "instance": host,
        **config.labels,
        **own,
        "device": nic.device,
        "network": nic.network,
        **({"leaf": nic.leaf} if nic.leaf else {}),
    }
    return AlertContent(
        labels,
        {
            "summary": summary,
            "description": f"NIC {nic.device} of {labels['instance']} {description}",
            "runbook_url": RUNBOOK_URL.format(own["alertname"]),
        },
        config.generator_url,
    )


class AlertPusher(Pusher[tuple[str, str, str]]):
    """Alerts of NICs, by their name, device and network."""

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
        content = nic_alert(self._alerting, self._host, device, network, leaf)
        self.set_firing((DISCONNECTED, device, network), content)

    def resolve(self, device: str, network: str) -> None:
        """The NIC is connected again, is no longer ours, or nothing is known of it any more."""
        self.set_resolved((DISCONNECTED, device, network))

    def disconnected(self) -> list[tuple[str, str]]:
        """Device and network of those that are disconnected, as far as was said here."""
        return [(device, network) for name, device, network in self.firing() if name == DISCONNECTED]

    def fire_flapping(self, nic: Nic, disconnects: int) -> None:
        """The NIC flaps."""
        content = flap_alert(self._alerting, self._host, nic, disconnects)
        self.set_firing((FLAPPING, nic.device, nic.network), content)

    def resolve_flapping(self, device: str, network: str) -> None:
        """It has not flapped for a while."""
        self.set_resolved((FLAPPING, device, network))
