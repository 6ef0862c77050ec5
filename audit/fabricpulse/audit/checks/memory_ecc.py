"""Memory errors."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="memory-ecc",
    category="node",
    severity="error",
    title="Memory errors",
    proves="The memory controllers have found no error that ECC could not correct.",
    how="ue_count of /sys/devices/system/edac/mc/mc*.",
    fix="Service the host: change the memory module that the kernel log names (`EDAC`, `mce`).",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    base = "/sys/devices/system/edac/mc"
    controllers = [name for name in host.names(base) if re.fullmatch(r"mc[0-9]+", name)]
    counts = {name: host.number(f"{base}/{name}/ue_count") for name in controllers}
    known = {name: count for name, count in counts.items() if count is not None}
    for name in sorted(set(counts) - set(known)):
        yield unknown("its count cannot be read", name)
    if not counts:
        yield not_applicable("the kernel does not watch the memory here")
        return
    for name, count in known.items():
        if count:
            yield failed(f"{count} errors that could not be corrected", name, ue_count=count)
    if known and not any(known.values()):
        yield passed(f"none at {len(known)} controllers")
