"""State of RDMA ports."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="rdma-port-active",
    category="back-end",
    severity="error",
    title="State of RDMA ports",
    proves="Every RDMA port of the back end is active.",
    how="state and phys_state of /sys/class/infiniband/DEVICE/ports/PORT.",
    fix="Check the cable, the module and the switch port; on InfiniBand also that a subnet manager runs.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if not host.ports:
        yield not_applicable("no RDMA device")
    for port in host.ports:
        state, physical = host.port_text(port, "state"), host.port_text(port, "phys_state")
        if state is None:
            yield unknown("its state cannot be read", port.subject, rdma_device=port.device.name)
        elif state.startswith("4:"):
            yield passed("active", port.subject)
        else:
            text = f"{state.partition(': ')[2] or state} ({(physical or '?').partition(': ')[2]})"
            yield failed(text, port.subject, state=state, phys_state=physical, rdma_device=port.device.name)
