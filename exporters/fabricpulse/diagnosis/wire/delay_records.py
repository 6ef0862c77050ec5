"""Least delays as the coordinator takes them: records of an array. `messages.pack_delays` makes them."""

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.wire.messages import DELAY, LONGEST_NS

DELAY_DTYPE = np.dtype([("edge", "<u2"), ("samples", "<u2"), ("least_ns", "<i4")])


def unpack_delays(data: bytes, edges: int) -> NDArray[np.void]:
    """The inverse of `pack_delays`, as records of DELAY_DTYPE. Raises ValueError for what no exporter sends."""
    if len(data) % DELAY.size:
        raise ValueError("the delays are cut short")
    found = np.frombuffer(data, DELAY_DTYPE)
    if len(found) and (
        found["edge"].max() >= edges or np.abs(found["least_ns"].astype(np.int64)).max() > LONGEST_NS
    ):
        raise ValueError("a delay is of an edge that does not exist, or is no delay")
    return found
