"""What the kernel's tables say of the host's IPv4 routes."""

import ipaddress
import re
from collections.abc import Iterator

from fabricpulse.audit.host_reader import HostReader

_GATEWAY, _UP = 0x2, 0x1
_HEX = re.compile(r"[0-9A-Fa-f]{8}")
# Containers bring hundreds.
_MOST = 20_000


def _rows(text: str) -> Iterator[tuple[str, str, str, int, str]]:
    """(device, destination, gateway, flags, mask) of /proc/net/route."""
    for line in text.splitlines()[1:_MOST]:
        parts = line.split()
        if len(parts) < 8 or not all(_HEX.fullmatch(parts[i]) for i in (1, 2, 7)):
            continue
        if re.fullmatch(r"[0-9A-Fa-f]{4}", parts[3]):
            yield parts[0], parts[1], parts[2], int(parts[3], 16), parts[7]


def default_routes(host: HostReader) -> list[tuple[str, str]] | None:
    """(device, gateway) of each default route; None if the table cannot be read."""
    text = host.text("/proc/net/route")
    if text is None:
        return None
    return [
        (device, _address(gateway))
        for device, destination, gateway, flags, mask in _rows(text)
        if destination == mask == "00000000" and flags & _UP and flags & _GATEWAY
    ]


def shared_subnets(host: HostReader) -> list[tuple[str, ...]] | None:
    """The devices of each subnet that two or more devices are in; None if the table cannot be read."""
    text = host.text("/proc/net/route")
    if text is None:
        return None
    by_subnet: dict[tuple[str, str], set[str]] = {}
    for device, destination, _, flags, mask in _rows(text):
        if destination != "00000000" and mask != "FFFFFFFF" and flags & _UP and not flags & _GATEWAY:
            by_subnet.setdefault((destination, mask), set()).add(device)
    return [tuple(sorted(devices)) for _, devices in sorted(by_subnet.items()) if len(devices) > 1]


def bond_members(host: HostReader, device: str) -> list[str]:
    """The members of a bond, [] if the device is none."""
    return (host.text(f"/sys/class/net/{device}/bonding/slaves") or "").split()[:64]


def _address(digits: str) -> str:
    # In the host's byte order: little-endian on what GPU hosts have.
    return str(ipaddress.ip_address(bytes.fromhex(digits)[::-1]))
