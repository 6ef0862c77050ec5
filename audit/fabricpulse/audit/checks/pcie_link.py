"""PCIe link of NICs and GPUs."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="pcie-link",
    category="node",
    severity="error",
    title="PCIe link of NICs and GPUs",
    proves="Each RDMA NIC and GPU has the width and the speed on PCIe that it and its slot can have.",
    how=(
        "current_link_width and current_link_speed against the smaller maximum of the device and of the "
        "bridge above it, in /sys/bus/pci/devices. The speed of an idle GPU is not judged: it saves "
        "power."
    ),
    fix=(
        "Seat the card or riser anew; if that does not help, change the card, then the slot. Read `pcie- "
        "errors` of the same device."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    devices = {
        port.device.pci_address: (port.subject, True) for port in host.ports if port.device.pci_address
    }
    devices |= {gpu.address: (gpu.address, False) for gpu in host.gpus}
    if not devices:
        yield not_applicable("no RDMA NIC or GPU on PCI")
    for address, (subject, judge_speed) in sorted(devices.items()):
        own = host.place(f"/sys/bus/pci/devices/{address}")
        above = own.resolve().parent
        width = host.number(own / "current_link_width")
        speed = giga_transfers(host.text(own / "current_link_speed"))
        widths = [n for n in (host.number(at / "max_link_width") for at in (own, above)) if n and n < 64]
        speeds = [n for n in (giga_transfers(host.text(at / "max_link_speed")) for at in (own, above)) if n]
        if not width or not speed or not widths or not speeds or width >= 63:
            yield unknown("its PCIe link is not reported", subject, pci_address=address)
            continue
        evidence = {"pci_address": address, "now": f"x{width} {speed:g} GT/s"}
        evidence["attainable"] = f"x{min(widths)} {min(speeds):g} GT/s"
        if width < min(widths):
            yield failed(f"x{width} of x{min(widths)}", subject, **evidence)
        elif judge_speed and speed < min(speeds):
            yield failed(f"{speed:g} of {min(speeds):g} GT/s", subject, **evidence)
        else:
            yield passed(f"x{width} {speed:g} GT/s", subject)


def giga_transfers(text: str | None) -> float | None:
    """32.0 of "32.0 GT/s PCIe", None if it is no speed."""
    found = re.match(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s", text or "")
    return float(found[1]) if found else None
