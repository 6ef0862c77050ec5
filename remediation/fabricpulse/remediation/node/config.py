"""Configuration of the node agent."""

import socket
from typing import Annotated

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.web.urls import check_base_url, check_url


class NodeConfig(Section, frozen=True):
    """`fabricpulse remediation node --config FILE`.

    receiver : base URL of the receiver. host : this host's name, as alerts carry it; the system's host name if empty.
    journal : SQLite file of what was asked for. token_file : bearer token to show; read again when it changes. ca_file,
    cert_file, key_file : for an https receiver. mesh_url : /metrics of this host's mesh exporter; with it the receiver
    hears whether probes get through before a NIC goes back into service. pause_file : while this file exists, no NIC of
    this host is taken out; empty: not looked at. scan_interval_s : how often the agent looks for new processes.
    report_interval_s : sign of life to the receiver. call_timeout_s : for one answer of a process. verify_timeout_s :
    until the processes must show the desired state. traffic_timeout_s : how long the jobs' other lanes are watched
    after a NIC was taken out.
    """

    receiver: str = "http://localhost:9615"
    host: str = ""
    journal: str = "/var/lib/fabricpulse/remediation-node.db"
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    mesh_url: str = ""
    pause_file: str = ""
    scan_interval_s: Annotated[float, Meta(ge=0.05, le=60)] = 0.5
    report_interval_s: Annotated[float, Meta(ge=0.2, le=60)] = 2
    call_timeout_s: Annotated[float, Meta(ge=0.1, le=30)] = 2
    verify_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 2
    traffic_timeout_s: Annotated[float, Meta(ge=0.5, le=300)] = 5

    def validate(self) -> None:
        check_base_url("receiver", self.receiver)
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are needed together")
        if self.mesh_url:
            check_url("mesh_url", self.mesh_url)

    @property
    def host_name(self) -> str:
        """The host's name in the fleet."""
        return self.host or socket.gethostname()
