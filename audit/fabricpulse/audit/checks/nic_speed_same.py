"""Speed on all NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome

CHECK = Check(
    id="nic-speed-same",
    category="back-end",
    severity="error",
    title="Speed on all NICs",
    proves=(
        "All NICs of the back end that are up and of one model (board ID) have the same speed: a NIC at half rate "
        "halves the job."
    ),
    how="speed of /sys/class/net for Ethernet, rate of the port for InfiniBand.",
    fix=(
        "Check the cable or module (a breakout cable, a module of another kind) and the speed of the "
        "switch port."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    values = speeds(host)
    yield from same_on_all(values, "speed", "no back-end NIC that is up", host.boards)


def speeds(host: HostReader) -> dict[str, str | None]:
    """Of the NICs that are up, as sysfs writes it."""
    found: dict[str, str | None] = {}
    for netdev in host.backend:
        if host.netdev_text(netdev, "operstate") == "up":
            speed = host.netdev_text(netdev, "speed")
            # A virtual link has none.
            if speed is not None and speed.isdigit():
                found[netdev.name] = f"{speed} Mb/s"
    for port in host.ports:
        if port.link_layer == "InfiniBand" and (host.port_text(port, "state") or "").startswith("4:"):
            found[port.subject] = host.port_text(port, "rate")
    return found
