"""Layout of core/include/fabricpulse/probe_ring.h. The probe engine writes it, the sidecar of clocksync reads it."""

import struct
from dataclasses import dataclass

MAGIC = 0x31474E5242505046
VERSION = 5
TRAIN = 3

HEADER = struct.Struct("<QIIIIIIQQ96sIIQQQqqQ")
EDGE = struct.Struct("<II32s32s96s32s32s")
SAMPLE = struct.Struct("<QIIIHBBBBHH2x3q3qqq32x")

INBOUND, OUTBOUND = 0, 1
TX_HARDWARE, RX_HARDWARE, MAIN_PATH, FLEET_VALID = 1, 2, 4, 8
EDGE_FREE, EDGE_ACTIVE, EDGE_RETIRED = 0, 1, 2

EDGES_SEQUENCE_OFFSET = HEADER.size - 48
NEXT_OFFSET = HEADER.size - 40


@dataclass(frozen=True)
class ProbeEdge:
    """A pair (local NIC, remote NIC). index : the `edge` field of its samples."""

    index: int
    state: int
    generation: int
    device: str
    network: str
    peer: str
    peer_device: str
    peer_network: str
