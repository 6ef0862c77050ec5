"""What receiver and node agent say to each other, as JSON over HTTP.

The agent asks (`GET /api/v1/agents/<host>/desired?version=…&wait=…`, a long poll) and reports
(`POST /api/v1/agents/<host>/report`); a GPU host listens for nobody. The answer is the whole desired state of the
host, not a list of commands: after a partition the newest state counts, not the queue that has gathered.
"""

from typing import Literal

import msgspec


class DesiredNic(msgspec.Struct, frozen=True):
    """One NIC. op_id goes to the plugin as it is; an older generation than the last one applied is refused."""

    device: str
    desired: Literal["in_service", "avoid"]
    generation: int
    op_id: str
    dry_run: bool = False


class DesiredState(msgspec.Struct, frozen=True):
    """All NICs about which anything was ever decided. epoch : starts of the receiver; agents refuse an older one."""

    epoch: int
    version: str
    nics: list[DesiredNic]


class Result(msgspec.Struct, frozen=True):
    """What became of an operation on this host.

    verified : every process that has the plugin shows the desired state in its status. processes : how many there are.
    """

    op_id: str
    outcome: Literal["applied", "refused", "failed"]
    verified: bool = False
    processes: int = 0
    message: str = ""


class Report(msgspec.Struct, frozen=True):
    """A sign of life. devices : NICs that jobs use -> usable; connected : the mesh's word, where it is asked."""

    processes: int = 0
    devices: dict[str, bool] = {}
    connected: dict[str, bool] = {}
    results: list[Result] = []
