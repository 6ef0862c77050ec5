"""Default gateway."""

from collections.abc import Iterator

from fabricpulse.audit.check import Check
from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown
from fabricpulse.audit.routes import default_routes

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
    if not routes:
        yield failed("no default route")
    for device, gateway in routes:
        state = host.netdev_text(device, "operstate")
        neighbours = [line.split() for line in (host.text("/proc/net/arp") or "").splitlines()[1:]]
        flags = [row[2] for row in neighbours if len(row) >= 6 and row[0] == gateway and row[5] == device]
        if state not in (None, "up", "unknown"):
            yield failed(f"{device} is {state}", device, gateway=gateway, operstate=state)
        elif flags and all(flag == "0x0" for flag in flags):
            yield failed(f"gateway {gateway} does not answer ARP", device, gateway=gateway)
        else:
            yield passed(f"{gateway} through {device}", device)
