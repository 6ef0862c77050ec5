"""Driver of RDMA NICs."""

import os
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.routes import bond_members
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

CHECK = Check(
    id="nic-driver",
    category="back-end",
    severity="error",
    title="Driver of RDMA NICs",
    proves="Every network function that could do RDMA has its driver, and the driver an RDMA device.",
    how=(
        "PCI functions of class 0x0200 and 0x0207 of NVIDIA and AMD Pensando, their link "
        "`driver` and their folder `infiniband`."
    ),
    fix=(
        "Load the driver (`mlx5_core` and `mlx5_ib`, `ionic_rdma`); read the kernel log for why it let go of "
        "the function."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    base = "/sys/bus/pci/devices"
    seen = False
    for address in host.names(base):
        path = f"{base}/{address}"
        kind = (host.text(f"{path}/class") or "")[:6]
        if host.text(f"{path}/vendor") not in ("0x15b3", "0x1dd8") or kind not in ("0x0200", "0x0207"):
            continue
        if os.path.lexists(host.place(f"{path}/physfn")):
            continue
        seen = True
        driver, devices = host.link_name(f"{path}/driver"), host.names(f"{path}/infiniband")
        subject = (host.names(f"{path}/net") or [address])[0]
        if not driver:
            yield failed("no driver", subject, pci_address=address)
        elif driver == "vfio-pci":
            yield passed("given to a virtual machine (vfio-pci)", subject)
        elif not devices and (bond := host.link_name(f"/sys/class/net/{subject}/master")):
            # RoCE LAG: the ports of a bond have one RDMA device together, that of the first.
            others = [name for name in bond_members(host, bond) if name != subject]
            if any(host.names(f"/sys/class/net/{name}/device/infiniband") for name in others):
                yield passed(f"{driver}, its RDMA device is that of {bond}", subject)
            else:
                yield failed(f"{driver} without an RDMA device", subject, pci_address=address, driver=driver)
        elif not devices:
            yield failed(f"{driver} without an RDMA device", subject, pci_address=address, driver=driver)
        else:
            yield passed(driver, subject)
    if not seen:
        yield not_applicable("no PCI function of a maker of RDMA NICs")
