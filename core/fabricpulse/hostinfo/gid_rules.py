"""GIDs, and which of them NCCL uses.

Pure. NCCL's choice is that of `ncclIbGetGidIndex` in NCCL 2.30.7 (src/transport/net_ib/connect.cc; the same since the
search came with 2.21): on RoCE an index set by NCCL_IB_GID_INDEX is taken as it is; otherwise the search begins with
entry 0, goes through all others in order and moves to an entry

* of the wanted address family (NCCL_IB_ADDR_FAMILY) and range (NCCL_IB_ADDR_RANGE) if the kept one is of the other
  family: then neither the RoCE version nor whether the entry is link-local or even empty matters;
* or else of that family and range, valid, of the wanted RoCE version (NCCL_IB_ROCE_VERSION_NUM), if the kept one is of
  another version or not valid.

A range of the other family, or without a prefix length, is ignored by NCCL. InfiniBand ports use index 0, or index 1
(NCCL_IB_ROUTABLE_FLID_GID_INDEX, whose default this is) if the GID there carries a FLID.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Gid:
    """One entry of a GID table. value : 16 bytes. kind : "IB/RoCE v1", "RoCE v2" or empty."""

    value: bytes
    kind: str
    netdev: str

    @cached_property
    def text(self) -> str:
        """As sysfs writes it: eight groups of four hexadecimal digits."""
        digits = self.value.hex()
        return ":".join(digits[i : i + 4] for i in range(0, 32, 4))

    @property
    def is_ipv4(self) -> bool:
        """IPv4-mapped, `::ffff:a.b.c.d`, unicast or multicast."""
        head = self.value[:4]
        return self.value[4:12] == b"\0\0\0\0\0\0\xff\xff" and head in (b"\0\0\0\0", b"\xff\x0e\0\0")

    @property
    def is_valid(self) -> bool:
        """Configured, and not link-local."""
        tail = self.value[4:]
        if self.value[:4] in (b"\0\0\0\0", b"\xfe\x80\0\0") and not any(tail):
            return False
        return not self.value.startswith(b"\xfe\x80\0\0\0\0\0\0")

    @property
    def address_family(self) -> Literal["ipv4", "ipv6", "link_local"]:
        """Of the address that the GID stands for; link_local: made from the MAC address, valid on one link."""
        if self.is_ipv4:
            return "ipv4"
        return "link_local" if self.value.startswith(b"\xfe\x80") else "ipv6"

    @property
    def roce_version(self) -> int:
        """1, 2, or 0 if the type does not show it."""
        if self.kind == "RoCE v2":
            return 2
        return 1 if "v1" in self.kind else 0

    @property
    def flid(self) -> int:
        """The local identifier that a routable InfiniBand GID carries in bytes 4 and 5; 0 if none."""
        return int.from_bytes(self.value[4:6], "big")


EMPTY = Gid(bytes(16), "", "")


@dataclass(frozen=True)
class NcclRules:
    """NCCL's settings. gid_index : -1 to search. address_range : None for any."""

    gid_index: int = -1
    address_family: Literal["AF_INET", "AF_INET6"] = "AF_INET"
    address_range: IPNetwork | None = None
    roce_version: int = 2


def parse_gid(text: bytes) -> bytes | None:
    """The 16 bytes of `fe80:0000:...`, or None if it is no GID."""
    digits = text.replace(b":", b"")
    if len(digits) != 32 or text.count(b":") != 7:
        return None
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        return None


def nccl_index(table: Mapping[int, Gid], size: int, link_layer: str, rules: NcclRules) -> int | None:
    """The index that NCCL would use, None if the entry there is empty (NCCL would fail to connect).

    table : the entries that are not zero, by index. size : length of the table.
    """
    if link_layer == "InfiniBand":
        index = 1 if size > 1 and table.get(1, EMPTY).flid else 0
    elif rules.gid_index >= 0:
        index = rules.gid_index
    else:
        index = 0
        # An empty entry counts as IPv6, so only a search for IPv6 can end at one; otherwise they are left out.
        searched = range(size) if rules.address_family == "AF_INET6" else sorted(table)
        for candidate in searched:
            if 0 < candidate < size and _is_better(
                table.get(index, EMPTY), table.get(candidate, EMPTY), rules
            ):
                index = candidate
    return index if index in table else None


def _is_better(kept: Gid, candidate: Gid, rules: NcclRules) -> bool:
    wants_ipv4 = rules.address_family == "AF_INET"
    fits = candidate.is_ipv4 == wants_ipv4
    in_range = _in_range(candidate, rules.address_range, wants_ipv4=wants_ipv4)
    if candidate.is_ipv4 != kept.is_ipv4 and fits and in_range:
        return True
    if not fits or not in_range or not candidate.is_valid:
        return False
    return (kept.roce_version != candidate.roce_version or not kept.is_valid) and (
        candidate.roce_version == rules.roce_version
    )


def _in_range(gid: Gid, network: IPNetwork | None, *, wants_ipv4: bool) -> bool:
    if network is None or (network.version == 4) != wants_ipv4:
        return True
    # NCCL compares the last four bytes for IPv4, whatever is before them; the family is asked for apart.
    return ipaddress.ip_address(gid.value[12:] if wants_ipv4 else gid.value) in network


def roce_v2_index(table: Mapping[int, Gid]) -> int | None:
    """The lowest index of an IPv4-mapped RoCE v2 GID, or else of any RoCE v2 GID that is not link-local, or of any."""
    candidates = [(index, gid) for index, gid in sorted(table.items()) if gid.roce_version == 2]
    for wanted in (lambda gid: gid.is_ipv4, lambda gid: gid.is_valid, lambda gid: True):
        for index, gid in candidates:
            if wanted(gid):
                return index
    return None
