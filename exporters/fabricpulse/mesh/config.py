"""Configuration of `fabricpulse mesh`."""

import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from fabricpulse.core.alerting.config import Alerting
from fabricpulse.core.config import Section
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.file_settings import MAKE_SECRET, MARKER_FILE, WRITTEN_FILE, read_file
from fabricpulse.core.fleet.membership import Membership
from fabricpulse.core.metrics.exposition import DEFAULT_SAMPLE_CAP
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url, check_url
from fabricpulse.mesh.recent_disconnects import KEPT_S, MOST

Positive = Annotated[float, Meta(gt=0)]
_SHORTEST_KEY = 16
MOST_EVENTS = 100_000
PerEdge = Literal["auto", "all", "worst", "none"]


NO_MEMBERSHIP = "no membership is configured; set membership.file, membership.url or membership.dns"


class MembershipSource(Section, frozen=True):
    """Where the members of the fleet come from: one of file, url, dns.

    file : membership file, read again when it changes. Replace it by a rename: a file that is read while it is being
    written, cut between two hosts, is a valid one of fewer hosts. url : where the clocksync coordinator serves the
    same document, with http_client where it asks for TLS, a password or a token. dns : for each network, a name whose
    addresses are the members' addresses on it; hosts are named by reverse look-up. devices : with dns, the device of
    each network on every host. refresh_s : how often the membership is read again, seconds. max_shrink : a membership
    that loses more than this share of the hosts at once is held back and logged until it has been so for shrink_hold_s
    or SIGHUP confirms it; 1 holds nothing back. shrink_hold_s : how long such a membership is held back, seconds.
    """

    file: Annotated[str, read_file("fabricpulse.core.fleet.membership:load_membership")] = ""
    url: str = ""
    dns: dict[str, str] = {}
    devices: dict[str, str] = {}
    refresh_s: Positive = 2.0
    max_shrink: Annotated[float, Meta(ge=0, le=1)] = 0.5
    shrink_hold_s: Annotated[float, Meta(ge=0)] = 300.0
    http_client: HttpClientConfig = HttpClientConfig()

    def validate(self) -> None:
        if sum(map(bool, (self.file, self.url, self.dns))) > 1:
            raise ValueError("give one of file, url and dns")
        if self.url:
            check_url("url", self.url)
        if set(self.dns) != set(self.devices):
            raise ValueError("dns and devices must name the same networks")


class Probe(Section, frozen=True):
    """How the fabric is probed; alike on all hosts of a fleet.

    down_after_s : silence after which a NIC or an edge is down, seconds; by default a push of that is in Alertmanager
    within a second of the fault. grace_s : how long a NIC that was never
    connected stays unknown after the start, seconds. peers : number of NICs that each NIC exchanges probes with.
    cross_peers : how many of a NIC's peers are on other networks. trains_per_s : trains of three packets to each
    peer. paths : number of source ports that the sweep cycles through. sweep : every sweep-th train leaves the main
    path; 0 switches the sweep off, 1 is refused. size_probes : now and then a packet of the size of the
    device's MTU, or of 1,500, 2,200 or 4,200 bytes, is sent on each source port, never fragmented, so that an MTU black
    hole is found. port : UDP port, and the first of the source ports. dscp : differentiated services
    code point of the probes, 0 to 63. bind_device : send and receive only through the NIC's own device, whatever the
    routes say. timestamps : whose are used: "software", the kernel's; "auto", those of NICs that somebody, ptp4l say,
    has set up to stamp packets; "hardware", those of all NICs that can, which are set up to stamp all packets unless
    somebody has set them up otherwise. Where the clock of a NIC cannot be followed the kernel's are used. To be alike
    on all hosts of a fleet: stamps of a NIC and of a kernel differ by microseconds. realtime : run the
    probe engine's thread at the lowest real-time priority, where that is permitted. receive_packets_per_s : packets
    that are taken from one peer, at most. trace_s : pause between two traces of a NIC, seconds; each asks the switches
    on the path of one source port to one peer, with eight packets of few hops, who they are; 0 = the paths stay
    unknown. retrace_s : how long a traced path counts as known, seconds. queue_pairs : the paths of the queue pairs of
    this host's jobs are traced, too, at the same pace: by datagrams from their source ports to port 4791 that end at
    the last switch.
    """

    down_after_s: Annotated[float, Meta(ge=0.2, le=60)] = 0.85
    grace_s: Positive = 10.0
    peers: Annotated[int, Meta(ge=1, le=64)] = 10
    cross_peers: Annotated[int, Meta(ge=0, le=64)] = 2
    trains_per_s: Annotated[float, Meta(ge=1, le=1000)] = 50.0
    paths: Annotated[int, Meta(ge=1, le=16)] = 8
    sweep: Annotated[int, Meta(ge=0, le=255)] = 10
    size_probes: bool = True
    port: Annotated[int, Meta(ge=1, le=65_000)] = 9620
    dscp: Annotated[int, Meta(ge=0, le=63)] = 0
    bind_device: bool = True
    timestamps: Literal["software", "auto", "hardware"] = "software"
    realtime: bool = True
    receive_packets_per_s: Positive = 2000.0
    trace_s: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    retrace_s: Annotated[float, Meta(ge=10)] = 600.0
    queue_pairs: bool = True

    def validate(self) -> None:
        if self.cross_peers > self.peers:
            raise ValueError("cross_peers must not be above peers")
        if self.down_after_s < 6 / self.trains_per_s:
            raise ValueError("down_after_s must be at least six train periods (6 / trains_per_s)")
        if self.sweep == 1:
            raise ValueError("sweep must be 0 or at least 2: with 1 no packet takes the main path")


