"""PCIe Access Control Services on switches."""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# PCI Express base specification, 7.7.8: capability, and request redirect, completion redirect, upstream forwarding.
ACS_CAPABILITY = 0x000D
REDIRECT = 0x0004 | 0x0008 | 0x0010

CHECK = Check(
    id="pcie-acs",
    category="node",
    severity="error",
    title="PCIe Access Control Services on switches",
    proves=(
        "No PCIe bridge above a NIC or GPU sends transfers between them up to the root: with ACS on, "
        "GPUDirect takes half the bandwidth or less."
    ),
    how=(
        "The ACS capability in /sys/bus/pci/devices/BRIDGE/config of all bridges above RDMA NICs and "
        "GPUs; only root sees it."
    ),
    fix=(
        "Switch ACS off in the firmware, or by `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` at each boot "
        "(NCCL's documentation, `PCI Access Control Services`)."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    bridges: dict[str, None] = {}
    for address in sorted(
        {port.device.pci_address for port in host.ports} | {gpu.address for gpu in host.gpus}
    ):
        if address:
            path = os.path.realpath(host.place(f"/sys/bus/pci/devices/{address}"))
            bridges |= dict.fromkeys(PCI.findall(path)[:-1])
    if not bridges or not host.gpus:
        yield not_applicable("no GPU behind a PCIe bridge")
        return
    unseen = []
    for bridge in bridges:
        control = acs_control(config_space(host.place(f"/sys/bus/pci/devices/{bridge}/config")))
        if control is None:
            unseen.append(bridge)
        elif control & REDIRECT:
            yield failed(f"ACS is on (control {control:#06x})", bridge, control=f"{control:#06x}")
        else:
            yield passed("off", bridge)
    if unseen:
        yield unknown(
            f"configuration of {len(unseen)} bridges cannot be read in full; run as root", bridges=unseen[0]
        )


def config_space(path: Path) -> bytes:
    """The configuration of a function: 4,096 bytes for root, 64 for others, empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def acs_control(config: bytes) -> int | None:
    """The ACS control register, 0 for a function without the capability, None if the space is not whole."""
    if len(config) < 4096:
        return None
    offset = 0x100
    # 48 bits of capability each at least: a list in a circle ends.
    for _ in range(960):
        header = struct.unpack_from("<I", config, offset)[0]
        if header == 0xFFFFFFFF:
            return None  # what a function reads as that does not answer
        if header & 0xFFFF == ACS_CAPABILITY and offset + 8 <= len(config):
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset = header >> 20 & 0xFFC
        if offset < 0x100:
            return 0
    return 0
