"""What the kernel's tables say of the host's IPv4 routes."""

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

_REJECT, _GATEWAY, _UP = 0x200, 0x2, 0x1
_HEX = re.compile(r"[0-9A-Fa-f]{8}")
# Containers bring hundreds.
_MOST = 20_000


class Reads(Protocol):
    """What is read of a host here: `HostReader`, which itself asks what its front end is."""

    def text(self, path: str | Path) -> str | None:
        """A file, None if it cannot be read."""

    def names(self, path: str | Path) -> list[str]:
        """What a folder holds."""


def _rows(text: str) -> Iterator[tuple[str, str, str, int, str]]:
    """(device, destination, gateway, flags, mask) of /proc/net/route."""
    for line in text.splitlines()[1:_MOST]:
        parts = line.split()
        if len(parts) < 8 or not all(_HEX.fullmatch(parts[i]) for i in (1, 2, 7)):
            continue
        if re.fullmatch(r"[0-9A-Fa-f]{4}", parts[3]):
            yield parts[0], parts[1], parts[2], int(parts[3], 16), parts[7]


def default_routes(host: Reads) -> list[tuple[str, str]] | None:
    """(device, gateway) of each default route, 0.0.0.0 where it has none; None if the table cannot be read."""
    text = host.text("/proc/net/route")
    if text is None:
        return None
    return [
        (device, _address(gateway))
        for device, destination, gateway, flags, mask in _rows(text)
        if destination == mask == "00000000" and flags & _UP and not flags & _REJECT
    ]


def default_devices6(host: Reads) -> list[str]:
    """Devices of the default routes of IPv6 (/proc/net/ipv6_route)."""
    found = set()
    for line in (host.text("/proc/net/ipv6_route") or "").splitlines()[:_MOST]:
        parts = line.split()
        if len(parts) == 10 and set(parts[0]) == {"0"} and parts[1] == "00" and _HEX.fullmatch(parts[8]):
            flags = int(parts[8], 16)
            if flags & _UP and not flags & _REJECT and parts[9] != "lo":
                found.add(parts[9])
    return sorted(found)


def front_end(host: Reads) -> frozenset[str]:
    """The netdevs that the default route goes through, and those below them: members of bonds, what a VLAN is on."""
    found: set[str] = set()
    level = {device for device, _ in default_routes(host) or ()} | set(default_devices6(host))
    while level:
        found |= level
        below = {
            name.removeprefix("lower_")
            for device in level
            for name in host.names(f"/sys/class/net/{device}")
            if name.startswith("lower_")
        }
        level = (below | {member for device in level for member in bond_members(host, device)}) - found
    return frozenset(found)


def shared_subnets(host: Reads) -> list[tuple[str, ...]] | None:
    """The devices of each subnet that two or more devices are in; None if the table cannot be read. Link-local and
    multicast routes, which every NIC may have, are none."""
    text = host.text("/proc/net/route")
    if text is None:
        return None
    by_subnet: dict[tuple[str, str], set[str]] = {}
    for device, destination, _, flags, mask in _rows(text):
        if destination != "00000000" and mask != "FFFFFFFF" and flags & _UP and not flags & _GATEWAY:
            first = int(destination, 16)
            if first & 0xFFFF == 0xFEA9 or first & 0xF0 == 0xE0:
                continue
            by_subnet.setdefault((destination, mask), set()).add(device)
    return [tuple(sorted(devices)) for _, devices in sorted(by_subnet.items()) if len(devices) > 1]


def bond_members(host: Reads, device: str) -> list[str]:
    """The members of a bond, [] if the device is none."""
    return (host.text(f"/sys/class/net/{device}/bonding/slaves") or "").split()[:64]


def _address(digits: str) -> str:
    # In the host's byte order: little-endian on what GPU hosts have.
    return str(ipaddress.ip_address(bytes.fromhex(digits)[::-1]))
