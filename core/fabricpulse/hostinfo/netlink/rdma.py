"""RDMA netlink: what queue pairs and other resources exist, and counters that sysfs does not have (rdma_netlink.h).

Optional congestion-control counters (`rdma statistic set link DEV/PORT optional-counters ...`) are never in sysfs.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from fabricpulse.hostinfo.netlink.attributes import attribute, attributes
from fabricpulse.hostinfo.netlink.request import NETLINK_RDMA, NetlinkClient

_NLDEV = 5 << 10
_GET, _RES_GET, _RES_QP_GET, _STAT_GET = 1, 9, 10, 17
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_SUMMARY, _SUMMARY_ENTRY, _SUMMARY_NAME, _SUMMARY_CURRENT = 15, 16, 17, 18
_QP, _QP_ENTRY, _TYPE, _STATE = 19, 20, 26, 27
_COUNTERS, _COUNTER_ENTRY, _COUNTER_NAME, _COUNTER_VALUE = 80, 81, 82, 83

# enum ib_qp_type and enum ib_qp_state.
_TYPES = {
    0: "smi",
    1: "gsi",
    2: "rc",
    3: "uc",
    4: "ud",
    8: "raw_packet",
    9: "xrc_ini",
    10: "xrc_tgt",
    255: "driver",
}
_STATES = ("reset", "init", "rtr", "rts", "sqd", "sqe", "err")


class RdmaSource(Protocol):
    """Where RDMA resources come from; all methods raise OSError."""

    def indices(self) -> Mapping[str, int]:
        """Device name -> index."""

    def resources(self, index: int) -> Mapping[str, int]:
        """Resource (qp, cq, mr, pd, cm_id, ctx, srq) -> how many exist."""

    def queue_pairs(self, index: int) -> Mapping[tuple[str, str], int]:
        """(type, state) -> how many."""

    def counters(self, index: int, port: int) -> Mapping[str, int]:
        """The port's counters by name, with the optional ones that are switched on."""

    def close(self) -> None:
        """Gives the socket back."""


class KernelRdma:
    """The kernel's RDMA netlink."""

    def __init__(self) -> None:
        self._netlink = NetlinkClient(NETLINK_RDMA)

    def indices(self) -> Mapping[str, int]:
        return parse_indices(self._netlink.dump(_NLDEV | _GET, b""))

    def resources(self, index: int) -> Mapping[str, int]:
        return parse_resources(self._netlink.request(_NLDEV | _RES_GET, _device(index)))

    def queue_pairs(self, index: int) -> Mapping[tuple[str, str], int]:
        return parse_queue_pairs(self._netlink.dump(_NLDEV | _RES_QP_GET, _device(index)))

    def counters(self, index: int, port: int) -> Mapping[str, int]:
        body = _device(index) + attribute(_PORT_INDEX, struct.pack("=I", port))
        return parse_counters(self._netlink.request(_NLDEV | _STAT_GET, body))

    def close(self) -> None:
        self._netlink.close()


def _device(index: int) -> bytes:
    return attribute(_DEV_INDEX, struct.pack("=I", index))


def _name(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode("utf-8", "replace")


def parse_indices(bodies: list[bytes]) -> dict[str, int]:
    """Device name -> index, of the messages of a device dump."""
    found = {}
    for body in bodies:
        parts = dict(attributes(body))
        if len(parts.get(_DEV_INDEX, b"")) == 4 and _DEV_NAME in parts:
            found[_name(parts[_DEV_NAME])] = struct.unpack("=I", parts[_DEV_INDEX])[0]
    return found


def parse_resources(body: bytes) -> dict[str, int]:
    """Resource -> count, of an answer to RES_GET."""
    return _named_u64(
        dict(attributes(body)).get(_SUMMARY, b""), _SUMMARY_ENTRY, _SUMMARY_NAME, _SUMMARY_CURRENT
    )


def parse_counters(body: bytes) -> dict[str, int]:
    """Counter -> value, of an answer to STAT_GET."""
    return _named_u64(
        dict(attributes(body)).get(_COUNTERS, b""), _COUNTER_ENTRY, _COUNTER_NAME, _COUNTER_VALUE
    )


def _named_u64(table: bytes, entry: int, name: int, value: int) -> dict[str, int]:
    found = {}
    for kind, payload in attributes(table):
        parts = dict(attributes(payload)) if kind == entry else {}
        if name in parts and len(parts.get(value, b"")) == 8:
            found[_name(parts[name])] = struct.unpack("=Q", parts[value])[0]
    return found


def parse_queue_pairs(bodies: list[bytes]) -> dict[tuple[str, str], int]:
    """(type, state) -> count, of the messages of a dump of queue pairs."""
    found: Counter[tuple[str, str]] = Counter()
    for body in bodies:
        for kind, payload in attributes(dict(attributes(body)).get(_QP, b"")):
            parts = dict(attributes(payload)) if kind == _QP_ENTRY else {}
            if parts.get(_TYPE) and parts.get(_STATE):
                state = parts[_STATE][0]
                name = _STATES[state] if state < len(_STATES) else "other"
                found[(_TYPES.get(parts[_TYPE][0], "other"), name)] += 1
    return dict(found)
