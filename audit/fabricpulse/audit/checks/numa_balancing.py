"""Automatic NUMA balancing."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

CHECK = Check(
    id="numa-balancing",
    category="node",
    severity="warning",
    title="Automatic NUMA balancing",
    proves=(
        "The kernel does not move pages between NUMA nodes while jobs run: it takes pages away for "
        "sampling, and GPU drivers pin them."
    ),
    how="/proc/sys/kernel/numa_balancing, on hosts with GPUs.",
    fix="`sysctl -w kernel.numa_balancing=0` and the same in /etc/sysctl.d.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if not host.gpus:
        yield not_applicable("no GPU")
        return
    found = host.number("/proc/sys/kernel/numa_balancing")
    if found is None:
        yield not_applicable("the kernel has no NUMA balancing")
    elif found:
        yield failed(f"kernel.numa_balancing is {found}", value=found)
    else:
        yield passed("off")
