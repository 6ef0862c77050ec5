"""Messages between receiver and node agent, JSON over HTTP.

The agent fetches (`GET /api/v1/agents/<host>/desired?version=…&wait=…`, a long poll) and reports
(`POST /api/v1/agents/<host>/report`); a GPU host has no control port. The answer is the whole desired state of the
host, not a list of commands: after a partition the newest state counts, not the queue that has gathered. It comes in an
`Envelope`, signed where the receiver has a key, names the host that it is for, and is void after `not_after`: neither
another host's answer nor one that was recorded can be played to an agent.

Every number and every text has a bound, which decoding checks: one forged report must do no harm, neither now nor when
it is read from a journal again.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Traffic = Literal["", "moved", "idle", "stalled", "partly_stalled"]
STALLED: tuple[Traffic, ...] = ("stalled", "partly_stalled")
Health = Literal["healthy", "unhealthy"]

# Generations are milliseconds since 1970. What an agent claims to hold stays far below what SQLite, JSON and the
# control sockets carry: a receiver that takes over the greatest one can still decide for ever.
MAX_GENERATION = 2**53 - 1
MAX_HELD_GENERATION = 2**52
MAX_EPOCH = 2**53 - 1
MAX_NICS = 256
# Sending lanes of a host that are reported, and that are changed at a time.
MAX_LANES = 1024
MAX_LANE_ORDERS = 256
MAX_WORKLOADS = 64
MAX_USERS = 64
# Characters of the name of a job.
MAX_NAME = 128
MAX_REPORT_BYTES = 1 << 20
MAX_DESIRED_BYTES = 1 << 20
# What the receiver answers to an agent whose host is not in its membership; agents know it by this text.
UNKNOWN_HOST = "membership does not have this host"

Device = Annotated[str, Meta(min_length=1, max_length=64)]
ProcessName = Annotated[str, Meta(pattern=r"^[1-9]\d{0,9}(-[0-9a-f]{1,16})?$")]
Workload = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
ConnectionId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
_Rate = Annotated[float, Meta(ge=0, le=1e15)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
OpId = Annotated[str, Meta(min_length=1, max_length=400)]


class Envelope(msgspec.Struct, frozen=True):
    """A payload as a string, so that both ends sign and verify the same bytes. key_id, signature : Ed25519 (base64), ""
    from a receiver that does not sign."""

    payload: Annotated[str, Meta(max_length=MAX_DESIRED_BYTES)]
    key_id: Annotated[str, Meta(max_length=64)] = ""
    signature: Annotated[str, Meta(max_length=128)] = ""


class DesiredNic(msgspec.Struct, frozen=True):
    """One NIC. op_id goes to the plugin as it is; an older generation than the last one applied is refused. not_after :
    as of DesiredState, for a decision that is void before the whole is; 0 for none."""

    device: Device
    desired: Literal["in_service", "avoid"]
    generation: Annotated[int, Meta(ge=0, le=MAX_GENERATION)]
    op_id: OpId
    dry_run: bool = False
    not_after: float = 0.0


def end_of(nic: DesiredNic, not_after: float) -> float:
    """Until when it may be carried out, seconds since 1970. not_after : of the whole desired state."""
    return min(nic.not_after or not_after, not_after)


class LaneOrder(msgspec.Struct, frozen=True):
    """One operation on a lane of a job, by the process' control socket (docs/control-protocol.md).

    process : name of the socket. value : of `lane.repath` the source port, of `lane.weight` the weight; None lets the
    plugin choose. Carried out once: to a repetition a plugin answers `duplicate`.
    """

    process: ProcessName
    connection: ConnectionId
    lane: Annotated[int, Meta(ge=0, le=4095)]
    device: Device
    operation: Literal["lane.repath", "lane.weight"]
    value: Annotated[int, Meta(ge=0, le=65535)] | None
    generation: Annotated[int, Meta(ge=0, le=MAX_GENERATION)]
    op_id: Annotated[str, Meta(min_length=1, max_length=128)]


class DesiredState(msgspec.Struct, frozen=True):
    """All NICs of `host` about which anything was ever decided. epoch : grows with each start of the receiver; agents
    refuse an older one than they have seen. version : changes when nics or epoch do. not_after : seconds since 1970;
    what has not been accepted by then must not be. lanes : operations without a result so far. report_lanes : whether
    the receiver needs what the jobs' lanes do."""

    host: str
    epoch: Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
    version: str
    nics: Annotated[list[DesiredNic], Meta(max_length=MAX_NICS)]
    not_after: float
    lanes: Annotated[list[LaneOrder], Meta(max_length=MAX_LANE_ORDERS)] = []
    report_lanes: bool = False