class Latency(Section, frozen=True):
    """When the delay of an edge or of one of its paths is elevated: medians of a second stay above the limit for some
    seconds.

    window_s : length of the time that quantiles cover, seconds. ceiling_s : delay above which an edge is elevated in
    any case, seconds. factor : the delay is elevated above this many times the edge's learned baseline, unless
    slack_s, or four times what the medians stray by themselves, is farther above the baseline. slack_s : least
    distance above the baseline at which the delay is elevated, seconds.
    """

    window_s: Positive = 15.0
    ceiling_s: Positive = 0.01
    factor: Annotated[float, Meta(ge=1)] = 1.25
    slack_s: Annotated[float, Meta(ge=0)] = 5e-6


class NicAlerting(Alerting, frozen=True):
    """Where a lost NIC, and one that flaps, is pushed to at once.

    labels : labels of the rule's alert, so that both are one alert: instance (default: this host's name), job
    (default: fabricpulse-mesh), external labels of Prometheus if it has some, and what the rule was rendered with.
    alertname, device and network are set by the exporter. resolve_hold_s : how long after the NIC is back the alert is
    resolved, seconds; a little more than scrape interval and evaluation interval of Prometheus together, so that
    its copy of the alert has ended by then; 0 where Prometheus has no such rule. At most three times resend_s, or the
    alert would expire before. flap_threshold : a NIC flaps when it was disconnected so often within flap_window_s; 0 =
    that alert is not pushed. flap_window_s : the rule's flapWindow, seconds. flap_keep_firing_s : how long the alert
    stays after that, the rule's flapKeepFiringFor, seconds. flap_severity : the severity of FabricNicFlapping. Where
    these differ from what the rule was rendered with, there are two alerts, or one where the rule has none.
    """

    OWN_LABELS = ("alertname", "device", "network", "leaf", "severity")

    flap_threshold: Annotated[int, Meta(ge=0, le=MOST)] = 3
    flap_window_s: Annotated[float, Meta(gt=0, le=KEPT_S)] = 300.0
    flap_keep_firing_s: Annotated[float, Meta(ge=0)] = 300.0
    flap_severity: Annotated[str, Meta(min_length=1)] = "warning"


class FrontEnd(Section, frozen=True):
    """How this host's front-end network is watched: by TCP connections to the servers on it.

    targets : servers as host:port, beside the Alertmanagers and the coordinator that are configured; Prometheus is a
    good one. interval_s : time between two rounds of checks, and the time that a server has to answer, seconds. A
    round asks one server, and all only when that one does not answer; three rounds without any answer are a
    disconnect. A refused connection is an answer.
    """

    targets: tuple[str, ...] = ()
    interval_s: Positive = 2.0

    def validate(self) -> None:
        for target in self.targets:
            try:
                parts = urlsplit(f"//{target}")
                good = bool(parts.hostname and parts.port) and target == parts.netloc
            except ValueError:  # a port that is no number, a bracket without its other half
                good = False
            if not good:
                raise ValueError(f"target {target!r} is not host:port, such as prometheus:9090")


