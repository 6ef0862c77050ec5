"""What `audit run --rdma` asks the agents, their answers, and what the two ends of a test tell each other."""

from typing import Annotated

from msgspec import Meta, Struct

from fabricpulse.audit.model import Name
from fabricpulse.audit.node.wire import MOST_SECONDS, Address, BitsPerSecond

RDMA_RECEIVE_PATH = "/api/v1/audit/rdma/receive"
RDMA_SEND_PATH = "/api/v1/audit/rdma/send"

Key = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Error = Annotated[str, Meta(max_length=256)]
_Bits32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
_Bits24 = Annotated[int, Meta(ge=0, le=0xFFFFFF)]


class RdmaReceiveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Let one NIC write into memory of this one. device, address : of the NIC that is written to. peer : address of the
    one that writes."""

    device: Name
    address: Address
    peer: Address
    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] = 1.0


class RdmaReceiveAnswer(Struct, frozen=True):
    """Where the writer is awaited, for some seconds. key : that it must show, hexadecimal. error : why the NIC cannot
    be tested by RDMA, "" if it can."""

    tcp_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    key: Key = "0" * 32
    error: Error = ""


class RdmaSendRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Write to the other NIC for `seconds`, `rate_bps` at most, bits per second."""

    device: Name
    address: Address
    peer: Address
    tcp_port: Annotated[int, Meta(ge=1, le=65_535)]
    key: Key
    rate_bps: Annotated[int, Meta(ge=1_000_000, le=10**13)]
    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] = 1.0


class QueuePairEnd(Struct, frozen=True):
    """What one end of a queue pair needs of the other: its number, first packet number, GID (hexadecimal), path MTU
    (enum ibv_mtu), and the key and address of its buffer."""

    number: _Bits24
    psn: _Bits24
    gid: Key
    mtu: Annotated[int, Meta(ge=1, le=5)]
    key: _Bits32
    address: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RdmaResult(Struct, frozen=True):
    """Of one test. writes : that the other NIC has acknowledged. bps : of them, without the beginning; None if the test
    did not come to its end. failed : that the other NIC answered none of several tries of a write. error : why it was
    not finished, "" if it was, or failed. unable : that is because the NIC of this host cannot be tested by RDMA.
    starved, stolen, limit_bps : as of TransferResult."""

    writes: Annotated[int, Meta(ge=0)] = 0
    bps: Annotated[float, Meta(ge=0)] | None = None
    failed: bool = False
    error: Error = ""
    unable: bool = False
    starved: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stolen: Annotated[float, Meta(ge=0, le=1)] = 0.0
    limit_bps: BitsPerSecond | None = None
