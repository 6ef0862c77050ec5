"""Driver of GPUs."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

DRIVERS = {
    "nvidia": ("nvidia", "vfio-pci"),
    "amd": ("amdgpu", "vfio-pci"),
    "intel": ("i915", "xe", "vfio-pci"),
    "habana": ("habanalabs", "vfio-pci"),
}

CHECK = Check(
    id="gpu-driver",
    category="node",
    severity="error",
    title="Driver of GPUs",
    proves="Each GPU has its driver.",
    how="The link `driver` of each GPU in /sys/bus/pci/devices.",
    fix=(
        "Read the kernel log for why the driver let go of it (`NVRM`, `amdgpu`); load the module or "
        "change the GPU."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if not host.gpus:
        yield not_applicable("no GPU")
    for gpu in host.gpus:
        if gpu.driver in DRIVERS.get(gpu.vendor, ()):
            yield passed(gpu.driver, gpu.address)
        else:
            yield failed(f"driver: {gpu.driver or 'none'}", gpu.address, driver=gpu.driver, vendor=gpu.vendor)
