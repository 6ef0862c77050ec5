"""What `audit run` asks the agents, and their answers beside the report."""

from typing import Annotated

from msgspec import Meta, Struct

from fabricpulse.audit.host.lldp import Neighbour
from fabricpulse.audit.model import Name, Seconds, Text

AUDIT_PATH = "/api/v1/audit"
ECHO_TESTS_PATH = "/api/v1/audit/echo-tests"
FINDINGS_PATH = "/api/v1/audit/findings"
NEIGHBOURS_PATH = "/api/v1/audit/neighbours"
RECEIVE_PATH = "/api/v1/audit/receive"
RING_PATH = "/api/v1/audit/ring"
SEND_PATH = "/api/v1/audit/send"
# A request that comes sooner after the audit before it gets the report of that one, seconds.
FRESH_S = 1.0
# Of one request: rails of a host, NICs to test.
MOST_RAILS = 64
MOST_ECHO_TESTS = 4096
# Of one transfer.
MOST_SECONDS = 10.0
MOST_STREAMS = 16
MOST_DATAGRAMS = 200_000
MOST_PORTS = 64
# What a rank of a ring sends in a step.
RING_STEP_BYTES = 1 << 20

Address = Annotated[str, Meta(max_length=45)]
# What an agent may say: beyond all that there is, so that what is made of it is a number.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
BitsPerSecond = Annotated[float, Meta(ge=0, le=1e16)]
Nanoseconds = Annotated[int, Meta(ge=-(10**18), le=10**18)]


class AuditRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """An audit of the host. rails : netdev -> network, as the membership lists the host's NICs."""

    rails: Annotated[dict[Name, Name], Meta(max_length=MOST_RAILS)] = {}


class EchoTest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Echo requests from a NIC to an address. size : of the whole IP packet, bytes, not to be fragmented. source : from
    this address of the NIC, and only if the host has a route from it; "" for whatever the kernel takes."""

    device: Name
    address: Address
    size: Annotated[int, Meta(ge=64, le=65_535)]
    source: Address = ""


class EchoTestsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Echo tests to be made one after the other, a few at a time."""

    echo_tests: Annotated[tuple[EchoTest, ...], Meta(max_length=MOST_ECHO_TESTS)]


class EchoResult(Struct, frozen=True):
    """Of one echo test. sent, answered : echoes. error : of the kernel, "" if there was none; EMSGSIZE says that a hop
    has reported its MTU. rtt_s : the smallest, 0 without an answer."""

    sent: Count
    answered: Count
    error: Annotated[str, Meta(max_length=64)] = ""
    rtt_s: Seconds = 0.0


class EchoTestsAnswer(Struct, frozen=True):
    """In the order of the request."""

    results: Annotated[tuple[EchoResult, ...], Meta(max_length=MOST_ECHO_TESTS)]


class NeighboursRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Listen for LLDP on these NICs, for so long at most; switches speak every 30 s by default."""

    devices: Annotated[tuple[Name, ...], Meta(max_length=MOST_RAILS)]
    seconds: Annotated[float, Meta(gt=0, le=300)] = 35.0


class NeighboursAnswer(Struct, frozen=True):
    """netdev -> neighbour; netdev -> why it cannot listen. A NIC in neither has received nothing."""

    heard: Annotated[dict[Name, Neighbour], Meta(max_length=MOST_RAILS)]
    unreadable: Annotated[dict[Name, Text], Meta(max_length=MOST_RAILS)] = {}


class ReceiveRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Take one transfer. device, address : of the NIC that receives. peer : address of the one that sends. duplex : the
    NIC may send one at the same time."""

    device: Name
    address: Address
    peer: Address
    streams: Annotated[int, Meta(ge=1, le=MOST_STREAMS)] = 4
    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] = 1.0
    duplex: bool = False


