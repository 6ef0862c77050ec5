"""Configuration of the node agent."""

import socket
from typing import Annotated

from msgspec import Meta

from fabricpulse.core.config import Section


class NodeConfig(Section, frozen=True):
    """`fabricpulse remediation node --config FILE`.

    receiver : base URL of the receiver. host : this host's name, as alerts carry it; the system's host name if empty.
    journal : SQLite file of what was asked for and applied. mesh_url : /metrics of this host's mesh exporter; with it
    the receiver hears whether probes get through before a NIC goes back into service. ca_file, cert_file, key_file :
    for an https receiver.
    """

    receiver: str = "http://localhost:9615"
    host: str = ""
    journal: str = "/var/lib/fabricpulse/remediation-node.db"
    # File with the bearer token that the receiver asks for.
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    mesh_url: str = ""
    # How often it looks for jobs that have come or gone.
    scan_interval_s: Annotated[float, Meta(ge=0.05, le=60)] = 0.5
    # How often it reports to the receiver when nothing has happened.
    report_interval_s: Annotated[float, Meta(ge=0.2, le=60)] = 2
    # How long a job may take to answer on its control socket.
    call_timeout_s: Annotated[float, Meta(ge=0.1, le=30)] = 2
    # How long a job may take until its telemetry shows what it has promised.
    verify_timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 2

    def validate(self) -> None:
        if not self.receiver.startswith(("http://", "https://")):
            raise ValueError(f"receiver: {self.receiver!r} is not an http(s) URL")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are needed together")

    @property
    def host_name(self) -> str:
        """The host's name in the fleet."""
        return self.host or socket.gethostname()