class Result(msgspec.Struct, frozen=True):
    """The result of an operation on this host.

    outcome : `applied` when every process that has the plugin shows the desired state in its status; `refused` when a
    process, or the agent's own guard, said no; `failed` when a process did not follow in time. processes : how many
    followed. traffic : what the jobs' other lanes did afterwards, "" while not known: `moved` bytes, were `idle` (no
    request under way), or `stalled` (requests under way, no byte moved); `partly_stalled` where other users' did not.
    """

    op_id: OpId
    outcome: Literal["applied", "refused", "failed"]
    processes: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    message: Annotated[str, Meta(max_length=2000)] = ""
    traffic: Traffic = ""


class HeldNic(msgspec.Struct, frozen=True):
    """The newest desired state of a NIC that the agent has."""

    desired: Literal["in_service", "avoid"]
    generation: Annotated[int, Meta(ge=0, le=MAX_HELD_GENERATION)]


class LaneSample(msgspec.Struct, frozen=True, array_like=True):
    """What one sending lane of a job did since the last report.

    goodput : bytes per second that the peer has acknowledged. capacity : bytes per second that the lane delivers while
    it has something to send, as the plugin measures it, 0 if it has not. delay_s : mean delay of its chunks, -1 without
    any. troubles : packets sent again or marked by ECN. repaths : cumulative, whoever ordered them. nic_speed : bytes
    per second, 0 if not known. busy : part of the time in which something of it was under way, -1 if not known. user :
    who owns the process (uid), -1 if not known.
    """

    process: ProcessName
    connection: ConnectionId
    lane: Annotated[int, Meta(ge=0, le=4095)]
    workload: Annotated[str, Meta(max_length=MAX_NAME)]
    device: Device
    entropy: Annotated[int, Meta(ge=0, le=2**32)]
    weight: Annotated[int, Meta(ge=0, le=2**32)]
    goodput: _Rate
    capacity: _Rate
    delay_s: Annotated[float, Meta(ge=-1, le=1e6)]
    troubles: _Count
    repaths: _Count
    nic_speed: _Rate = 0.0
    busy: Annotated[float, Meta(ge=-1, le=1)] = -1.0
    user: Annotated[int, Meta(ge=-1, le=2**32)] = -1


class Report(msgspec.Struct, frozen=True):
    """Sent regularly.

    devices : NICs that jobs use -> usable. connected : NICs -> whether the mesh's probes get through, where it is
    asked. health : NICs that were observed since the last report. held : the agent's journal. lanes : if asked for.
    workloads : jobs that run here, by what their processes say. users : who own these processes (uid); none
    where that is not known of each, or where they are more than these.
    carried_bytes : that jobs have carried over the NICs of this host since the agent started, both directions, as
    counted at carried_at_s (seconds of its monotonic clock).
    """

    processes: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    devices: Annotated[dict[Device, bool], Meta(max_length=MAX_NICS)] = {}
    connected: Annotated[dict[Device, bool], Meta(max_length=MAX_NICS)] = {}
    health: Annotated[dict[Device, Health], Meta(max_length=MAX_NICS)] = {}
    held: Annotated[dict[Device, HeldNic], Meta(max_length=MAX_NICS)] = {}
    results: Annotated[list[Result], Meta(max_length=MAX_NICS)] = []
    lanes: Annotated[list[LaneSample], Meta(max_length=MAX_LANES)] = []
    workloads: Annotated[list[Workload], Meta(max_length=MAX_WORKLOADS)] = []
    users: Annotated[list[Annotated[int, Meta(ge=0, le=2**32)]], Meta(max_length=MAX_USERS)] = []
    carried_bytes: Annotated[float, Meta(ge=0, le=1e24)] = 0.0
    carried_at_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
