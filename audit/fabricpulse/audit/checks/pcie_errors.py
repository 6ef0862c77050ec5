"""PCIe errors of NICs and GPUs."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="pcie-errors",
    category="node",
    severity="warning",
    title="PCIe errors of NICs and GPUs",
    proves="No PCIe transaction of an RDMA NIC or GPU has been lost since the host started.",
    how=(
        "TOTAL_ERR_FATAL and TOTAL_ERR_NONFATAL in aer_dev_fatal and aer_dev_nonfatal below "
        "/sys/bus/pci/devices."
    ),
    fix="Seat the card and its riser anew; change the card if the counters grow again.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    devices = {port.device.pci_address: port.subject for port in host.ports if port.device.pci_address}
    devices |= {gpu.address: gpu.address for gpu in host.gpus}
    if not devices:
        yield not_applicable("no RDMA NIC or GPU on PCI")
    for address, subject in sorted(devices.items()):
        counts = {}
        for kind in ("fatal", "nonfatal"):
            text = host.text(f"/sys/bus/pci/devices/{address}/aer_dev_{kind}") or ""
            found = re.search(rf"^TOTAL_ERR_{kind.upper()} ([0-9]{{1,19}})$", text, re.MULTILINE)
            if found:
                counts[kind] = int(found[1])
        if not counts:
            yield unknown("the kernel does not count its PCIe errors", subject)
        elif any(counts.values()):
            text = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            yield failed(f"PCIe errors: {text}", subject, pci_address=address, **counts)
        else:
            yield passed("none", subject)
