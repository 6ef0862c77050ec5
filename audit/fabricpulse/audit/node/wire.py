"""What `audit run` asks the agents, and their answers beside the report."""

from typing import Annotated

from msgspec import Meta, Struct

from fabricpulse.audit.model import Name

AUDIT_PATH = "/api/v1/audit"
PROBES_PATH = "/api/v1/audit/probes"
# Of one request: rails of a host, NICs to probe.
MOST_RAILS = 64
MOST_PROBES = 4096

Address = Annotated[str, Meta(max_length=45)]


class AuditRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """An audit of the host. rails : netdev -> network, as the membership lists the host's NICs."""

    rails: Annotated[dict[Name, Name], Meta(max_length=MOST_RAILS)] = {}


class Probe(Struct, frozen=True, forbid_unknown_fields=True):
    """Echo requests from a NIC to an address. size : of the whole IP packet, bytes, not to be fragmented."""

    device: Name
    address: Address
    size: Annotated[int, Meta(ge=64, le=65_535)]


class ProbesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Probes to be made one after the other, a few at a time."""

    probes: Annotated[tuple[Probe, ...], Meta(max_length=MOST_PROBES)]


class ProbeResult(Struct, frozen=True):
    """Of one probe. sent, answered : echoes. error : of the kernel, "" if there was none; EMSGSIZE says that a hop has
    told its MTU. rtt_s : the smallest, 0 without an answer."""

    sent: int
    answered: int
    error: Annotated[str, Meta(max_length=64)] = ""
    rtt_s: float = 0.0


class ProbesAnswer(Struct, frozen=True):
    """In the order of the request."""

    results: Annotated[tuple[ProbeResult, ...], Meta(max_length=MOST_PROBES)]
