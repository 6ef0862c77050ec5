"""Configuration of the receiver."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import TOKEN_FILE, WRITTEN_FILE, read_file
from fabricpulse.core.web.client_config import HttpClientConfig, check_credentials
from fabricpulse.core.web.urls import check_base_url, check_url
from fabricpulse.remediation.receiver.rule_config import MODES, HoldConfig, RuleConfig, Seconds
from fabricpulse.remediation.receiver.times import moment, time_of_day_s

Role = Literal["alert", "agent", "viewer", "operator"]
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class CauseAlertConfig(Section, frozen=True):
    """An alert on what many NICs share: while it fires, and for guards.shared_cause_memory_s after its end, none is
    taken out. It must reach the receiver.

    alert : name of the alert. label : what it has in common with those NICs' alerts, one of their `cause_labels`.
    """

    alert: Annotated[str, Meta(min_length=1)]
    label: Annotated[str, Meta(min_length=1)]


class MaintenanceConfig(Section, frozen=True):
    """A time in which nothing is decided about some NICs. Open once, from `begin` to `end`, or each week.

    hosts : patterns of host names (`gpu-0*`), one of which must fit. devices : patterns of NICs' names, one of which
    must fit. begin : when a window that opens once begins, RFC 3339, UTC without an offset. end : when it ends. days :
    days of the week on which a weekly window opens, `mon` to `sun`. at : time of day at which a weekly window opens,
    `HH:MM` in UTC. for_s : how long a weekly window stays open, seconds, at most a week. reason : why, for people.
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
        mixed = (once and (self.days or self.at or self.for_s)) or (weekly and (self.begin or self.end))
        if once == weekly or mixed:
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

    min_nics_in_service : NICs of a host that stay in service whatever happens. min_fraction_in_service : part of a
    host's NICs that stays in service; one of two or more may always leave. settle_s : age that an alert must have
    before it is acted on, seconds, so that others of the same cause are seen first; the plugin keeps the job running
    meanwhile. cooldown_s : least time between two failovers of one NIC, seconds. max_attempts : failovers of one NIC
    within `attempts_window_s`, whatever became of them. attempts_window_s : the time that `max_attempts` counts over,
    seconds. retry_initial_s : pause after a failover that was refused, failed or not fetched, seconds; doubled each
    time, up to `retry_cap_s`. retry_cap_s : longest pause between two tries of a failover, seconds. actions_per_minute
    : rate of failovers, and of failbacks, fleet-wide. burst : actions of one direction that may come at once within
    that rate. max_in_flight : actions under way fleet-wide; one a host. breaker_window_s : the time over which the
    circuit breaker of a direction counts hosts, seconds. breaker_hosts : when more hosts than this would be acted on
    within the window, the breaker trips until an operator resumes; in a large fleet `breaker_fraction` of the hosts
    counts. breaker_fraction : the same as a part of the hosts that were observed for long, where that is more than
    `breaker_hosts`. breaker_max_hosts : most hosts within the window, however large the fleet is.
    shared_cause_window_s : how close together alerts with a shared cause begin, seconds. shared_cause_count : when the
    alerts of so many hosts with the same value of a cause label begin within `shared_cause_window_s`, the cause is not
    a NIC, and none is taken out. shared_cause_fraction : on a small rail, part of its hosts that counts in place of
    `shared_cause_count`, at least 3. shared_cause_memory_s : how long an alert that has ended counts for a shared
    cause, seconds. max_workload_nics : most NICs of the hosts of one job that may be out of service at once.
    workload_fraction : part of the NICs of the hosts of one job that may be out of service at once, 2 NICs at least
    and `max_workload_nics` at most. max_harmful : after so many failovers of a rule in a row after which the jobs
    stalled, the rule only observes until an operator resumes; if all were on one host, there. max_unproven : after so
    many failovers of a rule that were measured, failed or undone, none of which has a proven recovery, it only observes
    until an operator resumes; if all were on one host, there.
    recovery_window_s : time over which it is measured what a host's jobs carry before and after a failover, seconds.
    recovery_share : a failover has helped when they carry so much of what the NICs that are left allow, their
    part of the most that it carried in the minutes before. agent_timeout_s : silence after which an agent is lost,
    seconds. lost_agents_fraction : when a larger part of the agents is lost, nothing is decided. lost_agents_window_s
    : an agent that is lost for longer than this, in seconds, does not count for `lost_agents_fraction`. intent_ttl_s :
    a decision that no agent has fetched in this time is dropped, and no failover is carried out later than this after
    it was decided, seconds. result_timeout_s : an action whose result no
    agent has reported in this time counts as unknown, seconds.
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
    max_unproven: Annotated[int, Meta(ge=1)] = 10
    recovery_window_s: Annotated[float, Meta(ge=5, le=120)] = 30
    recovery_share: Annotated[float, Meta(gt=0, le=1)] = 0.75
    agent_timeout_s: Annotated[float, Meta(gt=0)] = 15
    lost_agents_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.3
    lost_agents_window_s: Seconds = 3_600
    intent_ttl_s: Annotated[float, Meta(gt=0)] = 120
    result_timeout_s: Annotated[float, Meta(gt=0)] = 60