class Evidence(Section, frozen=True):
    """Where the evidence of this host's flows goes, so that a fault is located to a component of the fabric.

    url : base URL of the clocksync coordinator; default: where the membership comes from, with membership.url.
    http_client : TLS, password or token that it asks for. delays_s : how often the least delay of each edge is reported
    too, seconds: the coordinator learns the fabric's leaves and pods from it; 0 = never. A tenth of the coordinator's
    delays_keep_s. temporary_peers : further peers that the coordinator may assign to a NIC at a time, for some minutes,
    to find out below which leaf the NIC is; 0 = none. They are probed on the UDP port 16 above probe.port. lldp_file :
    file that `lldpctl -f json` is written to each minute or two, so that the leaf of each NIC has the name that it
    announces; it counts for five minutes. Default: none is read.
    """

    url: str = ""
    http_client: HttpClientConfig = HttpClientConfig(timeout_s=2.0)
    delays_s: Annotated[float, Meta(ge=0, le=3600)] = 60.0
    temporary_peers: Annotated[int, Meta(ge=0, le=4)] = 4
    lldp_file: Annotated[str, MARKER_FILE] = ""

    def validate(self) -> None:
        if self.url:
            check_base_url("url", self.url)


class EventLog(Section, frozen=True):
    """Events as JSON lines.

    path : file of the event log, JSON lines; empty = none is written. max_bytes : size at which the file is rotated,
    bytes; one older file is kept. keep : number of events served by /api/v1/events.
    """

    path: Annotated[str, WRITTEN_FILE] = ""
    max_bytes: Annotated[int, Meta(ge=4096)] = 8 << 20
    keep: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 4096


class MeshConfig(Section, frozen=True):
    """The whole file, read once: a changed setting needs a restart, and SIGHUP says which.

    What key_file and membership point to is followed while it runs.

    host : this host's name in the fleet, short or fully qualified; default: the system's host name. key_file : fleet
    keys, one a line; the first signs, all are accepted, so that keys can be rotated. Without a file anybody who reaches
    the port can join.
    per_edge : series of single edges: all (20 an edge, 25 while it suffers), worst (only edges that are down, slow,
    or have a source port that is down, lossy or slow, of those of a NIC that are just slow three, and counts of packets
    only of those that lose some; of others their usual delay), none, auto (all while the membership has at most
    64 hosts, worst above: all edges of a larger fleet are too many for the rules); what a NIC's edges sum up to is
    always there.
    sample_cap : samples in one exposition, at most.
    """

    host: str = ""
    membership: MembershipSource = MembershipSource()
    key_file: Annotated[str, read_file("fabricpulse.mesh.config:load_keys", advice=MAKE_SECRET)] = ""
    probe: Probe = Probe()
    latency: Latency = Latency()
    alerting: NicAlerting = NicAlerting()
    front_end: FrontEnd = FrontEnd()
    evidence: Evidence = Evidence()
    event_log: EventLog = EventLog()
    per_edge: PerEdge = "auto"
    sample_cap: Annotated[int, Meta(ge=1)] = DEFAULT_SAMPLE_CAP

    def validate(self) -> None:
        source = self.membership
        if not (source.file or source.url or source.dns):
            raise ValueError(NO_MEMBERSHIP)

    def warnings(self) -> list[str]:
        if self.evidence.lldp_file and not (self.evidence.url or self.membership.url):
            return [
                "evidence.lldp_file is not read: without evidence.url or membership.url there is no coordinator to tell"
            ]
        return []

    def file_warnings(self, contents: Mapping[str, object]) -> list[str]:
        members = contents.get("membership.file")
        if not isinstance(members, Membership) or members.host(self.host_name) is not None:
            return []
        known = "host" if self.host else "no host is configured, and this machine's name"
        return [
            f"{known} {self.host_name!r} is not in the membership {self.membership.file}: a mesh exporter of this name "
            "probes nothing"
        ]

    @property
    def host_name(self) -> str:
        """The configured name, or the system's."""
        return self.host or socket.gethostname()


def load_keys(path: Path) -> list[bytes]:
    """The keys of a key file as 16-byte keys, in its order. Empty lines and lines that begin with # do not count.

    Raises ConfigError for a file that cannot be read or has no key, or a key shorter than 16 characters.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot read key file {path}: {error.strerror}; every host of the fleet needs the same one, "
            "`openssl rand -hex 32` writes a key"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"key file {path} is not text: {error.reason}; keys are lines of text") from error
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if len(text) < _SHORTEST_KEY:
            raise ConfigError(
                f"{path}:{number}: a key needs {_SHORTEST_KEY} characters or more; try `openssl rand -hex 32`"
            )
        keys.append(hashlib.sha256(text.encode()).digest()[:16])
    if not keys:
        raise ConfigError(f"key file {path} has no key; write one with `openssl rand -hex 32`")
    if len(keys) > 4:
        raise ConfigError(
            f"key file {path} has {len(keys)} keys; a rotation needs two, more than four are refused"
        )
    return keys
