"""What sidecars and the coordinator say to each other: msgpack, with 40 bytes an edge as one block.

A report is small because names travel once: `HostInfo` goes with the first report, and again when it changes
or when the coordinator says that it does not know it (it keeps nothing on disk). The edges of a report, and the
residuals on them, are blocks of fixed records, which the coordinator reads as arrays: an object an edge would cost it
more than the solve.
"""

import struct
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

PROTOCOL = 2
ROUND_PATH = "/api/v1/clocksync/round"
LINE_PATH = "/api/v1/clocksync/line"

# Times on the wire stay far from the ends of int64, so that a wrong one cannot overflow what is computed with it.
Ns = Annotated[int, Meta(ge=-(2**61), le=2**61)]
Small = Annotated[int, Meta(ge=-(2**40), le=2**40)]


class NicInfo(msgspec.Struct, frozen=True, array_like=True):
    """A NIC that the host offers to the mesh."""

    device: str
    address: str
    network: str


class EdgeName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which NIC pair an edge of the reports is."""

    device: str
    peer: str
    peer_device: str


class HostInfo(msgspec.Struct, frozen=True, array_like=True):
    """What changes seldom. url : where this sidecar answers its neighbours."""

    generation: int
    url: str
    nics: tuple[NicInfo, ...]
    edges: tuple[EdgeName, ...]
    anchor: str


class EdgeReport(NamedTuple):
    """One edge fit. edge : index into HostInfo.edges; the rest as EdgeFit, times as stamp clock, rate in
    10^-12. last_after_us : from t_ns to the last train.
    """

    t_ns: int
    offset_ns: int
    rate_ppt: int
    last_after_us: int
    sigma_ns: int
    rate_sigma_ppt: int
    bound_ns: int
    edge: int
    quality: int


class Line(msgspec.Struct, frozen=True, array_like=True):
    """A host's timeline: fleet = its stamp clock + correction_ns when that shows ref_host_ns, true within bound_ns."""

    ref_host_ns: Ns
    correction_ns: Ns
    rate_ppt: Small
    bound_ns: Annotated[int, Meta(ge=0, le=2**61)]


class Quorum(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What the last solve that spoke for the fleet rested on: `hosts` on the timeline, and anchors if there were any.

    moment_s : fleet time of it. A part of the fleet that has lost more than half of these hosts, or half and the root,
    or all anchors, cannot know what the rest does. hosts is even only if the root has counted with as many
    (solve.quorum), so that one of two halves at most has it. Of an odd number as many are more than half as of the even
    one below.
    """

    moment_s: Annotated[int, Meta(ge=0, le=2**40)]
    hosts: Annotated[int, Meta(ge=0, le=2**32)]
    root: str
    anchored: bool


class RoundReport(msgspec.Struct, frozen=True, array_like=True):
    """What a sidecar sends each round. edges : records of EDGE. host_ns : its stamp clock when it sent.

    line : None while it has none. anchor : UTC minus stamp clock by a time source of its own, and its bound. root : of
    the last solve it has seen. clock_steps : how often its stamp clock has jumped, as it has noticed itself: pauses.
    rank : of the coordinator in the host's list; 0 is the one that it asks first. quorum, no_quorum : by the last
    reply. datagrams : it wants a channel for the reports that follow. unverified : a time in which nobody would have
    noticed a pause of the machine has passed since `line` was last confirmed.
    """

    protocol: int
    host: str
    epoch: int
    generation: int
    host_ns: Ns
    edges: bytes
    line: Line | None
    anchor: tuple[Ns, Ns] | None
    root: str
    clock_steps: int
    info: HostInfo | None
    rank: int = 0
    quorum: Quorum | None = None
    no_quorum: bool = False
    datagrams: bool = False
    unverified: bool = False


class EdgeResidual(NamedTuple):
    """How an edge of the host fits the fleet. edge : index into HostInfo.edges."""

    residual_ns: int
    edge: int
    fits: bool


class Channel(msgspec.Struct, frozen=True, array_like=True):
    """Under which key a sidecar may send its next reports as datagrams (datagram.py), to the same port number."""

    number: int
    key: bytes


class RoundReply(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator answers. line : None while the host is not connected to the timeline.

    residuals : records of RESIDUAL. resend_info : send HostInfo with the next report. neighbours : host -> sidecar URL,
    when it changed. no_quorum : the solve did not speak for the fleet, so that bounds must grow as in holdover. channel
    : replaces those of earlier replies. estimated_error_ns : what the line is likely off by, 0 = not known. drift_ppb :
    how far its rate may be off, beside what clocks may drift.
    """

    solve: int
    line: Line | None
    root: str
    resend_info: bool
    residuals: bytes
    suspect: str
    neighbours: dict[str, str] | None
    generation: int
    quorum: Quorum | None = None
    no_quorum: bool = False
    channel: Channel | None = None
    estimated_error_ns: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    drift_ppb: Annotated[int, Meta(ge=0, lt=2**32)] = 0


class LineReply(msgspec.Struct, frozen=True, array_like=True):
    """A sidecar's answer to its neighbour: its timeline, its stamp clock when it answered, and its status. unverified :
    as in RoundReport.
    """

    host: str
    host_ns: int
    line: Line | None
    synchronized: bool
    unverified: bool = False


EDGE = struct.Struct("<qqiiIIIHBx")
EDGE_DTYPE = np.dtype(
    {
        "names": list(EdgeReport._fields),
        "formats": ["<i8", "<i8", "<i4", "<i4", "<u4", "<u4", "<u4", "<u2", "u1"],
        "offsets": [0, 8, 16, 20, 24, 28, 32, 36, 38],
        "itemsize": EDGE.size,
    }
)
RESIDUAL = struct.Struct("<iH?x")
RESIDUAL_DTYPE = np.dtype(
    {
        "names": list(EdgeResidual._fields),
        "formats": ["<i4", "<u2", "?"],
        "offsets": [0, 4, 6],
        "itemsize": RESIDUAL.size,
    }
)
_I4, _U4 = 2**31 - 1, 2**32 - 1


def pack_edges(reports: Iterable[EdgeReport]) -> bytes:
    """The records of `reports`; what does not fit its field is cut to the largest value (4.3 s, 2,147 ppm)."""
    return b"".join(
        EDGE.pack(
            r.t_ns, r.offset_ns, max(-_I4, min(_I4, r.rate_ppt)), max(-_I4, min(_I4, r.last_after_us)),
            min(_U4, r.sigma_ns), min(_U4, r.rate_sigma_ppt), min(_U4, r.bound_ns), r.edge, r.quality,
        )
        for r in reports
    )  # fmt: skip


def unpack_residuals(block: bytes) -> list[EdgeResidual]:
    """The residuals of a reply. Raises ValueError when `block` is not a whole number of them."""
    if len(block) % RESIDUAL.size:
        raise ValueError(f"{len(block)} bytes are no whole number of residuals of {RESIDUAL.size}")
    return [EdgeResidual(*fields) for fields in RESIDUAL.iter_unpack(block)]


report_encoder = msgspec.msgpack.Encoder()
report_decoder = msgspec.msgpack.Decoder(RoundReport)
reply_decoder = msgspec.msgpack.Decoder(RoundReply)
line_decoder = msgspec.msgpack.Decoder(LineReply)
