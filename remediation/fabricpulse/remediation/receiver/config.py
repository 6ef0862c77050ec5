"""Configuration of the receiver."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import force_setattr

from fabricpulse.core.config import Section
from fabricpulse.core.web.client_config import HttpClientConfig, check_credentials
from fabricpulse.core.web.urls import check_base_url, check_url
from fabricpulse.remediation.receiver.times import moment, time_of_day_s

Seconds = Annotated[float, Meta(ge=0)]
Role = Literal["alert", "agent", "viewer", "operator"]
MODES = ("observe", "dry_run", "approve", "auto")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class HoldConfig(Section, frozen=True):
    """How long a NIC must have been quiet before it goes back into service.

    initial_s : the first hold. factor : each further failover of the NIC within `window_s` multiplies the hold by it.
    cap_s : the hold grows no further. window_s : how long a failover counts. jitter : the hold varies by this fraction,
    so that NICs which left together do not return together. sticky_count : after so many failovers within
    `sticky_window_s` only a person puts the NIC back. sticky_window_s : see sticky_count.
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

    alert : its name. action : `nic.avoid` takes the NIC out of running jobs; `host.drain` leaves the host, see `drain`.
    mode : `observe` writes the episode down and stops there; `dry_run` decides and journals, the agent checks and
    changes nothing; `approve` plans, and acts when an operator has approved the plan (`fabricpulse remediation
    approve`); `auto` acts; empty: dry_run, of host.drain: approve. host_label, device_label : the
    labels that name the target; they must be ones that Prometheus sets (scrape configuration, exporter of that very
    host), never ones that a job can choose. cause_labels : labels whose value several hosts share, a rail or a switch:
    see guards.shared_cause_count. hold : instead of the hold of the whole file.
    """

    alert: Annotated[str, Meta(min_length=1)]
    action: Literal["nic.avoid", "host.drain"] = "nic.avoid"
    mode: str = ""
    host_label: Annotated[str, Meta(min_length=1)] = "instance"
    device_label: Annotated[str, Meta(min_length=1)] = "device"
    cause_labels: tuple[Annotated[str, Meta(min_length=1)], ...] = ("network", "leaf", "switch")
    hold: HoldConfig | None = None

    def __post_init__(self) -> None:
        if not self.mode:
            force_setattr(self, "mode", "approve" if self.action == "host.drain" else "dry_run")

    def validate(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is none of {', '.join(MODES)}")


class MaintenanceConfig(Section, frozen=True):
    """A time in which nothing is decided about some NICs. Open once, from `begin` to `end`, or each week.

    hosts, devices : patterns of names (`gpu-0*`), one of each must fit. begin, end : RFC 3339, UTC without an offset.
    days : `mon` to `sun`. at : `HH:MM` in UTC at which it opens on those days. for_s : for how long, at most a week.
    reason : for people.
    """

    hosts: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = ("*",)
    begin: str = ""
    end: str = ""
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = ()
    at: str = ""
    for_s: Annotated[float, Meta(ge=0, le=604_800)] = 0
    reason: str = ""

    def validate(self) -> None:
        once, weekly = bool(self.begin and self.end), bool(self.days and self.at and self.for_s)
        if (
            once == weekly
            or (once and (self.days or self.at or self.for_s))
            or (weekly and (self.begin or self.end))
        ):
            raise ValueError("give begin and end, or days, at and for_s")
        if weekly:
            try:
                time_of_day_s(self.at)
            except ValueError as error:
                raise ValueError(f"at {self.at!r} is not HH:MM") from error
            return
        try:
            begin, end = moment(self.begin), moment(self.end)
        except ValueError as error:
            raise ValueError(f"begin and end must be like 2026-11-22T02:00:00Z: {error}") from error
        if begin >= end:
            raise ValueError("end must be after begin")


class GuardConfig(Section, frozen=True):
    """Limits on what may be done at once.

    min_nics_in_service : NICs of a host that stay in service whatever happens. min_fraction_in_service : of a host's
    NICs; one of two or more may always leave. settle_s : an alert is this old before it is acted on, so that others of
    the same cause are seen first; the plugin keeps the job running meanwhile. cooldown_s : between two failovers of
    one NIC. max_attempts : failovers of one NIC within `attempts_window_s`, whatever became of them. attempts_window_s
    : see max_attempts. retry_initial_s : after a failover that was refused, failed or not fetched; doubled each time,
    up to `retry_cap_s`. actions_per_minute : rate of failovers, and of failbacks, fleet-wide. burst : how many at
    once. max_in_flight : actions under way fleet-wide; one a host. breaker_window_s, breaker_hosts, breaker_fraction,
    breaker_max_hosts : when more hosts would be acted on within the window than breaker_hosts, or than the fraction of
    the hosts that were observed for long, but never more than breaker_max_hosts, the breaker of that direction trips
    until an operator resumes. shared_cause_count : when the alerts of so many hosts with the same value of a cause
    label begin within `shared_cause_window_s`, the cause is not a NIC, and none is taken out; on a small rail the
    limit is `shared_cause_fraction` of its hosts, at least 3. shared_cause_memory_s : an alert that has ended counts
    so long. max_workload_nics, workload_fraction : NICs of the hosts of one job that may be out of service at once: the
    fraction of them, at least 2 and at most max_workload_nics. max_harmful : after so many failovers of a rule in a row
    after which the jobs stalled, the rule only observes until an operator resumes. agent_timeout_s : after this silence
    an agent is lost. lost_agents_fraction : when more agents than this are lost, nothing is decided.
    lost_agents_window_s : an agent that is lost for longer does not count there. intent_ttl_s : a decision that no
    agent has fetched by then is dropped. result_timeout_s : an action whose result no agent has reported by then counts
    as unknown.
    """

    min_nics_in_service: Annotated[int, Meta(ge=1)] = 1
    min_fraction_in_service: Annotated[float, Meta(ge=0, le=1)] = 0.75
    settle_s: Annotated[float, Meta(ge=0, le=60)] = 5
    cooldown_s: Seconds = 300
    max_attempts: Annotated[int, Meta(ge=1)] = 3
    attempts_window_s: Seconds = 21_600
    retry_initial_s: Seconds = 60
    retry_cap_s: Seconds = 3_600
    actions_per_minute: Annotated[float, Meta(gt=0)] = 10
    burst: Annotated[int, Meta(ge=1)] = 10
    max_in_flight: Annotated[int, Meta(ge=1)] = 5
    breaker_window_s: Seconds = 300
    breaker_hosts: Annotated[int, Meta(ge=1)] = 3
    breaker_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.1
    breaker_max_hosts: Annotated[int, Meta(ge=1)] = 10
    shared_cause_window_s: Seconds = 60
    shared_cause_count: Annotated[int, Meta(ge=2)] = 4
    shared_cause_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.5
    shared_cause_memory_s: Seconds = 900
    max_workload_nics: Annotated[int, Meta(ge=1)] = 8
    workload_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.1
    max_harmful: Annotated[int, Meta(ge=1)] = 3
    agent_timeout_s: Annotated[float, Meta(gt=0)] = 15
    lost_agents_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.3
    lost_agents_window_s: Seconds = 3_600
    intent_ttl_s: Annotated[float, Meta(gt=0)] = 120
    result_timeout_s: Annotated[float, Meta(gt=0)] = 60


class RebalanceConfig(Section, frozen=True):
    """Putting lanes of jobs on other paths where they collide.

    mode : `observe` does nothing and asks agents for nothing; `dry_run` journals what it would do; `approve` waits for
    an operator; `auto` acts. window_s : over which goodput is measured, before and after. settle_s : after the last
    operation, before it is measured. slow_share : a lane is slow below this part of what its job's good lanes deliver.
    min_gain : goodput afterwards by before at which a plan has helped and stays; else it is rolled back. max_loss :
    part of its goodput that any other job may lose. max_tries : new paths that one plan tries for a lane. max_lanes :
    of one plan. cooldown_s : between two plans for one job; doubled with each in a row that did not help, up to a day.
    operations_per_hour : on lanes, fleet-wide, rolling back not counted. max_unhelpful : after so many plans in a row
    that did not help, none is made until an operator resumes. quiet_s : so long a lane is left alone after the plugin
    has re-pathed it by itself.
    """

    mode: str = "observe"
    window_s: Annotated[float, Meta(ge=1, le=300)] = 10
    settle_s: Annotated[float, Meta(ge=0, le=60)] = 2
    slow_share: Annotated[float, Meta(gt=0, lt=1)] = 0.6
    min_gain: Annotated[float, Meta(ge=1.01, le=10)] = 1.1
    max_loss: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    max_tries: Annotated[int, Meta(ge=1, le=20)] = 6
    max_lanes: Annotated[int, Meta(ge=1, le=256)] = 64
    cooldown_s: Seconds = 300
    operations_per_hour: Annotated[int, Meta(ge=1)] = 200
    max_unhelpful: Annotated[int, Meta(ge=1)] = 5
    quiet_s: Seconds = 30

    def validate(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is none of {', '.join(MODES)}")


class DrainConfig(Section, frozen=True):
    """Leaving a host (`action: host.drain`): the line `hand_off` tells jobs and trainers by `notify`, then the command
    tells the scheduler. Both commands run on the receiver's machine, as lists of arguments without a shell, in which
    `{host}`, `{reason}` and `{op_id}` are filled in; they are run again after a failure or a restart, so they must say
    what shall be.

    command : drains the host; empty: nothing but `hand_off`. undo : brings it back once an operator has released it.
    timeout_s : of one run. grace_s : between `hand_off` and the command, so that jobs can leave by themselves.
    max_hosts : out at once, those of which the command failed included. hosts_per_day : that are left within 24 h.
    cooldown_s : between the return of a host and its next drain.
    """

    command: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 30
    grace_s: Annotated[float, Meta(ge=0, le=3600)] = 60
    max_hosts: Annotated[int, Meta(ge=1)] = 1
    hosts_per_day: Annotated[int, Meta(ge=1)] = 3
    cooldown_s: Seconds = 3_600

    def validate(self) -> None:
        for name, command in (("command", self.command), ("undo", self.undo)):
            if command and not any("{host}" in argument for argument in command[1:]):
                raise ValueError(f"{name} does not name {{host}} in its arguments")
            if command and not command[0].startswith("/"):
                raise ValueError(f"{name} must begin with the absolute path of a program")


class AccessConfig(Section, frozen=True):
    """Somebody who may use the API.

    name : in the journal. role : `alert` sends webhooks, `agent` speaks for its host, `viewer` reads, `operator` reads,
    pauses, releases. One of: token_file : bearer token; user : of basic_auth_users in --web.config.file; certificate :
    DNS name of a client certificate; key_file : role agent only, a key from which each host has a token of its own
    (`fabricpulse remediation token`), so that no agent can speak for another host.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    token_file: str = ""
    user: str = ""
    certificate: str = ""
    key_file: str = ""

    def validate(self) -> None:
        if sum(map(bool, (self.token_file, self.user, self.certificate, self.key_file))) != 1:
            raise ValueError("exactly one of token_file, user, certificate and key_file is needed")
        if self.key_file and self.role != "agent":
            raise ValueError("key_file is for the role agent")


