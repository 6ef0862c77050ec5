"""Flows that suffer as the coordinator takes them: records of an array. `messages.pack_flows` makes them."""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.wire.messages import CUT, MAYBE_CUT, SLOW

FLOW_DTYPE = np.dtype([("edge", "<u2"), ("port", "u1"), ("flags", "u1"), ("sent", "<u4"), ("lost", "<u4")])
_NONE = np.zeros(0, FLOW_DTYPE)


def unpack_flows(data: bytes, edges: int, ports: int) -> NDArray[np.void]:
    """The inverse of `pack_flows`, as records of FLOW_DTYPE; flags : SLOW, CUT, MAYBE_CUT. Raises ValueError for what
    no exporter sends.
    """
    if not data:
        return _NONE
    if len(data) % FLOW_DTYPE.itemsize:
        raise ValueError("the flows are cut short")
    found = np.frombuffer(data, FLOW_DTYPE)
    wrong = (found["edge"] >= edges) | (found["port"] >= ports) | (found["lost"] > found["sent"])
    if wrong.any():
        flow = found[np.argmax(wrong)]
        raise ValueError(f"flow {flow['edge']}:{flow['port']} does not exist, or lost more than was sent")
    return found


def numbers(flows: NDArray[np.void], ports: int) -> NDArray[np.int32]:
    """The number of each flow at its host: its edge times ports, plus its port."""
    return np.asarray(flows["edge"].astype(np.int32) * ports + flows["port"], np.int32)


def suffering(
    flows: NDArray[np.void], ports: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Numbers of the flows that are slow, of those that drop large packets, and of those that may do so."""
    number, flags = numbers(flows, ports), flows["flags"]
    return number[flags & SLOW > 0], number[flags & CUT > 0], number[flags & MAYBE_CUT > 0]
