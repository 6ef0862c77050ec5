"""Links that flap."""

from collections.abc import Iterator
from pathlib import Path

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

MOST = 10

CHECK = Check(
    id="link-flaps",
    category="back-end",
    severity="warning",
    title="Links that flap",
    proves="No link of the back end has gone down more than ten times since the host started.",
    how="carrier_down_count of /sys/class/net, link_downed of InfiniBand ports.",
    fix="Clean or change the cable or module; see the runbook of FabricLinkFlapping.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    judged = False
    # The netdev of an InfiniBand port (IPoIB) may be off while the port is used.
    ipoib = {port.netdev for port in host.ports if port.link_layer == "InfiniBand"}
    for netdev in host.backend:
        if netdev.name in ipoib:
            continue
        count = host.number(f"/sys/class/net/{netdev.name}/carrier_down_count")
        if count is not None:
            judged = True
            yield evaluate(netdev.name, count)
    for port in host.ports:
        if port.link_layer == "InfiniBand":
            count = host.number(Path(f"{port.device.path}/ports/{port.number}/counters/link_downed"))
            if count is not None:
                judged = True
                yield evaluate(port.subject, count)
    if not judged:
        yield not_applicable("no back-end NIC that counts them")


def evaluate(subject: str, count: int) -> Outcome:
    """Fails above MOST."""
    if count > MOST:
        return failed(f"down {count} times", subject, count=count)
    return passed(f"down {count} times", subject)
