"""Configuration of the node agent."""

import pwd
import socket
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.file_settings import MARKER_FILE, WRITTEN_FILE, read_file
from fabricpulse.core.web.client_config import HttpClientConfig, check_credentials
from fabricpulse.core.web.urls import check_base_url, check_url
from fabricpulse.remediation.node.listeners import is_local


class NodeConfig(Section, frozen=True):
    """`fabricpulse remediation node --config FILE`.

    receiver : base URL of the receiver; of each of them, separated by commas, where several share a database: the one
    that leads answers. host : this host's name, as alerts carry it; the system's host name if empty. journal : SQLite
    file of the desired state. http_client : TLS, password or token that the receiver asks for. receiver_keys : file of
    Ed25519 public keys (PEM), one of which must have signed what the receiver says; empty: signatures are not checked.
    mesh_url : URL of /metrics of this host's mesh exporter; with it the receiver learns whether probes get through
    before a NIC goes back into service. mesh_client : TLS or password that the mesh exporter asks for. mesh_users :
    users (names or numbers) one of whom the mesh exporter runs as, besides root; empty: any. Where others log in, it
    keeps one who listens on the exporter's port from saying that NICs are healthy. pause_file : while this file
    exists, no NIC of this host is taken out; empty: no such file. job_users : users (names or numbers) whose processes
    are jobs, root's always are; empty: every user's. Where others log in, it keeps their sockets from refusing
    actions. devices : NICs that may be taken out; empty: any. min_fraction_in_service : part of this host's NICs that
    stays in service; one of two or more may always leave. max_failovers : most NICs taken out within
    failovers_window_s, whatever the receiver says. failovers_window_s : the time that max_failovers and
    max_lane_operations count over, seconds. max_lane_operations : most new paths and weights of lanes within
    failovers_window_s. scan_interval_s : how often the agent looks for new processes, seconds. report_interval_s :
    time between two reports to the receiver, seconds. call_timeout_s : longest time for one answer of a process,
    seconds. verify_timeout_s : time until the processes must show the desired state, seconds. traffic_timeout_s : how
    long the jobs' other lanes are watched after a NIC was taken out, seconds.
    """

    receiver: str = "http://localhost:9615"
    host: str = ""
    journal: Annotated[str, WRITTEN_FILE] = "/var/lib/fabricpulse/remediation-node.db"
    http_client: HttpClientConfig = HttpClientConfig()
    receiver_keys: Annotated[str, read_file("fabricpulse.remediation.signing:public_keys")] = ""
    mesh_url: str = ""
    mesh_client: HttpClientConfig = HttpClientConfig(timeout_s=2)
    mesh_users: tuple[str, ...] = ()
    pause_file: Annotated[str, MARKER_FILE] = ""
    job_users: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    min_fraction_in_service: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_failovers: Annotated[int, Meta(ge=1)] = 6
    failovers_window_s: Annotated[float, Meta(gt=0)] = 600
    max_lane_operations: Annotated[int, Meta(ge=0)] = 1000
    scan_interval_s: Annotated[float, Meta(ge=0.05, le=60)] = 0.5
    report_interval_s: Annotated[float, Meta(ge=0.2, le=60)] = 2
    call_timeout_s: Annotated[float, Meta(ge=0.1, le=30)] = 2
    verify_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 2
    traffic_timeout_s: Annotated[float, Meta(ge=0.5, le=300)] = 5

    def validate(self) -> None:
        for url in self.receivers:
            check_base_url("receiver", url)
            check_credentials("receiver", url, self.http_client)
        if self.mesh_url:
            check_url("mesh_url", self.mesh_url)
            check_credentials("mesh_url", self.mesh_url, self.mesh_client)
            if self.mesh_users and not is_local(self.mesh_url):
                raise ConfigError(
                    "mesh_users: who serves mesh_url is known of localhost, 127.0.0.1 and ::1 only"
                )

    def warnings(self) -> list[str]:
        here = [url for url in self.receivers if urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")]
        return [
            f"receiver is {url}, this host itself: agents of other hosts have no receiver there"
            for url in here
        ]

    @property
    def receivers(self) -> tuple[str, ...]:
        """Base URLs of the receivers, without the last slash."""
        return tuple(url.strip().rstrip("/") for url in self.receiver.split(","))

    @property
    def host_name(self) -> str:
        """The host's name in the fleet."""
        return self.host or socket.gethostname()


def users_of(setting: str, names: Iterable[str]) -> frozenset[int]:
    """User ids of names or numbers of a setting. Raises ConfigError for a user that does not exist."""
    found = set()
    for name in names:
        try:
            found.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise ConfigError(f"{setting}: there is no user {name!r}") from error
    return frozenset(found)
