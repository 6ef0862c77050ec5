"""Links of the back end."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="nic-link-up",
    category="back-end",
    severity="error",
    title="Links of the back end",
    proves="Every NIC of the back end is up.",
    how=(
        "operstate of /sys/class/net; of the rails that the fleet's membership lists, also that the NIC "
        "is there."
    ),
    fix=(
        "Check the cable, the module and the switch port; `ip link set DEVICE up` where it is switched off."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    there = {netdev.name for netdev in host.backend}
    for name in sorted(set(host.rails) - there):
        yield failed("the host has no such NIC", name, network=host.rails[name])
    if not there - {port.netdev for port in host.ports if port.link_layer == "InfiniBand"} and not host.rails:
        yield not_applicable("no back-end NIC")
    # IPoIB that nobody has set up is down while the port carries what jobs send: `rdma-port-active` judges the port.
    ipoib = {port.netdev for port in host.ports if port.link_layer == "InfiniBand"} - set(host.rails)
    for netdev in host.backend:
        if netdev.name in ipoib:
            continue
        state = host.netdev_text(netdev, "operstate")
        if state is None:
            yield unknown("its state cannot be read", netdev.name)
        elif state == "up" or (state == "unknown" and not netdev.pci_path):
            yield passed("up", netdev.name)
        else:
            yield failed(state, netdev.name, operstate=state, carrier=host.netdev_text(netdev, "carrier"))
