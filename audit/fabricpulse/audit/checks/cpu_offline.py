"""CPUs that are offline."""

from collections.abc import Iterator

from fabricpulse.audit.check import Check
from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

CHECK = Check(
    id="cpu-offline",
    category="node",
    severity="warning",
    title="CPUs that are offline",
    proves="All CPUs that the host has are in use.",
    how="/sys/devices/system/cpu/offline.",
    fix=(
        "Read the kernel log for why a CPU was taken out (machine checks, `nosmt`, `maxcpus=`), and set "
        "it online or service the host."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if host.text("/sys/devices/system/cpu/online") is None:
        yield unknown("/sys/devices/system/cpu/online cannot be read")
        return
    offline = host.text("/sys/devices/system/cpu/offline")
    if offline:
        yield failed(f"offline: {offline}", offline=offline)
    else:
        yield passed("all online")
