"""CPU frequency governor."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed

CHECK = Check(
    id="cpu-governor",
    category="node",
    severity="warning",
    title="CPU frequency governor",
    proves=(
        "All CPUs run with the governor `performance`: with others, wake-ups after an idle time are late "
        "by the time that the clock takes to rise."
    ),
    how="/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; a virtual machine has none.",
    fix=(
        "`cpupower frequency-set -g performance`, and the same in the tuned profile or the boot "
        "parameters so that it stays."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    base = "/sys/devices/system/cpu"
    governors: dict[str, list[str]] = {}
    for name in host.names(base):
        if re.fullmatch(r"cpu[0-9]{1,5}", name):
            found = host.value(f"{base}/{name}/cpufreq/scaling_governor")
            if found:
                governors.setdefault(found, []).append(name)
    if not governors:
        yield not_applicable("the kernel does not set the frequency here")
        return
    wrong = {name: cpus for name, cpus in governors.items() if name != "performance"}
    if wrong:
        text = ", ".join(f"{len(cpus)} CPUs: {name}" for name, cpus in sorted(wrong.items()))
        first = min(cpus[0] for cpus in wrong.values())
        yield failed(text, first_cpu=first)
    else:
        yield passed("performance on all CPUs")
