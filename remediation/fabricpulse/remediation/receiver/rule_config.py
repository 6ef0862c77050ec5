"""Configuration of the receiver's rules: what is done about which alert."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta
from msgspec.structs import force_setattr

from fabricpulse.core.config import Section

Seconds = Annotated[float, Meta(ge=0)]
MODES = ("observe", "dry_run", "approve", "auto")
# Action -> its mode where a rule does not say one.
ACTIONS = {
    "nic.avoid": "dry_run",
    "nic.restore": "dry_run",
    "lane.repath": "dry_run",
    "lane.weight": "dry_run",
    "host.drain": "approve",
    "notify": "auto",
}
LANE_ACTIONS = ("lane.repath", "lane.weight")


class HoldConfig(Section, frozen=True):
    """How long a NIC must have been quiet before it goes back into service.

    initial_s : hold after the first failover of a NIC, seconds. factor : each further failover of the NIC within
    `window_s` multiplies the hold by it. cap_s : longest hold, seconds. window_s : how long a failover counts,
    seconds. jitter : the hold varies by this fraction, so that NICs which left together do not return together.
    sticky_count : after so many failovers within `sticky_window_s` only a person puts the NIC back. sticky_window_s :
    the time that `sticky_count` counts over, seconds.
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


class RuleConfig(Section, frozen=True):
    """What to do about one alert.

    alert : name of the alert that the rule is for. action : `nic.avoid` takes the NIC out of running jobs;
    `nic.restore` ends the hold of a NIC that is out, once it was observed healthy for a minute: for an alert that
    says that the NIC is well, or tested; `lane.repath` and `lane.weight` put lanes that send over the NIC on
    another path, or give them less of the job's data, if they are measured to be slow, and undo what did not help
    (see `rebalance`; labels `workload`, `connection` and `lane` say which lanes, all without); `host.drain` drains
    the host, see `drain`; `notify` changes nothing and tells those in `notify` when the alert begins and ends. mode
    : `observe` writes the episode down and stops there; `dry_run` decides and journals, the agent checks and
    changes nothing; `approve` plans, and acts when an operator has approved the plan (`fabricpulse remediation
    approve`); `auto` acts; empty: dry_run, of host.drain: approve, of notify: auto. host_label : label of the alert
    that names the host. Prometheus must set it (scrape configuration, exporter of that very host), never a job.
    device_label : label of the alert that names the NIC; Prometheus must set it, never a job. cause_labels : labels
    whose value several hosts share, a rail or a switch: see guards.shared_cause_count. hold : of nic.avoid, instead
    of the hold of the whole file.
    """

    alert: Annotated[str, Meta(min_length=1)]
    action: str = "nic.avoid"
    mode: str = ""
    host_label: Annotated[str, Meta(min_length=1)] = "instance"
    device_label: Annotated[str, Meta(min_length=1)] = "device"
    cause_labels: tuple[Annotated[str, Meta(min_length=1)], ...] = ("network", "leaf", "switch")
    hold: HoldConfig | None = None

    def __post_init__(self) -> None:
        if not self.mode:
            force_setattr(self, "mode", ACTIONS.get(self.action, ""))

    def validate(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"action {self.action!r} is none of {', '.join(ACTIONS)}")
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is none of {', '.join(MODES)}")
        if self.action == "notify" and self.mode not in ("observe", "auto"):
            raise ValueError(f"mode {self.mode} has no meaning for the action notify: observe or auto")
        if self.hold is not None and self.action != "nic.avoid":
            raise ValueError(
                f"hold has no meaning for the action {self.action}: it belongs to the rule that takes the NIC out"
            )


def keeps_out(rules: Mapping[str, RuleConfig], alert: str) -> bool:
    """Whether a NIC stays out of service while this alert fires about it. So does one that no rule names any more.

    rules : by the name of the alert.
    """
    rule = rules.get(alert)
    return rule is None or rule.action == "nic.avoid"