class RebalanceConfig(Section, frozen=True):
    """Putting lanes of jobs on other paths where they collide.

    mode : `observe` does nothing and asks agents for nothing; `dry_run` journals what it would do; `approve` waits for
    an operator; `auto` acts. window_s : time over which goodput is measured, before and after, seconds. settle_s :
    pause between the last operation and the measurement, seconds. slow_share : a lane is slow below this part of what
    its job's good lanes deliver. min_gain : goodput after a plan divided by goodput before it at which it has helped
    and stays; else it is rolled back. max_loss : part of its goodput that any other job may lose, and
    the one that is moved if it has less than the others then. max_tries : new
    paths that one plan tries for a lane. max_lanes : most lanes of one plan. cooldown_s : pause between two plans for
    one job, seconds; doubled with each in a row that did not help, up to a day. operations_per_hour : most operations
    on lanes, fleet-wide, rolling back not counted. max_unhelpful : after so many plans in a row that did not help,
    none is made until an operator resumes. quiet_s : how long a lane is left alone after the plugin has re-pathed it
    by itself, seconds.
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

    command : program and arguments that drain the host; empty: nothing but `hand_off`. undo : program and arguments
    that bring the host back once an operator has released it; empty: that is done by hand. timeout_s :
    longest time for one run of a command, seconds. grace_s : time between `hand_off` and the command, seconds, so that
    jobs can leave by themselves. max_hosts : most hosts that are out at once, those of which the command failed
    included. hosts_per_day : most hosts that are handed off within 24 h, also where the alert ended within `grace_s`.
    cooldown_s : least time between the return of a host, or the end of its hand-off, and its next drain, seconds.
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

    name : what the journal calls this user. role : `alert` sends webhooks, `agent` speaks for its host, `viewer`
    reads, `operator` reads, pauses, releases. token_file : file with the user's bearer token. user : instead, one of
    basic_auth_users in --web.config.file. certificate : instead, DNS name of a client certificate. key_file : instead,
    for the role agent only, file with a key from which each host has a token of its own (`fabricpulse remediation
    token`), so that no agent can speak for another host.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    token_file: Annotated[str, TOKEN_FILE] = ""
    user: str = ""
    certificate: str = ""
    key_file: Annotated[str, read_file("fabricpulse.remediation.receiver.web.auth:agent_key")] = ""

    def validate(self) -> None:
        if sum(map(bool, (self.token_file, self.user, self.certificate, self.key_file))) != 1:
            raise ValueError("exactly one of token_file, user, certificate and key_file is needed")
        if self.key_file and self.role != "agent":
            raise ValueError("key_file is for the role agent")


class NotifyConfig(Section, frozen=True):
    """A destination of notifications about decisions.

    name : unique name of the destination; its position in the journal is kept under it. url : where to send: the URL
    of a webhook, or the base URL of Grafana. kind : `webhook` posts one JSON object a line of the journal (id, at,
    event, host, device, detail) to `url`; `grafana` posts annotations to the Grafana at `url`. events : events of the
    journal that are sent. http_client : TLS, password or token that it asks for.
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
        "would_restore",
        "rebalance",
        "would_rebalance",
        "rebalance_kept",
        "rebalance_rolled_back",
        "rebalance_withdrawn",
        "rebalance_rollback_failed",
        "hand_off",
        "would_drain",
        "drain_drained",
        "drain_returned",
        "drain_failed",
        "drain_dropped",
        "notify",
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
    with `passfile=` for the password), which several receivers share: one leads, the others stand by.
    keep_deliveries_bytes : so much of what Alertmanager has sent is kept as it came, for seven days at most, the oldest
    goes first. lease_s : with PostgreSQL, how long after the last sign of the leader another receiver takes over,
    seconds. alertmanagers : base URLs of Alertmanagers, polled for active alerts at start, every `alertmanager_poll_s`
    and when a notification was truncated or suspect. alertmanager_poll_s : time between two polls of the Alertmanagers,
    seconds. expire_s : a firing alert that no Alertmanager has held for so long, in seconds, has expired. watchdog : an
    alert that always fires; once it has been seen, its absence means that alerting is dead, and nothing goes back into
    service. Empty: not checked. http_client : TLS, password or token that the Alertmanagers ask for. token_file : file
    with a bearer token that Alertmanager, agents and operators must show, for every role; read again when it changes.
    access : who may do what, in place of token_file. Without either, and without passwords or certificates of the web
    configuration, commands are taken from the receiver's own machine only, and alerts from there and from the
    Alertmanagers in `alertmanagers`. membership : file of the fleet's hosts and NICs; with it, an alert
    or an agent that names any other is rejected. agent_certificates : an agent must show a client certificate whose
    SAN is its host's name. signing_key_file : Ed25519 private key (`fabricpulse remediation keygen`) that signs the
    intents for agents. intent_valid_s : how long after it was sent an intent is valid, seconds; a failover no longer
    than `guards.intent_ttl_s` after its decision. rules : what
    to do about which alert. cause_alerts : alerts on what many NICs share. hold : the quiet time before a NIC returns.
    guards : limits. rebalance : lanes on other paths. drain : leaving hosts. maintenance : windows in which nothing is
    decided. notify : destinations of notifications.
    """

    journal: Annotated[str, WRITTEN_FILE] = "/var/lib/fabricpulse/remediation.db"
    keep_deliveries_bytes: Annotated[int, Meta(ge=1 << 20)] = 1 << 30
    lease_s: Annotated[float, Meta(ge=1, le=60)] = 10
    alertmanagers: tuple[str, ...] = ()
    alertmanager_poll_s: Annotated[float, Meta(gt=0)] = 60
    expire_s: Seconds = 300
    watchdog: str = "FabricWatchdog"
    http_client: HttpClientConfig = HttpClientConfig(timeout_s=5)
    token_file: Annotated[str, TOKEN_FILE] = ""
    access: tuple[AccessConfig, ...] = ()
    membership: Annotated[str, read_file("fabricpulse.core.fleet.membership:load_membership")] = ""
    agent_certificates: bool = False
    signing_key_file: Annotated[str, read_file("fabricpulse.remediation.signing:private_key")] = ""
    intent_valid_s: Annotated[float, Meta(ge=5, le=3600)] = 60
    rules: tuple[RuleConfig, ...] = (RuleConfig(alert="FabricNicFlapping"),)
    cause_alerts: tuple[CauseAlertConfig, ...] = (
        CauseAlertConfig("FabricFaultLocated", "leaf"),
        CauseAlertConfig("FabricNetworkDown", "network"),
    )
    hold: HoldConfig = HoldConfig()
    guards: GuardConfig = GuardConfig()
    rebalance: RebalanceConfig = RebalanceConfig()
    drain: DrainConfig = DrainConfig()
    maintenance: tuple[MaintenanceConfig, ...] = ()
    notify: tuple[NotifyConfig, ...] = ()

    def validate(self) -> None:
        if self.token_file and self.access:
            raise ValueError("token_file and access exclude each other: such a token would undo the roles")
        names = [rule.alert for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("rules: an alert is listed twice")
        causes = {entry.alert for entry in self.cause_alerts}
        if both := causes & {rule.alert for rule in self.rules if rule.action != "notify"}:
            raise ValueError(f"rules: {min(both)} is in cause_alerts, so it may only notify")
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
        return max(3 * self.alertmanager_poll_s, 30.0)

    def hold_of(self, alert: str) -> HoldConfig:
        """The hold that counts for a NIC taken out because of `alert`."""
        rule = next((rule for rule in self.rules if rule.alert == alert), None)
        return rule.hold if rule is not None and rule.hold is not None else self.hold


def is_postgres(journal: str) -> bool:
    """Whether a journal is the URL of a PostgreSQL database."""
    return journal.startswith(("postgresql://", "postgres://"))
