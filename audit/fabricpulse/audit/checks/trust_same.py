"""Trust and DSCP map on all NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome, unknown

CHECK = Check(
    id="trust-same",
    category="back-end",
    severity="error",
    title="Trust and DSCP map on all NICs",
    proves=(
        "All RoCE NICs of one model (board ID) trust the same field, DSCP or the VLAN's priority, and map DSCP to "
        "the same priorities."
    ),
    how="The DSCP entries of the DCB application table by rtnetlink (`dcb app show`).",
    fix="`mlnx_qos -i DEVICE --trust dscp`, or `dcb app replace dev DEVICE dscp-prio …`.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    roce = [port for port in host.ports if port.link_layer == "Ethernet" and port.netdev]
    states = {port.subject: host.dcb(port.netdev) for port in roce}
    values = {
        name: None
        if state is None
        else ("DSCP " + " ".join(f"{d}:{p}" for d, p in sorted(state.dscp_to_priority.items())))
        if state.dscp_to_priority
        else "priority"
        for name, state in states.items()
    }
    if roce and not any(values.values()):
        yield unknown("neither the drivers nor the kernel report it")
        return
    yield from same_on_all(values, "trust", "no RoCE port", host.boards)
