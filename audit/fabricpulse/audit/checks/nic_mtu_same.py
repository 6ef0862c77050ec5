"""MTU on all NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome

CHECK = Check(
    id="nic-mtu-same",
    category="back-end",
    severity="error",
    title="MTU on all NICs",
    proves="All NICs of the back end that are of one model (board ID) have the same MTU.",
    how="mtu of /sys/class/net.",
    fix="Set the MTU in the network configuration of the NIC named, and on its switch port.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    values = {netdev.name: host.netdev_text(netdev, "mtu") for netdev in host.backend}
    yield from same_on_all(values, "MTU", "no back-end NIC", host.boards)
