"""Pause storms."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

CHECK = Check(
    id="pause-storm",
    category="back-end",
    severity="error",
    title="Pause storms",
    proves="No NIC has sent pause frames for so long that its watchdog had to end it.",
    how="tx_pause_storm_error_events of the driver's statistics.",
    fix=(
        "Find what keeps the host from taking packets: PCIe link, IOMMU, a hung GPU. Until then keep the "
        "NIC out of jobs."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    judged = False
    for netdev in host.backend:
        counts = host.statistics(netdev.name)
        if counts is None or "tx_pause_storm_error_events" not in counts:
            continue
        judged = True
        count = counts["tx_pause_storm_error_events"]
        if count:
            yield failed(f"{count} storms", netdev.name, tx_pause_storm_error_events=count)
        else:
            yield passed("none", netdev.name)
    if not judged:
        yield not_applicable("no driver counts them")
