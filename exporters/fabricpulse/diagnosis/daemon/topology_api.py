"""The last tree of the fabric as JSON and as metrics: unknown once it is older than the delays that it is made from may
be. Pure.
"""

import msgspec

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.diagnosis.daemon import metrics as m
from fabricpulse.diagnosis.tree.missing import NOT_YET, nothing_learned, too_old
from fabricpulse.diagnosis.tree.surveyed import Surveyed


def is_current(last: Surveyed | None, keep_s: float, now_s: float) -> bool:
    """Whether a tree is recent enough to be served. now_s : monotonic, as its at_s."""
    return last is not None and now_s - last.at_s <= keep_s


def topology_json(last: Surveyed | None, keep_s: float, now_s: float) -> bytes:
    """The answer of `/api/v1/topology`. last : that was computed. keep_s : how long a delay counts."""
    if last is not None and is_current(last, keep_s, now_s):
        # The document may be large: its age is put before its last brace.
        return last.document[:-1] + b',"age_s":%.1f}' % (now_s - last.at_s)
    return msgspec.json.encode(
        nothing_learned(NOT_YET if last is None else too_old(now_s - last.at_s, keep_s))
    )


def expose_topology(out: Exposition, last: Surveyed | None, keep_s: float, now_s: float) -> None:
    """Adds what is known of the tree. Figures of an expired one are left out, but its age is reported."""
    known = last is not None and is_current(last, keep_s, now_s)
    out.add(m.TOPOLOGY_KNOWN, (), int(known and last is not None and last.placed > 0))
    if last is None:
        return
    out.add(m.TOPOLOGY_AGE, (), now_s - last.at_s)
    if not known:
        return
    out.add(m.TOPOLOGY_NICS, ("placed",), last.placed)
    out.add(m.TOPOLOGY_NICS, ("unknown",), last.nics - last.placed)
    out.add(m.TOPOLOGY_LEAVES, (), last.leaves)
    out.add(m.TOPOLOGY_UNSEPARATED, (), last.unseparated)
    out.add(m.TOPOLOGY_EDGES, ("known",), last.pairs)
    out.add(m.TOPOLOGY_EDGES, ("unknown",), max(last.edges - last.pairs, 0))
    out.add(m.TOPOLOGY_WRONG_CABLES, (), last.wrong_cables)
    for one in last.miscabled:
        host, _, device = one.nic.partition("/")
        out.add(m.TOPOLOGY_MISCABLED, (host, device, one.what, one.leaf, one.expected), 1)
