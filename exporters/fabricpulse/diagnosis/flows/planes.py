"""Planes: parts of the fabric that no flow connects, such as rails. No two have a silent switch in common. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fabricpulse.diagnosis.flows.components import Nodes
from fabricpulse.diagnosis.flows.hop_rows import Hops

Planes = NDArray[np.uint8]
# Of more parts it is assumed that few hosts have reported yet.
_MOST = 256
# Rows that are worked on at once: bounds memory.
_ROWS = 65_536
_FABRIC = "fabric"


@dataclass(frozen=True)
class FoundPlanes:
    """of_edge, of_switch : the plane of each. labels : of each plane, what its NICs are known by; one that is
    empty where there is one plane.
    """

    of_edge: Planes
    of_switch: Planes
    labels: tuple[str, ...]

    def fabric(self, plane: int) -> str:
        """How all that is unknown between the leaves of a plane is called."""
        return f"{_FABRIC}({self.labels[plane]})" if self.labels[plane] else _FABRIC


def is_fabric(name: str) -> bool:
    """Whether it stands for all that is unknown between leaves."""
    return name == _FABRIC or (name.startswith(f"{_FABRIC}(") and name.endswith(")"))


def found_planes(
    near: Nodes,
    far: Nodes,
    ports: Nodes,
    hops: Hops,
    switches: int,
    network_of: Callable[[NDArray[np.int64]], str],
    text_of: Callable[[int], str],
) -> FoundPlanes:
    """NICs are of one plane if they are ends of an edge, or a switch is on paths of both, or they have one network.

    near, far, ports : of each edge its NICs and how many flows it has. hops : of all flows. switches : how many there
    are. network_of : that of these
    NICs, "" for unknown. text_of : the name of a NIC.
    """
    one = FoundPlanes(np.zeros(len(near), np.uint8), np.zeros(switches, np.uint8), ("",))
    nics, index = np.unique(np.concatenate([near, far]), return_inverse=True)
    a, b = index[: len(near)], index[len(near) :]
    count, part = _joined(len(nics), a, b)
    if not 1 < count <= _MOST:
        return one
    members = [np.flatnonzero(part == number) for number in range(count)]
    networks = [network_of(nics[each].astype(np.int64)) for each in members]
    firsts = [min(text_of(int(nic)) for nic in nics[each]) for each in members]
    of_edge = part[a]
    crossed = _crossed(of_edge, ports, hops, count, switches)
    links = [(x, y) for x in range(count) for y in range(x) if networks[x] and networks[x] == networks[y]]
    for parts in (np.flatnonzero(column) for column in crossed.T[crossed.sum(axis=0) > 1]):
        links += [(int(parts[0]), int(other)) for other in parts[1:]]
    ends = np.array(links, np.int64).reshape(-1, 2).T
    count, plane = _joined(count, *ends)
    if count == 1:
        return one
    of_plane = [np.flatnonzero(plane == number).tolist() for number in range(count)]
    labels = [
        min((networks[p] for p in parts if networks[p]), default="") or min(firsts[p] for p in parts)
        for parts in of_plane
    ]
    of_switch = plane[crossed.argmax(axis=0)]
    return FoundPlanes(plane[of_edge].astype(np.uint8), of_switch.astype(np.uint8), tuple(labels))


def _joined(size: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> tuple[int, NDArray[np.int32]]:
    graph = csr_array((np.ones(len(a), np.int8), (a, b)), shape=(size, size))
    count, label = connected_components(graph, directed=False)
    return int(count), label


def _crossed(
    part: NDArray[np.int32], ports: Nodes, hops: Hops, parts: int, switches: int
) -> NDArray[np.bool_]:
    """By part and switch, whether paths of one cross the other."""
    found = np.zeros((parts, switches), bool)
    last = np.cumsum(ports, dtype=np.int64)
    for start in range(0, len(hops), _ROWS):
        rows = hops[start : start + _ROWS]
        of = part[np.searchsorted(last, np.arange(start, start + len(rows)), side="right")]
        for column in rows.T:
            there = column >= 0
            found[of[there], column[there]] = True
    return found