class NotifyConfig(Section, frozen=True):
    """Who is told what was decided.

    name : unique; how far it has been told is kept under it. kind : `webhook` posts one JSON object a line of the
    journal (id, at, event, host, device, detail) to `url`; `grafana` posts annotations to the Grafana at `url`.
    events : which lines. http_client : TLS, password or token that it asks for.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    url: str
    kind: Literal["webhook", "grafana"] = "webhook"
    events: tuple[str, ...] = (
        "nic.avoid",
        "nic.restore",
        "succeeded",
        "refused",
        "failed",
        "expired",
        "unknown",
        "rolled_back",
        "would_avoid",
        "rebalance",
        "would_rebalance",
        "rebalance_kept",
        "rebalance_rolled_back",
        "hand_off",
        "would_drain",
        "drain_drained",
        "drain_returned",
        "drain_failed",
        "drain_dropped",
        "awaiting_approval",
        "approved",
        "breaker_tripped",
        "manual",
        "paused",
        "resumed",
    )
    http_client: HttpClientConfig = HttpClientConfig(timeout_s=5)

    def validate(self) -> None:
        check_base_url("url", self.url) if self.kind == "grafana" else check_url("url", self.url)
        check_credentials("url", self.url, self.http_client)

    @property
    def target(self) -> str:
        """Where requests go."""
        return self.url.rstrip("/") + "/api/annotations" if self.kind == "grafana" else self.url


class ReceiverConfig(Section, frozen=True):
    """`fabricpulse remediation receiver --config FILE`.

    journal : SQLite file, on a local disk; or the URL of a PostgreSQL database (`postgresql://…`, as libpq reads it,
    with `passfile=` for the password), which several receivers share: one leads, the others stand by. lease_s : with
    PostgreSQL, how long after the last word of the leader another receiver takes over. alertmanagers : base URLs,
    polled for active alerts at start, every
    `reconcile_interval_s` and when a notification was truncated or suspect. reconcile_interval_s : seconds. expire_s :
    a firing alert that no Alertmanager has held for so long has expired. watchdog : an alert that always fires; once it
    has been seen, its absence means that alerting is dead, and nothing goes back into service. Empty: not checked.
    http_client : TLS, password or token that the Alertmanagers ask for. token_file : a bearer token that Alertmanager,
    agents and operators must show, for every role; read again when it changes. access : instead, who may do what.
    membership : file of the fleet's hosts and NICs; with it, an alert or an agent that names any other is turned away.
    agent_certificates : an agent must show a client certificate whose SAN is its host's name. signing_key_file :
    Ed25519 private key (`fabricpulse remediation keygen`) that signs what agents are told. intent_valid_s : what they
    are told is void so long after it was sent. rules : by alert. hold : the quiet time before a NIC returns. guards :
    limits. rebalance : lanes on other paths. drain : leaving hosts. maintenance : windows in which nothing is decided.
    notify : who is told what was decided.
    """

    journal: str = "/var/lib/fabricpulse/remediation.db"
    lease_s: Annotated[float, Meta(ge=1, le=60)] = 10
    alertmanagers: tuple[str, ...] = ()
    reconcile_interval_s: Annotated[float, Meta(gt=0)] = 60
    expire_s: Seconds = 300
    watchdog: str = "FabricWatchdog"
    http_client: HttpClientConfig = HttpClientConfig(timeout_s=5)
    token_file: str = ""
    access: tuple[AccessConfig, ...] = ()
    membership: str = ""
    agent_certificates: bool = False
    signing_key_file: str = ""
    intent_valid_s: Annotated[float, Meta(ge=5, le=3600)] = 60
    rules: tuple[RuleConfig, ...] = (RuleConfig(alert="FabricNicFlapping"),)
    hold: HoldConfig = HoldConfig()
    guards: GuardConfig = GuardConfig()
    rebalance: RebalanceConfig = RebalanceConfig()
    drain: DrainConfig = DrainConfig()
    maintenance: tuple[MaintenanceConfig, ...] = ()
    notify: tuple[NotifyConfig, ...] = ()

    def validate(self) -> None:
        if self.token_file and self.access:
            raise ValueError(
                "token_file and access exclude each other: a token for everybody would undo the roles"
            )
        names = [rule.alert for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("rules: an alert is listed twice")
        if len({entry.name for entry in self.notify}) != len(self.notify):
            raise ValueError("notify: a name is used twice")
        for url in self.alertmanagers:
            check_base_url("alertmanager", url)
            check_credentials("alertmanager", url, self.http_client)
        if not is_postgres(self.journal) and not Path(self.journal).name:
            raise ValueError("journal is not the name of a file")

    @property
    def poll_timeout_s(self) -> float:
        """After this long without an answer of the Alertmanagers nothing is decided."""
        return max(3 * self.reconcile_interval_s, 30.0)

    def hold_of(self, alert: str) -> HoldConfig:
        """The hold that counts for a NIC taken out because of `alert`."""
        rule = next((rule for rule in self.rules if rule.alert == alert), None)
        return rule.hold if rule is not None and rule.hold is not None else self.hold


def is_postgres(journal: str) -> bool:
    """Whether a journal is the URL of a PostgreSQL database."""
    return journal.startswith(("postgresql://", "postgres://"))
