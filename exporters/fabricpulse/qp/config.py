"""Configuration of the qp exporter."""

import socket
from typing import Annotated

import msgspec

from fabricpulse.core.alerting.config import Alerting, Positive
from fabricpulse.core.config import Section
from fabricpulse.core.metrics.exposition import DEFAULT_SAMPLE_CAP
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url


class Worst(Section, frozen=True):
    """The few that are shown by name.

    count : number of queue pairs that are shown at most, and of waiting requests beside the four oldest of each
    process, without which its rank would seem to wait for no peer; 0 for none at all. owd_s : mean one-way
    delay above which a queue pair is bad, seconds. waiting_s : age above which a waiting request is old, seconds.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 5
    owd_s: Positive = 0.005
    waiting_s: Positive = 1.0


class StallAlerting(Alerting, frozen=True):
    """A collective that does not end is pushed to Alertmanager, as FabricCollectiveStalled says some scrapes later.

    alertmanagers : base URLs of Alertmanagers; each gets every alert; none: nothing is pushed, no peer is asked.
    labels : labels that the rule's alert has beside its own, so that both are one alert: the cluster label, external
    labels of Prometheus. stalled_s : a collective is stalled when for so long, in seconds, nothing has moved on a
    connection with an unfinished request, the rule's knob stalledSeconds, or, where only NCCL's profiler says how far a
    rank has come, no collective of it has ended (fabricpulse_rank_stalled_seconds). resolve_hold_s : how long after the
    collective has resumed the alert is resolved, seconds; a little more than scrape interval and evaluation interval of
    Prometheus together; at most three times resend_s. peer_url : URL of the qp exporter of another host, which is
    asked what a rank there waits for; {host} is what the plugin calls the host. peer_client : TLS, client certificate,
    password or token for that. A password or token is for https alone: names of peers come from the jobs.
    """

    OWN_LABELS = ("alertname", "severity", "workload", "head", "rank", "peer", "peer_rank")

    stalled_s: Annotated[float, msgspec.Meta(ge=1)] = 5.0
    peer_url: str = "http://{host}:9612"
    peer_client: HttpClientConfig = HttpClientConfig(timeout_s=1.0)

    def validate(self) -> None:
        super().validate()
        if "{host}" not in self.peer_url:
            raise ValueError("peer_url has no {host} in it")
        parts = check_base_url("peer_url", self.peer_url.replace("{host}", "host"))
        secret = self.peer_client.basic_auth or self.peer_client.token_file or "@" in parts.netloc
        if secret and parts.scheme != "https":
            raise ValueError("peer_url must begin with https:// where peer_client has a password or token")


class QpConfig(Section, frozen=True):
    """The whole file.

    interval_s : time between two polls of the telemetry besides those of scrapes, seconds. cleanup_after_s : how long
    the files of a process that is gone are kept, seconds. forget_after_s : how long the counters of a job are kept
    after its last process on this host, seconds. delay_window_s : over how long the quantiles of a flow's delays are
    taken (fabricpulse_qp_recent_owd_seconds), seconds; the rules' knob rateWindow. host : this host's name as peers
    have it in their telemetry; default: the system's host name. sample_cap : largest number of samples in one
    exposition.
    """

    interval_s: Positive = 1.0
    cleanup_after_s: Positive = 60.0
    forget_after_s: Positive = 300.0
    delay_window_s: Positive = 120.0
    worst: Worst = Worst()
    alerting: StallAlerting = StallAlerting()
    host: str = ""
    sample_cap: Annotated[int, msgspec.Meta(ge=100)] = DEFAULT_SAMPLE_CAP

    @property
    def host_name(self) -> str:
        """What this host is called."""
        return self.host or socket.gethostname()
