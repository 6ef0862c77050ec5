"""By which NIC the host was reached: that which has the local address of the connection. Linux."""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fabricpulse.audit.model import FrontEnd

_SIOCGIFADDR = 0x8915
# Of net_device.flags.
_LOOPBACK, _POINT_TO_POINT, _NO_ARP = 0x8, 0x10, 0x80


def front_end_of(address: str, sysfs: Path = Path("/sys")) -> FrontEnd | None:
    """Of this address of the host; None for the loopback, where no NIC is known to have it, and where a device has it
    that sends nothing: hosts that speak BGP have their address on `lo` or on a dummy device."""
    try:
        wanted = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(wanted, "ipv4_mapped", None)
    wanted = mapped or wanted
    if wanted.is_loopback or wanted.is_link_local:
        return None
    for device, own in _addresses6() if wanted.version == 6 else _addresses4():
        if own == wanted:
            with suppress(OSError, ValueError):
                folder = sysfs / "class/net" / device
                mtu = int((folder / "mtu").read_text(encoding="ascii"))
                flags = int((folder / "flags").read_text(encoding="ascii"), 16)
                # Tunnels, too, have no neighbours, and do send.
                if flags & _LOOPBACK or flags & (_NO_ARP | _POINT_TO_POINT) == _NO_ARP:
                    return None
                return FrontEnd(device, str(wanted), mtu)
    return None


def _addresses4() -> Iterator[tuple[str, object]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        for _, device in socket.if_nameindex():
            # struct ifreq: name, then sockaddr_in.
            with suppress(OSError):
                answer = fcntl.ioctl(link, _SIOCGIFADDR, struct.pack("16s24x", device.encode()))
                yield device, ipaddress.IPv4Address(answer[20:24])


def _addresses6() -> Iterator[tuple[str, object]]:
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, _, _, device = line.split()
            yield device, ipaddress.IPv6Address(int(digits, 16))
