"""GPUDirect RDMA."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="gpu-direct",
    category="node",
    severity="warning",
    title="GPUDirect RDMA",
    proves=(
        "NICs can read and write the memory of NVIDIA GPUs themselves, without a copy through the host's."
    ),
    how=(
        "The module nvidia_peermem in /proc/modules, or NVIDIA's open kernel module in "
        "/proc/driver/nvidia/version, which offers DMA-BUF."
    ),
    fix=("`modprobe nvidia_peermem` and put it in /etc/modules-load.d, or install the open kernel modules."),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if not any(gpu.vendor == "nvidia" for gpu in host.gpus) or not host.ports:
        yield not_applicable("no NVIDIA GPU, or no RDMA device")
        return
    version = host.text("/proc/driver/nvidia/version")
    # Before the driver brought it (R465) the module was Mellanox's, and called otherwise.
    loaded = sorted({"nvidia_peermem", "nv_peer_mem"} & host.modules)
    if loaded:
        yield passed(loaded[0])
    elif version and "Open Kernel Module" in version:
        yield passed("DMA-BUF by the open kernel module")
    elif version is None:
        yield unknown("/proc/driver/nvidia/version cannot be read")
    elif not host.modules:
        yield unknown("/proc/modules cannot be read")
    else:
        yield failed("neither nvidia_peermem nor the open kernel module", version=version.splitlines()[0])
