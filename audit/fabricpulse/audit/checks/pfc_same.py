"""PFC on all NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome, unknown

CHECK = Check(
    id="pfc-same",
    category="back-end",
    severity="error",
    title="PFC on all NICs",
    proves=(
        "Priority flow control is on for the same priorities on all RoCE NICs of one model (board ID): one NIC without "
        "loses packets where the others pause."
    ),
    how="DCB configuration by rtnetlink (`dcb pfc show`).",
    fix="`dcb pfc set dev DEVICE prio-pfc 3:on` (or `mlnx_qos --pfc`), and the same on the switch port.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    roce = [port for port in host.ports if port.link_layer == "Ethernet" and port.netdev]
    states = {port.subject: host.dcb(port.netdev) for port in roce}
    values = {
        name: None
        if state is None or state.pfc_enabled is None
        else " ".join(str(p) for p, on in enumerate(state.pfc_enabled) if on) or "none"
        for name, state in states.items()
    }
    if roce and not any(values.values()):
        yield unknown("neither the drivers nor the kernel report it")
        return
    yield from same_on_all(values, "PFC", "no RoCE port", host.boards)
