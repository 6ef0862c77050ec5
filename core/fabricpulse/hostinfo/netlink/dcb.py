"""Data Center Bridging configuration by rtnetlink: PFC, ETS, buffers, and how DSCP maps to priority (linux/dcbnl.h)."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fabricpulse.hostinfo.netlink.attributes import attribute, attributes
from fabricpulse.hostinfo.netlink.request import NETLINK_ROUTE, NetlinkClient

_RTM_GETDCB = 78
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE, _ATTR_DCBX = 1, 13, 14
_IEEE_ETS, _IEEE_PFC, _IEEE_APP_TABLE, _IEEE_BUFFER = 1, 2, 3, 10
_APP = 1
_SELECTOR_DSCP = 5
# struct ieee_pfc: pfc_cap, pfc_en, mbc, padding, delay, then requests and indications per class, aligned to 8.
_PFC = struct.Struct("=BBBxH2x8Q8Q")
_APP_ENTRY = struct.Struct("=BBH")
# struct dcbnl_buffer: prio2buffer, buffer_size, total_size.
_BUFFER = struct.Struct("=8B8II")


@dataclass(frozen=True)
class DcbState:
    """Configuration of one netdev.

    pfc_enabled : per priority 0-7. pfc_capability : how many classes can have PFC. pfc_delay : allowance for the cable,
    bits. requests, indications : PFC frames sent and received per priority. priority_to_class : per priority.
    bandwidth_percent, is_ets : per class. dscp_to_priority : application table; with an entry the NIC trusts DSCP,
    without one the VLAN priority. priority_to_buffer : per priority, () where the driver has no
    receive buffers to set. buffer_bytes : of each.
    """

    pfc_enabled: tuple[bool, ...] | None = None
    pfc_capability: int = 0
    pfc_delay: int = 0
    requests: tuple[int, ...] = ()
    indications: tuple[int, ...] = ()
    priority_to_class: tuple[int, ...] = ()
    bandwidth_percent: tuple[int, ...] = ()
    is_ets: tuple[bool, ...] = ()
    dscp_to_priority: Mapping[int, int] = field(default_factory=dict)
    priority_to_buffer: tuple[int, ...] = ()
    buffer_bytes: tuple[int, ...] = ()


class DcbSource(Protocol):
    """Where DCB configuration comes from."""

    def state(self, netdev: str) -> DcbState:
        """Raises OSError (EOPNOTSUPP: the driver has no DCB)."""

    def close(self) -> None:
        """Gives the socket back."""


class KernelDcb:
    """The kernel's DCB."""

    def __init__(self) -> None:
        self._netlink = NetlinkClient(NETLINK_ROUTE)

    def state(self, netdev: str) -> DcbState:
        body = struct.pack("=BBH", 0, _CMD_IEEE_GET, 0) + attribute(_ATTR_IFNAME, netdev.encode() + b"\0")
        return parse_dcb(self._netlink.request(_RTM_GETDCB, body))

    def close(self) -> None:
        self._netlink.close()


def parse_dcb(answer: bytes) -> DcbState:
    """What an answer to DCB_CMD_IEEE_GET says; parts that are absent or of another length are left out."""
    found = dict(attributes(answer[4:]))
    parts = dict(attributes(found.get(_ATTR_IEEE, b"")))
    fields: dict[str, object] = {}
    pfc = parts.get(_IEEE_PFC, b"")
    if len(pfc) >= _PFC.size:
        capability, enabled, _, delay, *counts = _PFC.unpack_from(pfc)
        fields |= {
            "pfc_enabled": tuple(bool(enabled & 1 << priority) for priority in range(8)),
            "pfc_capability": capability,
            "pfc_delay": delay,
            "requests": tuple(counts[:8]),
            "indications": tuple(counts[8:]),
        }
    ets = parts.get(_IEEE_ETS, b"")
    if len(ets) >= 35:
        fields |= {
            "bandwidth_percent": tuple(ets[3:11]),
            "is_ets": tuple(algorithm == 2 for algorithm in ets[19:27]),
            "priority_to_class": tuple(ets[27:35]),
        }
    buffers = parts.get(_IEEE_BUFFER, b"")
    if len(buffers) >= _BUFFER.size:
        numbers = _BUFFER.unpack_from(buffers)
        fields |= {"priority_to_buffer": numbers[:8], "buffer_bytes": numbers[8:16]}
    dscp = {}
    for kind, payload in attributes(parts.get(_IEEE_APP_TABLE, b"")):
        if kind == _APP and len(payload) >= _APP_ENTRY.size:
            selector, priority, protocol = _APP_ENTRY.unpack_from(payload)
            if selector == _SELECTOR_DSCP:
                dscp[protocol] = priority
    return DcbState(**fields, dscp_to_priority=dscp)  # type: ignore[arg-type]
