"""What the fabric's tree is learned from beside standing edges, as it goes from process to process. Pure.

Apart from `tree/`, so that the daemon does not load what only the worker computes with.
"""

from typing import NamedTuple

import msgspec

# Without a further reply an exporter gives its temporary peers up: three reports of a healthy host.
LEASE_S = 15.0


class KeptPair(NamedTuple):
    """a, b : host/device, a first by name. at_s : monotonic, when measuring began. level_a, level_b : of each NIC the
    middle two-way delay of its standing pairs then, ns.
    """

    a: str
    b: str
    two_way_ns: float
    samples: int
    at_s: float
    level_a: float
    level_b: float


class AssignedPeers(msgspec.Struct, frozen=True):
    """A round as it is sent to the exporters. number : 0 for none. until_s : monotonic. edges : by host, msgpack of a
    tuple of EdgeName.
    """

    number: int = 0
    period_s: float = 0.0
    until_s: float = 0.0
    edges: dict[str, bytes] = {}


class Findings(msgspec.Struct, frozen=True):
    """Of one computation, for `learned`. round : that had ended, 0 for none. gained : pairs that it has measured.
    removed : pairs that count no more. wanted : pairs that would tell more. terms : by NIC ns, where the next
    computation begins its search; packed, as only that one reads them.
    """

    round: int = 0
    gained: tuple[KeptPair, ...] = ()
    removed: tuple[tuple[str, str], ...] = ()
    wanted: tuple[tuple[str, str], ...] = ()
    terms: bytes = b""


NOTHING = Findings()
