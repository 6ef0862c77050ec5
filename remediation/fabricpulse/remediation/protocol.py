"""Messages between receiver and node agent, JSON over HTTP.

The agent fetches (`GET /api/v1/agents/<host>/desired?version=…&wait=…`, a long poll) and reports
(`POST /api/v1/agents/<host>/report`); a GPU host has no control port. The answer is the whole desired state of the
host, not a list of commands: after a partition the newest state counts, not the queue that has gathered.
"""

from typing import Literal

import msgspec

Traffic = Literal["", "moved", "idle", "stalled"]


class DesiredNic(msgspec.Struct, frozen=True):
    """One NIC. op_id goes to the plugin as it is; an older generation than the last one applied is refused."""

    device: str
    desired: Literal["in_service", "avoid"]
    generation: int
    op_id: str
    dry_run: bool = False


class DesiredState(msgspec.Struct, frozen=True):
    """All NICs about which anything was ever decided. epoch : grows with each start of the receiver; agents refuse an
    older one than they have seen. version : changes when anything else does."""

    epoch: int
    version: str
    nics: list[DesiredNic]


class Result(msgspec.Struct, frozen=True):
    """The result of an operation on this host.

    outcome : `applied` when every process that has the plugin shows the desired state in its status; `refused` when a
    process, or the agent's own guard, said no; `failed` when a process did not follow in time. processes : how many
    followed. traffic : what the jobs' other lanes did afterwards, "" while not known: `moved` bytes, were `idle` (no
    request under way), or `stalled` (requests under way, no byte moved).
    """

    op_id: str
    outcome: Literal["applied", "refused", "failed"]
    processes: int = 0
    message: str = ""
    traffic: Traffic = ""


class HeldNic(msgspec.Struct, frozen=True):
    """What the agent was last told of a NIC."""

    desired: Literal["in_service", "avoid"]
    generation: int


class Report(msgspec.Struct, frozen=True):
    """Sent regularly. devices : NICs that jobs use -> usable; connected : NICs -> whether the mesh's probes get
    through, where it is asked; held : the agent's journal."""

    processes: int = 0
    devices: dict[str, bool] = {}
    connected: dict[str, bool] = {}
    held: dict[str, HeldNic] = {}
    results: list[Result] = []
