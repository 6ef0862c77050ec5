"""IOMMU translation of NICs and GPUs."""

import os
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="iommu-passthrough",
    category="node",
    severity="error",
    title="IOMMU translation of NICs and GPUs",
    proves=(
        "No IOMMU translates what NICs and GPUs do: translation costs bandwidth, and breaks transfers "
        "straight between them."
    ),
    how=(
        "The type of each device's group in /sys/bus/pci/devices/ADDRESS/iommu_group; `identity` or no "
        "group is right."
    ),
    fix=(
        "Boot with `iommu=pt` (`intel_iommu=on iommu=pt`, `amd_iommu=on iommu=pt`), or switch the IOMMU "
        "off in the firmware."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    devices = {port.device.pci_address: port.subject for port in host.ports if port.device.pci_address}
    devices |= {gpu.address: gpu.address for gpu in host.gpus}
    if not devices:
        yield not_applicable("no RDMA NIC or GPU on PCI")
    for address, subject in sorted(devices.items()):
        group = f"/sys/bus/pci/devices/{address}/iommu_group"
        kind = host.text(f"{group}/type")
        if host.link_name(f"/sys/bus/pci/devices/{address}/driver") == "vfio-pci":
            yield not_applicable("given to a virtual machine (vfio-pci)", subject)
        elif kind is not None and kind != "identity":
            yield failed(f"translated by the IOMMU ({kind})", subject, type=kind, pci_address=address)
        elif kind is None and os.path.lexists(host.place(group)):
            yield unknown("the type of its IOMMU group cannot be read", subject, pci_address=address)
        else:
            yield passed(kind or "no IOMMU", subject)
