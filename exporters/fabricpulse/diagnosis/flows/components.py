"""What can be faulty, as numbers: a component is a kind and one or two nodes, packed into 64 bits so that numpy can
sort and count millions of them.
"""

import enum
import math

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Nodes = NDArray[np.int32]

_NODE_BITS = 29
_NODE_MASK = (1 << _NODE_BITS) - 1
# In a row of hops: one that does not answer to probes with a limited time to live; none, behind the last.
SILENT_HOP, NO_HOP = -1, -2


class Kind(enum.IntEnum):
    """Kinds of components.

    HOST : all NICs of a host (of two or more). NIC : both directions. NIC_TX, NIC_RX : from, to the fabric, the cable
    to the leaf included. SWITCH : everything that crosses it. LINK : a cable between two
    switches in one direction. PAIR : from one NIC to another, on all source ports. FLOW : one source port of a pair, as
    one bucket of a switch's hash has it.
    """

    HOST = 0
    NIC = 1
    NIC_TX = 2
    NIC_RX = 3
    SWITCH = 4
    LINK = 5
    PAIR = 6
    FLOW = 7


# How probable it is, before any evidence, that one component of the kind is faulty at a moment. Only ratios matter: of
# two that explain the evidence alike, the more probable kind is named.
LOG_PRIOR = {
    # Less than a NIC: where all but one of a host's NICs suffer from something else, that NIC is dead, not the host.
    Kind.HOST: math.log(2e-5),
    Kind.NIC: math.log(1e-4),
    # Where nothing says that one direction is well, the whole is named.
    Kind.NIC_TX: math.log(9e-5),
    Kind.NIC_RX: math.log(9e-5),
    Kind.SWITCH: math.log(1e-5),
    Kind.LINK: math.log(1e-5),
    Kind.PAIR: math.log(1e-9),
    Kind.FLOW: math.log(1e-10),
}


# How probable it is that the other way of a link is faulty where one is: a cable and its optics serve both.
LOG_OTHER_WAY = math.log(0.3)
# The same of what was found to be faulty a moment ago.
LOG_KNOWN = math.log(0.5)


def code(kind: Kind, a: int, b: int = 0) -> int:
    """The component as a number. b : the far node of a LINK or PAIR."""
    return int(kind) << 2 * _NODE_BITS | a << _NODE_BITS | b


def parts(component: int) -> tuple[Kind, int, int]:
    """The inverse of `code`."""
    return (
        Kind(component >> 2 * _NODE_BITS),
        component >> _NODE_BITS & _NODE_MASK,
        component & _NODE_MASK,
    )


def kinds(components: Codes) -> NDArray[np.int64]:
    """The kind of each."""
    return components >> 2 * _NODE_BITS


def nodes(components: Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both nodes of each."""
    return components >> _NODE_BITS & _NODE_MASK, components & _NODE_MASK


def codes(kind: Kind, a: Nodes, b: Nodes | None = None) -> Codes:
    """`code` of arrays; -1 where `a` or `b` is below 0."""
    packed = (np.int64(kind) << 2 * _NODE_BITS) | (a.astype(np.int64) << _NODE_BITS)
    known = a >= 0
    if b is not None:
        packed |= b.astype(np.int64)
        known = known & (b >= 0)
    return np.where(known, packed, np.int64(-1))