class ReceiveAnswer(Struct, frozen=True):
    """Where the transfer is awaited, for some seconds. key : that the sender must show, hexadecimal."""

    tcp_port: Annotated[int, Meta(ge=1, le=65_535)]
    udp_port: Annotated[int, Meta(ge=1, le=65_535)]
    key: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class SendRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Make one transfer: `datagrams` of `datagram_bytes` (of the whole IP packet) at a quarter of the rate, more of
    them for `loss_seconds` at the whole rate, then `streams` of TCP for `seconds` at `rate_bps`, bits per second, all
    together. duplex : beside a transfer that the NIC receives, which it must await. source_ports : that the datagrams
    leave from in turn."""

    device: Name
    address: Address
    peer: Address
    tcp_port: Annotated[int, Meta(ge=1, le=65_535)]
    udp_port: Annotated[int, Meta(ge=1, le=65_535)]
    key: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    rate_bps: Annotated[int, Meta(ge=1_000_000, le=10**13)]
    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] = 1.0
    streams: Annotated[int, Meta(ge=1, le=MOST_STREAMS)] = 4
    datagrams: Annotated[int, Meta(ge=1, le=MOST_DATAGRAMS)] = 2000
    datagram_bytes: Annotated[int, Meta(ge=128, le=65_000)] = 1500
    duplex: bool = False
    source_ports: Annotated[int, Meta(ge=1, le=MOST_PORTS)] = 16
    loss_seconds: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] = 0.0


class PortCount(Struct, frozen=True):
    """Datagrams from one source port. delay_ns : smallest difference of both hosts' raw clocks, which says how ports
    differ and nothing else; None where the sender gave no stamp."""

    port: Annotated[int, Meta(ge=0, le=65_535)]
    datagrams: Count
    delay_ns: Nanoseconds | None = None


class Received(Struct, frozen=True):
    """What the receiver has seen of the datagrams. overflowed : at most so many its own socket had no room for, which
    no network has lost; pieces : and at least so many, as the kernel counts what came together as one, None where the
    other is exact. owd_ns : smallest one-way delay on fleet time, None where either end has none; owd_bound_ns : of
    its error. host_dropped : packets that the receiving host dropped before any socket, of any sender."""

    datagrams: Count
    overflowed: Count = 0
    owd_ns: Nanoseconds | None = None
    owd_bound_ns: Nanoseconds = 0
    by_port: Annotated[tuple[PortCount, ...], Meta(max_length=MOST_PORTS)] = ()
    host_dropped: Count = 0
    pieces: Count | None = None


class Hindered(Struct, frozen=True):
    """By how much the receiver's host was late while TCP lasted, seconds. starved_s : its threads had no processor;
    stolen_s : a processor was not given to it by the host of its virtual machine. busy : as in TransferResult."""

    starved_s: float = 0.0
    stolen_s: float = 0.0
    busy: Annotated[float, Meta(ge=0, le=1)] = 0.0


class TransferResult(Struct, frozen=True):
    """Of one transfer. sent : datagrams. bps : of TCP that the receiver's host has acknowledged, without its beginning;
    None if too little came to tell. path_bps : the same over the time in which nothing but the path held it back, None
    if that was too short. error : why it was not finished, "" if it was; what came before counts. sent_by_port : source
    port -> datagrams. host_dropped : packets that the sending host dropped itself while datagrams were under way.
    starved : share of the time of TCP in which threads of the busier end had no processor; stolen : in which a virtual
    machine of them was not given one. loss_bps : on the wire, of the datagrams that were sent at the whole rate, None
    if none were. limit_bps : what the agent's own settings allow of the rate that it was asked for; None if the agent
    is of an older release, which does not say. busy : share of the time of TCP in which the processors of the busier
    end, all together, had something to do; 0 if it does not say."""

    sent: Count = 0
    received: Received | None = None
    bps: BitsPerSecond | None = None
    error: Annotated[str, Meta(max_length=256)] = ""
    sent_by_port: Annotated[dict[int, Count], Meta(max_length=MOST_PORTS)] = {}
    host_dropped: Count = 0
    starved: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stolen: Annotated[float, Meta(ge=0, le=1)] = 0.0
    path_bps: BitsPerSecond | None = None
    loss_bps: BitsPerSecond | None = None
    limit_bps: BitsPerSecond | None = None
    busy: Annotated[float, Meta(ge=0, le=1)] = 0.0


class RingRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Be one rank of a ring. rendezvous : address and port of a NIC of rank 0. devices : NICs to use. lanes : most of a
    connection. seconds : of the ring, once all are there. peer : the host of the rank before it, which it receives
    from. torch : an all-reduce by NCCL itself, on the first GPU, in place of the plugin's ring."""

    rank: Annotated[int, Meta(ge=0, le=4095)]
    size: Annotated[int, Meta(ge=2, le=4096)]
    rendezvous: Annotated[str, Meta(pattern=r"^(\[[0-9a-fA-F:.]+\]|[0-9.]+):[0-9]{1,5}$", max_length=60)]
    devices: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_RAILS)]
    lanes: Annotated[int, Meta(ge=1, le=16)] = 8
    seconds: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] = 1.0
    peer: Name = ""
    torch: bool = False


class RingDelay(Struct, frozen=True):
    """Smallest one-way delay of what a rank has received from a NIC of the rank before it over one of its own, on fleet
    time: at least `least_ns`, at most `most_ns`. chunks : that were timed. rdma : over queue pairs, not TCP. mesh_ns :
    smallest of the mesh exporter's probes on that edge, None where it has none; mesh_bound_ns : of its error."""

    device: Name
    peer_device: Name
    least_ns: Count
    most_ns: Count
    chunks: Count = 0
    rdma: bool = False
    mesh_ns: Nanoseconds | None = None
    mesh_bound_ns: Count = 0


class RingAnswer(Struct, frozen=True):
    """Of one rank. bps : bus bandwidth, bits per second. corrupt_bytes : of the verified result. error : why it was not
    finished, "" if it was. delays : of what it has received. clock_bound_ns : error of this host's clock against fleet
    time, None where it has none."""

    bps: BitsPerSecond = 0.0
    rounds: Count = 0
    corrupt_bytes: Count = 0
    error: Text = ""
    delays: Annotated[tuple[RingDelay, ...], Meta(max_length=MOST_RAILS)] = ()
    clock_bound_ns: Count | None = None
