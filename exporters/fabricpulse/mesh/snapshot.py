"""State of the engine at one moment: mirror of exporters/probe_engine/snapshot.h."""

import enum
import struct
from typing import NamedTuple

from fabricpulse.mesh import _probe_engine as native

_OWD = len(native.OWD_BUCKETS_NS) + 1
_LATENESS = len(native.LATENESS_BUCKETS_NS) + 1
_OUTAGE = len(native.OUTAGE_BUCKETS_NS) + 1

DROP_REASONS = ("malformed", "wrong_fleet", "bad_mac", "replay", "not_a_member", "unconfirmed", "rate")

HEADER = struct.Struct(f"<4I2Q2q3Qq{_LATENESS}Qq")
NIC = struct.Struct(f"<4BI2Q2q{_OUTAGE}Qq{_OWD}Qq{len(DROP_REASONS)}Q3Qqi2I4x")
EDGE = struct.Struct("<2I4BI4Q2qQq2I7qQ3q2I" + "QQq4BI" * native.MAX_PATHS)
if (HEADER.size, NIC.size, EDGE.size) != native.RECORD_SIZES:
    raise ImportError("the native probe engine is of another build; run `make build`")
UNKNOWN_OWD = -(1 << 63)
CUT, MAYBE_CUT = 1, 2


class HealthState(enum.IntEnum):
    """enum HealthState of health.h."""

    UNKNOWN = 0
    UP = 1
    DOWN = 2


class Cause(enum.IntEnum):
    """enum NicCause of nic_health.h: why a NIC is disconnected or unknown."""

    NONE = 0
    SILENT = 1
    LINK = 2
    ONE_WAY = 3
    NEVER_SEEN = 4
    PEER_GONE = 5
    NO_SOCKET = 6
    ONE_PEER_ONLY = 7


class EventKind(enum.IntEnum):
    """enum EventKind of event_queue.h."""

    NIC_DISCONNECTED = 0
    NIC_CONNECTED = 1
    EDGE_DOWN = 2
    EDGE_UP = 3
    STALL = 4
    CLOCK_STEP = 5


class Distribution(NamedTuple):
    """counts : per bucket, the last for +Inf. sum_ns : of all observations."""

    counts: tuple[int, ...]
    sum_ns: int


class NicState(NamedTuple):
    """One NIC; fields as in struct NicRecord."""

    state: int
    cause: int
    open: bool
    link: bool
    open_errno: int
    disconnects: int
    reconnects: int
    changed_host_ns: int
    down_ns: int
    outages: Distribution
    owd: Distribution
    drops: tuple[int, ...]
    overflows: int
    stamps_lost: int
    phc_lost: int
    phc_error_ns: int
    phc: int
    phc_errno: int
    phc_good: int


class PathState(NamedTuple):
    """One source port, peer -> us; owd_ns is None while unknown. latency : HealthState, down = elevated. lossy : 1
    if it loses more than a healthy path. cut : CUT if it drops packets above some size, MAYBE_CUT if it may do so.
    loss_ppm : of the last minute.
    """

    expected: int
    lost: int
    owd_ns: int | None
    state: int
    latency: int
    lossy: int
    cut: int
    loss_ppm: int


PATH_FIELDS = len(PathState._fields)


class EdgeState(NamedTuple):
    """One edge; fields as in struct EdgeRecord. Ages are -1 for never; the quantiles hold if window_count > 0."""

    slot: int
    nic: int
    state: int
    inbound: int
    outbound: int
    latency: int
    paths: int
    sent: int
    send_errors: int
    received: int
    lost: int
    received_age_ns: int
    received_by_peer_age_ns: int
    owd_count: int
    owd_sum_ns: int
    window_count: int
    peer_epoch: int
    owd_p50_ns: int
    owd_p99_ns: int
    owd_max_ns: int
    owd_min_ns: int
    owd_bound_ns: int
    baseline_ns: int
    limit_ns: int
    outbound_lost: int
    rtt_ns: int
    changed_host_ns: int
    degraded_host_ns: int
    black_hole_bytes: int
    maybe_cut: int
    raw_paths: tuple[int, ...]

    def path(self, index: int) -> PathState:
        """The state of path `index`, 0 = main path."""
        path = PathState(*self.raw_paths[PATH_FIELDS * index : PATH_FIELDS * (index + 1)])
        return path if path.owd_ns != UNKNOWN_OWD else path._replace(owd_ns=None)

    def dead_paths(self) -> int:
        """How many source ports are down."""
        return self.raw_paths[3 : PATH_FIELDS * self.paths : PATH_FIELDS].count(HealthState.DOWN)


def worst_path(edge: EdgeState) -> int | None:
    """Index of the worst source port: one that is down, else the one that loses most, else one that drops large
    packets, else the slowest. None while nothing of this is known. The same as summarize_paths of
    exporters/probe_engine/edge_text.cc.
    """
    paths = [edge.path(index) for index in range(edge.paths)]
    if dead := [index for index, path in enumerate(paths) if path.state == HealthState.DOWN]:
        return dead[-1]
    if lossy := [(path.loss_ppm, -index) for index, path in enumerate(paths) if path.lossy and path.loss_ppm]:
        return -max(lossy)[1]
    if cut := [index for index, path in enumerate(paths) if path.cut == CUT]:
        return cut[0]
    return max(
        ((path.owd_ns, index) for index, path in enumerate(paths) if path.owd_ns is not None),
        default=(0, None),
    )[1]


_EDGE_FIELDS = len(EdgeState._fields) - 1


class Snapshot(NamedTuple):
    """The whole engine."""

    generation: int
    clock_status: int
    ticks: int
    stalls: int
    stalled_ns: int
    cpu_ns: int
    clock_steps: int
    events_dropped: int
    samples: int
    clock_bound_ns: int
    lateness: Distribution
    nics: list[NicState]
    edges: list[EdgeState]


def parse_snapshot(data: bytes, edges_too: bool = True) -> Snapshot:
    """Takes the answer of `Engine.snapshot` apart. NICs and edges are in the order in which they were configured.

    edges_too : False leaves the edges out, which are nearly all of the work.
    """
    h = HEADER.unpack_from(data)
    offset = HEADER.size
    nics = []
    for _ in range(h[1]):
        f = NIC.unpack_from(data, offset)
        offset += NIC.size
        at = 9 + _OUTAGE + 1
        drops = at + _OWD + 1
        outages = Distribution(f[9 : 9 + _OUTAGE], f[9 + _OUTAGE])
        owd = Distribution(f[at : at + _OWD], f[at + _OWD])
        head = (f[0], f[1], bool(f[2]), bool(f[3]), *f[4:9])
        nics.append(NicState._make((*head, outages, owd, f[drops:-7], *f[-7:])))
    edges = []
    if edges_too:
        edges = [
            EdgeState._make((*f[:_EDGE_FIELDS], f[_EDGE_FIELDS:]))
            for f in EDGE.iter_unpack(memoryview(data)[offset:])
        ]
    lateness = Distribution(h[12 : 12 + _LATENESS], h[12 + _LATENESS])
    return Snapshot._make((h[0], h[3], *h[4:12], lateness, nics, edges))
