"""Default gateway."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.routes import default_devices6, default_routes
from fabricpulse.audit.model import Outcome, failed, passed, unknown

CHECK = Check(
    id="default-gateway",
    category="front-end",
    severity="error",
    title="Default gateway",
    proves="The host has a default route through a NIC that is up, and the gateway answers ARP.",
    how="/proc/net/route and /proc/net/arp.",
    fix="Correct the network configuration, the cable or the switch port of the NIC named.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    routes = default_routes(host)
    if routes is None:
        yield unknown("/proc/net/route cannot be read")
        return
    ipv6 = default_devices6(host)
    if not routes and not ipv6:
        yield failed("no default route")
    elif not routes:
        # The kernel has no file with the neighbours of IPv6.
        yield unknown("the default route is one of IPv6, whose gateway is not judged", ipv6[0])
    neighbours = [line.split() for line in (host.text("/proc/net/arp") or "").splitlines()[1:]]
    for device, gateway in routes:
        state = host.netdev_text(device, "operstate")
        silent = gateway == "0.0.0.0" or has_no_arp(host, device)  # noqa: S104 - of a route without a gateway
        flags = [row[2] for row in neighbours if len(row) >= 6 and row[0] == gateway and row[5] == device]
        if state not in (None, "up", "unknown"):
            yield failed(f"{device} is {state}", device, gateway=gateway, operstate=state)
        elif flags and all(flag == "0x0" for flag in flags):
            yield failed(f"gateway {gateway} does not answer ARP", device, gateway=gateway)
        elif state is None:
            yield unknown(f"the state of {device} cannot be read", device, gateway=gateway)
        elif silent:
            yield passed(f"through {device}, which has no gateway to answer", device)
        elif not flags:
            yield unknown(
                f"gateway {gateway} is not in the ARP table: no packet went there yet",
                device,
                gateway=gateway,
            )
        else:
            yield passed(f"{gateway} through {device}", device)


def has_no_arp(host: HostReader, device: str) -> bool:
    """Whether the link is one without ARP, a tunnel say (IFF_NOARP)."""
    found = host.value(f"/sys/class/net/{device}/flags") or ""
    return bool(re.fullmatch(r"0x[0-9a-f]{1,8}", found) and int(found, 16) & 0x80)
