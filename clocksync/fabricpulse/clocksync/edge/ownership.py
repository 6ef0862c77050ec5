"""Which end of an edge fits and reports it.

Both ends hold all stamps of an edge, so both would find the same line and the fleet would do everything twice. Both
ends derive the owner from a hash of the NIC pair: half of the edges of a host on average.
"""

from hashlib import blake2b

from fabricpulse.clocksync.wire.messages import EdgeName


def is_ours(host: str, edge: EdgeName) -> bool:
    """True if `host` is the end that reports `edge`; exactly one of the two ends gets True."""
    ours, theirs = f"{host}\0{edge.device}", f"{edge.peer}\0{edge.peer_device}"
    first, second = sorted((ours, theirs))
    # Not a CRC: it is linear, and names that differ in a digit share its lowest bit far too often.
    bit = blake2b(f"{first}\0{second}".encode(), digest_size=1).digest()[0] & 1
    chosen = second if bit else first
    return chosen == ours
