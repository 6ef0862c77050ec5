"""What TCP has got across, by the sender's kernel, and how long the network alone held it back. Linux 4.10 and newer.

Theory of operation. The kernel counts the bytes that the peer has acknowledged, and the time in which anything is sent
or waits to be (`busy_time`), in which the peer's window is full and in which the send buffer is (tcp_info of
linux/tcp.h). A sender without a processor lets its queue run empty: it is not busy. A receiver without one lets its
window run full. What is left of the time is the path's, and bytes over that time are what the path carries, however
late either process was. All are read by one call, so that a reader that is late changes none of it. Kernels count the
times in ticks of up to 10 ms: where next to nothing is missing of the whole time, it counts as all of it.
"""

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

# Of tcp_info: bytes_acked; busy_time, rwnd_limited, sndbuf_limited in microseconds.
_ACKED, _TIMES, _SIZE = 120, 168, 192
_TICKS_S = 0.02
# Shorter than this share of the whole, or than some ticks, the path's own time tells nothing.
LEAST_SHARE, _LEAST_S = 0.2, 0.05


@dataclass(frozen=True)
class TcpProgress:
    """Of the streams of a transfer at one moment: bytes acknowledged and seconds held back by the network alone, each
    since the stream began; at : of time.monotonic(), seconds."""

    streams: tuple[tuple[int, float], ...]
    at: float


def tcp_progress(streams: Sequence[socket.socket]) -> TcpProgress | None:
    """Now; None where the kernel does not say. Raises OSError."""
    found = []
    for stream in streams:
        info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        if len(info) < _SIZE:
            return None
        (acked,) = struct.unpack_from("=Q", info, _ACKED)
        busy, by_peer, by_buffer = struct.unpack_from("=QQQ", info, _TIMES)
        found.append((acked, (busy - by_peer - by_buffer) / 1e6))
    return TcpProgress(tuple(found), time.monotonic())


def rates(before: TcpProgress | None, after: TcpProgress | None) -> tuple[float | None, float | None]:
    """Bits per second between two moments: that were reached, and that the path carried while nothing else held them
    back. None where that is not known; the second one also if it was so for too short."""
    if before is None or after is None or after.at <= before.at:
        return None, None
    whole_s = after.at - before.at
    reached = carried = 0.0
    known = True
    for (acked, network_s), (first_acked, first_s) in zip(after.streams, before.streams, strict=True):
        bits = (acked - first_acked) * 8
        path_s = network_s - first_s
        path_s = whole_s if path_s >= whole_s - _TICKS_S else path_s
        known = known and path_s >= max(LEAST_SHARE * whole_s, _LEAST_S)
        reached += bits / whole_s
        carried += bits / path_s if path_s > 0 else 0.0
    return reached, carried if known else None
