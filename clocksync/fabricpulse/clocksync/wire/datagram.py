"""Reports and replies as datagrams: the same as `RoundReport` and `RoundReply` say, without what seldom changes.

A datagram is a head, records of 40 bytes an edge (requests) or 8 bytes an edge (replies), padding or the root's name,
and a tag: SipHash-2-4 of all of it under the channel's key, which came by HTTP. The heads are those of channel_table.h.
A report of more edges than one holds goes as several, its parts, each with the whole head and its share of the edges;
one reply answers them. Nothing here is secret, and a datagram with a wrong tag is ignored.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync._report_intake import (
    MAX_DATAGRAM,
    MAX_PARTS,
    MIN_REQUEST,
    REPLY_MAGIC,
    REQUEST_MAGIC,
    RESET_MAGIC,
)
from fabricpulse.clocksync.wire.messages import (
    EDGE,
    EDGE_DTYPE,
    RESIDUAL,
    Channel,
    Line,
    Quorum,
    RoundReply,
    RoundReport,
)
from fabricpulse.clocksync.wire.report_table import ROW_DTYPE, Records, name_hash
from fabricpulse.clocksync.wire.suspicions import SUSPICIONS
from fabricpulse.core._siphash import siphash24

_REQUEST_FIELDS = [
    ("magic", "<u4"), ("channel", "<u4"), ("sequence", "<u8"), ("host_ns", "<i8"), ("ref_ns", "<i8"),
    ("correction_ns", "<i8"), ("rate_ppt", "<i8"), ("bound_ns", "<i8"), ("anchor_ns", "<i8"),
    ("anchor_bound_ns", "<i8"), ("clock_steps", "<u4"), ("generation", "<u4"), ("flags", "u1"), ("rank", "u1"),
    ("part_edges", "u1"), ("part", "u1"), ("quorum_hosts", "<u4"), ("quorum_s", "<u8"), ("quorum_root", "<u8"),
]  # fmt: skip
ARRIVAL_DTYPE = np.dtype([*_REQUEST_FIELDS, ("received_ns", "<i8"), ("edges", "<u4"), ("reserved", "<u4")])
REPLY_DTYPE = np.dtype(
    [
        ("magic", "<u4"), ("channel", "<u4"), ("sequence", "<u8"), ("solve", "<u8"), ("ref_ns", "<i8"),
        ("correction_ns", "<i8"), ("rate_ppt", "<i8"), ("bound_ns", "<i8"), ("generation", "<u4"), ("residuals", "<u2"),
        ("flags", "u1"), ("suspect", "u1"), ("quorum_s", "<u4"), ("drift_ppb", "<u4"), ("quorum_hosts", "<u4"),
        ("estimated_error_ns", "<u4"),
    ]
)  # fmt: skip
_REQUEST = struct.Struct("<IIQqqqqqqqIIBBBBIQQ")
_REPLY = struct.Struct("<IIQQqqqqIHBBIIII")
_RESET = struct.Struct("<IIQ8x")
_TAG = struct.Struct("<Q")
# Flags. HAS_ANCHOR, UNVERIFIED : of a request only. RESEND_INFO, NEW_NEIGHBOURS : of a reply only: the next report
# should come by HTTP, with HostInfo, or for a new neighbour list.
HAS_LINE, HAS_ANCHOR, RESEND_INFO, NEW_NEIGHBOURS, NO_QUORUM, HAS_QUORUM, QUORUM_ANCHORED, UNVERIFIED = (
    1 << bit for bit in range(8)
)
_NS_LIMIT, _SMALL_LIMIT = 2**61, 2**40
# Edges that one datagram holds, and that a report by datagram can have.
PART_EDGES = (MAX_DATAGRAM - _REQUEST.size - _TAG.size) // EDGE.size
MAX_EDGES = MAX_PARTS * PART_EDGES


class Reset(Exception):  # noqa: N818 - no error: an answer
    """The coordinator does not know the channel: it has been restarted, or the lease has run out."""


def fits(report: RoundReport) -> bool:
    """Whether `report` can go as datagrams: not with HostInfo, nor with more than MAX_EDGES (132)."""
    numbers = 0 <= report.clock_steps < 2**32 and 0 <= report.generation < 2**32
    few = len(report.edges) <= MAX_EDGES * EDGE.size
    return report.info is None and few and numbers and report.rank < 256


def pack_request(channel: Channel, sequence: int, report: RoundReport) -> list[bytes]:
    """The datagrams of a report that fits: its parts, as few as possible, all but the last of them full."""
    size = PART_EDGES * EDGE.size
    shares = [report.edges[at : at + size] for at in range(0, len(report.edges), size)] or [b""]
    return [
        _pack_part(channel, sequence, report, share, part | len(shares) - 1 << 4)
        for part, share in enumerate(shares)
    ]


def _pack_part(channel: Channel, sequence: int, report: RoundReport, share: bytes, part: int) -> bytes:
    line, anchor, quorum = report.line, report.anchor, report.quorum
    head = _REQUEST.pack(
        REQUEST_MAGIC, channel.number, sequence, report.host_ns, *((line.ref_host_ns, line.correction_ns, line.rate_ppt,
        line.bound_ns) if line else (0, 0, 0, 0)), *(anchor or (0, 0)), report.clock_steps, report.generation, HAS_LINE
        * (line is not None) | HAS_ANCHOR * (anchor is not None) | NO_QUORUM * report.no_quorum |
        UNVERIFIED * report.unverified | _flags(quorum),
        report.rank, len(share) // EDGE.size, part, *((quorum.hosts, quorum.moment_s, name_hash(quorum.root)) if quorum
        else (0, 0, 0)),
    )  # fmt: skip
    body = (head + share).ljust(MIN_REQUEST - _TAG.size, b"\0")
    return body + _TAG.pack(siphash24(channel.key, body))


def _flags(quorum: Quorum | None) -> int:
    return HAS_QUORUM | QUORUM_ANCHORED * quorum.anchored if quorum is not None else 0


def unpack_reply(
    channel: Channel, sequence: int, data: bytes, root: str, quorum: Quorum | None = None
) -> tuple[RoundReply, bool] | None:
    """The answer to request `sequence`, and whether there is more to be fetched by HTTP.

    None when it is none: another's, an old one, or not the coordinator's.

    root, quorum : those of the last reply, which stay when there was no room for the root's name. Raises Reset.
    """
    if len(data) == _RESET.size and _RESET.unpack(data) == (RESET_MAGIC, channel.number, sequence):
        raise Reset
    if len(data) < _REPLY.size + _TAG.size:
        return None
    body = data[: -_TAG.size]
    if _TAG.unpack(data[-_TAG.size :])[0] != siphash24(channel.key, body):
        return None
    (
        magic,
        number,
        answered,
        solve,
        ref,
        correction,
        rate,
        bound,
        generation,
        residuals,
        flags,
        suspect,
        moment_s,
        drift_ppb,
        hosts,
        estimated_error_ns,
    ) = _REPLY.unpack_from(body)
    end = _REPLY.size + residuals * RESIDUAL.size
    if (magic, number, answered) != (REPLY_MAGIC, channel.number, sequence) or end > len(body):
        return None
    name = body[end:].decode("utf-8", "replace")
    if flags & HAS_QUORUM and name:
        quorum = Quorum(moment_s, hosts, name, bool(flags & QUORUM_ANCHORED))
    reply = RoundReply(
        solve,
        Line(ref, correction, rate, bound) if flags & HAS_LINE else None,
        name or root,
        bool(flags & RESEND_INFO),
        body[_REPLY.size : end],
        SUSPICIONS[suspect] if suspect < len(SUSPICIONS) else "suspected of being faulty",
        None,
        generation,
        quorum,
        bool(flags & NO_QUORUM),
        estimated_error_ns=estimated_error_ns,
        drift_ppb=drift_ppb,
    )
    return reply, bool(flags & NEW_NEIGHBOURS or (flags & HAS_QUORUM and not name))


def rows_of(
    arrivals: bytes | NDArray[np.uint8], edges: bytes | NDArray[np.uint8], slot_of: NDArray[np.int32]
) -> tuple[Records, Records, Records]:
    """What the intake has taken, as rows and edge records for the fleet, and their heads (ARRIVAL_DTYPE).

    slot_of : the host's slot for each channel, -1 for none. What makes no sense is left out.
    """
    heads: Records = np.frombuffer(arrivals, ARRIVAL_DTYPE)
    records: Records = np.frombuffer(edges, EDGE_DTYPE)
    rows = np.zeros(len(heads), ROW_DTYPE)
    for name in set(ROW_DTYPE.names or ()) & set(ARRIVAL_DTYPE.names or ()):
        rows[name] = heads[name]
    rows["received_s"] = heads["received_ns"] * 1e-9
    rows["known"] = heads["flags"] & HAS_LINE != 0
    rows["anchored"] = heads["flags"] & HAS_ANCHOR != 0
    rows["no_quorum"] = heads["flags"] & NO_QUORUM != 0
    rows["unverified"] = heads["flags"] & UNVERIFIED != 0
    rows["quorum_anchored"] = heads["flags"] & QUORUM_ANCHORED != 0
    has_quorum = heads["flags"] & HAS_QUORUM != 0
    rows["quorum_s"] = np.where(has_quorum, heads["quorum_s"].astype(np.int64), -1)
    rows["slot"] = slot_of[heads["channel"]]
    sane = (
        (rows["slot"] >= 0)
        & (rows["bound_ns"] >= 0)
        & (rows["clock_steps"] < 2**31)
        & (rows["generation"] < 2**31)
    )
    for name in ("host_ns", "ref_ns", "correction_ns", "bound_ns", "anchor_ns", "anchor_bound_ns"):
        sane &= (rows[name] >= -_NS_LIMIT) & (rows[name] <= _NS_LIMIT)
    sane &= ~has_quorum | (heads["quorum_s"] <= _SMALL_LIMIT)
    sane &= (rows["rate_ppt"] >= -_SMALL_LIMIT) & (rows["rate_ppt"] <= _SMALL_LIMIT)
    if not sane.all():
        records = records[np.repeat(sane, rows["edges"])]
        rows, heads = rows[sane], heads[sane]
    return rows, records, heads
