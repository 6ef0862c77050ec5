"""Configuration of the audit agent."""

import os
import socket
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.file_settings import MAKE_SECRET, TOKEN_READER, WRITTEN_FILE, read_file
from fabricpulse.core.fleet.daemons import DAEMONS

_ADVICE = f"{MAKE_SECRET}; without audits leave out this file: the agent is off until it is enabled"


class NodeConfig(Section, frozen=True):
    """`fabricpulse audit node --config FILE`.

    token_file : file with the bearer token that requests for an audit must carry, the same on all hosts; read again
    when it changes. The agent does not start without. host : this host's name in the fleet; the system's host name if
    empty. state : folder in which reports are kept. keep_runs : how many reports are kept. nccl_gid_index : what jobs
    set NCCL_IB_GID_INDEX to, -1 if they do not. transfers : whether this host takes part in tests of bandwidth and
    loss; never on a NIC that carries a job. transfer_mbit_s : most that one NIC of this host is asked to send, megabits
    per second. mesh_url : of the mesh exporter of this host, whose delays are compared with those of the NCCL plugin's
    ring; "" for none. torch_python : Python interpreter that has torch, absolute
    (/opt/torch/bin/python3), for an all-reduce by NCCL itself on hosts with GPUs; the agent's own if empty.
    """

    token_file: Annotated[str, read_file(TOKEN_READER, advice=_ADVICE)] = "/etc/fabricpulse/audit.token"  # noqa: S105 - a path
    host: str = ""
    state: Annotated[str, WRITTEN_FILE] = "/var/lib/fabricpulse/audit"
    keep_runs: Annotated[int, Meta(ge=1, le=10_000)] = 30
    nccl_gid_index: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    transfers: bool = True
    transfer_mbit_s: Annotated[int, Meta(ge=1, le=10_000_000)] = 400_000
    torch_python: str = ""
    mesh_url: str = f"http://localhost:{DAEMONS['mesh'].port}"

    def validate(self) -> None:
        if not self.token_file:
            raise ValueError("token_file is needed: an audit shows how the host is set up")
        # Whose PATH would it be, and what could be put there? It runs with the agent's rights.
        if self.torch_python and not self.torch_python.startswith("/"):
            raise ValueError(
                "torch_python must be an absolute path, such as /opt/torch/bin/python3, as no PATH is searched: got "
                f"{self.torch_python}"
            )

    def warnings(self) -> list[str]:
        """An interpreter that is not here, as on a host without GPUs of a fleet that shares its settings."""
        if not self.torch_python or (
            Path(self.torch_python).is_file() and os.access(self.torch_python, os.X_OK)
        ):
            return []
        return [
            f"torch_python: {self.torch_python} is no program here: NCCL itself is not tested on this host"
        ]

    @property
    def host_name(self) -> str:
        """The host's name in the fleet."""
        return self.host or socket.gethostname()
