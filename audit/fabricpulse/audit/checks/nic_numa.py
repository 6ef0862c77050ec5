"""NUMA place of RDMA NICs."""

import re
from collections.abc import Iterator
from pathlib import Path

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="nic-numa",
    category="node",
    severity="warning",
    title="NUMA place of RDMA NICs",
    proves=(
        "The NUMA node of each RDMA NIC is known and has a GPU: NCCL pairs NICs and GPUs by it. NICs of a model "
        "(board ID) of which none is beside a GPU, as for storage, are not meant for it where another model is."
    ),
    how="numa_node of NICs and GPUs in /sys/bus/pci/devices, on hosts with several NUMA nodes.",
    fix="Switch NUMA on in the firmware; compare the slots with those of a host without this finding.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    nodes = [name for name in host.names("/sys/devices/system/node") if re.fullmatch(r"node[0-9]+", name)]
    if len(nodes) < 2 or not host.gpus:
        yield not_applicable("one NUMA node, or no GPU")
        return
    with_gpu = {gpu.numa for gpu in host.gpus}
    nodes_of = {
        port.subject: host.number(Path(f"{port.device.pci_path}/numa_node"))
        for port in host.ports
        if port.device.pci_path
    }
    beside = {host.boards[name] for name, numa in nodes_of.items() if numa in with_gpu}
    for port in host.ports:
        if not port.device.pci_path:
            continue
        numa = nodes_of[port.subject]
        if numa is None or numa < 0:
            yield failed("the firmware does not report its NUMA node", port.subject, numa_node=numa)
        elif numa not in with_gpu and -1 in with_gpu:
            yield unknown(
                "the firmware does not report the NUMA nodes of all GPUs", port.subject, numa_node=numa
            )
        elif numa not in with_gpu and beside and host.boards[port.subject] not in beside:
            yield not_applicable(
                "of a model (board ID) that is not beside GPUs, as for storage", port.subject
            )
        elif numa not in with_gpu:
            yield failed(f"NUMA node {numa} has no GPU", port.subject, numa_node=numa)
        else:
            yield passed(f"node {numa}", port.subject)
