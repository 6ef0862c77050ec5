"""Traffic classes on all NICs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.same import same_on_all
from fabricpulse.audit.model import Outcome, unknown

CHECK = Check(
    id="ets-same",
    category="back-end",
    severity="error",
    title="Traffic classes on all NICs",
    proves="All RoCE NICs of one model (board ID) put priorities into the same traffic classes with the same shares.",
    how="The ETS part of the DCB configuration by rtnetlink (`dcb ets show`).",
    fix="`dcb ets set dev DEVICE …` (or `mlnx_qos --prio_tc --tcbw`) as on the other NICs.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    roce = [port for port in host.ports if port.link_layer == "Ethernet" and port.netdev]
    states = {port.subject: host.dcb(port.netdev) for port in roce}
    values = {
        name: None
        if state is None or not state.priority_to_class
        else " ".join(f"{p}:{c}" for p, c in enumerate(state.priority_to_class))
        + " / "
        + " ".join(map(str, state.bandwidth_percent))
        for name, state in states.items()
    }
    if roce and not any(values.values()):
        yield unknown("neither the drivers nor the kernel report them")
        return
    yield from same_on_all(values, "traffic classes", "no RoCE port", host.boards)
