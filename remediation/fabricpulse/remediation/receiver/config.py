"""Configuration of the receiver."""

from typing import Annotated, Literal

from msgspec import Meta

from fabricpulse.core.config import Section

Seconds = Annotated[float, Meta(ge=0)]
Mode = Literal["observe", "dry_run", "auto"]


class RuleConfig(Section, frozen=True):
    """What to do about one alert.

    mode : `observe` writes the episode down and stops there; `dry_run` decides and journals, the agent checks and
    changes nothing; `auto` acts. The labels that name the target must be ones that Prometheus sets (scrape
    configuration, exporter of that very host), never ones that a job can choose.
    """

    # Name of the alert.
    alert: Annotated[str, Meta(min_length=1)]
    # What to do about it.
    action: Literal["nic.avoid"] = "nic.avoid"
    mode: Mode = "dry_run"
    # Label that names the host.
    host_label: str = "instance"
    # Label that names the NIC.
    device_label: str = "device"


class HoldConfig(Section, frozen=True):
    """How long a NIC must have been quiet before it goes back into service.

    The first hold is `initial_s`; each further failover of the NIC within `window_s` multiplies it by `factor`, up to
    `cap_s`. After `sticky_count` failovers within `sticky_window_s` only a person puts the NIC back.
    """

    initial_s: Seconds = 600
    factor: Annotated[float, Meta(ge=1)] = 2
    cap_s: Seconds = 14_400
    window_s: Seconds = 43_200
    jitter: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    sticky_count: Annotated[int, Meta(ge=1)] = 3
    sticky_window_s: Seconds = 7_200

    def validate(self) -> None:
        if self.cap_s < self.initial_s:
            raise ValueError("cap_s must not be below initial_s")


class GuardConfig(Section, frozen=True):
    """Limits on what may be done at once. Defaults suit a fleet; a small one trips the absolute bounds last."""

    # NICs that a host keeps in service whatever happens.
    min_nics_in_service: Annotated[int, Meta(ge=1)] = 1
    # Share of its NICs that a host keeps in service.
    min_fraction_in_service: Annotated[float, Meta(ge=0, le=1)] = 0.5
    # Seconds after a change of a NIC before it may be taken out of service again.
    cooldown_s: Seconds = 300
    # A NIC is taken out of service at most so often within attempts_window_s.
    max_attempts: Annotated[int, Meta(ge=1)] = 3
    # See max_attempts.
    attempts_window_s: Seconds = 21_600
    # Actions in the whole fleet within a minute; the larger of this and burst holds.
    actions_per_minute: Annotated[float, Meta(gt=0)] = 10
    # See actions_per_minute.
    burst: Annotated[int, Meta(ge=1)] = 10
    # Actions on more hosts than both limits below within this many seconds stop all further ones.
    breaker_window_s: Seconds = 300
    # The first limit, in hosts.
    breaker_hosts: Annotated[int, Meta(ge=1)] = 3
    # The second limit, as a share of the hosts.
    breaker_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.1
    # An alert on the same rail of shared_cause_count hosts within this many seconds is a switch, not a NIC.
    shared_cause_window_s: Seconds = 60
    # See shared_cause_window_s.
    shared_cause_count: Annotated[int, Meta(ge=2)] = 4
    # A node agent that has not been heard of for this long is lost.
    agent_timeout_s: Seconds = 15
    # With a larger share of agents lost nothing is done: the trouble is on our side.
    lost_agents_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.3
    # A decision that could not be delivered within this time is given up.
    intent_ttl_s: Seconds = 120


class ReceiverConfig(Section, frozen=True):
    """`fabricpulse remediation receiver --config FILE`.

    journal : SQLite file, on a local disk. alertmanagers : base URLs, asked for the truth at start, every
    `reconcile_interval_s` and when a notification was truncated or suspect. token_file : a bearer token that
    Alertmanager, agents and people must show.
    """

    journal: str = "/var/lib/fabricpulse/remediation.db"
    alertmanagers: tuple[str, ...] = ()
    # How often the Alertmanagers are asked what fires.
    reconcile_interval_s: Annotated[float, Meta(gt=0)] = 60
    # An alert of which nothing has been heard for this long, and that no Alertmanager knows, has ended.
    expire_s: Seconds = 300
    token_file: str = ""
    # What to do about which alert; each alert once.
    rules: tuple[RuleConfig, ...] = (RuleConfig(alert="FabricNicFlapping"),)
    hold: HoldConfig = HoldConfig()
    guards: GuardConfig = GuardConfig()

    def validate(self) -> None:
        names = [rule.alert for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("rules: an alert is listed twice")
        for url in self.alertmanagers:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"alertmanagers: {url!r} is not an http(s) URL")
