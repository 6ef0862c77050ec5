"""InfiniBand subnet."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="ib-subnet",
    category="back-end",
    severity="error",
    title="InfiniBand subnet",
    proves="Every InfiniBand port has an address from a subnet manager.",
    how="lid and sm_lid of the port.",
    fix="Start a subnet manager (`opensm`, UFM) or find why this port cannot reach it.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    infiniband = [port for port in host.ports if port.link_layer == "InfiniBand"]
    if not infiniband:
        yield not_applicable("no InfiniBand port")
    for port in infiniband:
        lid, manager = host.port_text(port, "lid"), host.port_text(port, "sm_lid")
        if lid is None or manager is None:
            yield unknown("its addresses cannot be read", port.subject)
        elif lid in ("0x0", "0xffff") or manager == "0x0":
            yield failed(f"lid {lid}, subnet manager {manager}", port.subject, lid=lid, sm_lid=manager)
        else:
            yield passed(f"lid {lid}", port.subject)
