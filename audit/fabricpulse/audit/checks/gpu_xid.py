"""XID errors of GPUs."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{4,20})\): ([0-9]{1,4})\b")
# What a fault of the program itself brings: NVIDIA's XID catalogue.
OF_PROGRAMS = (13, 31, 43, 45)

CHECK = Check(
    id="gpu-xid",
    category="node",
    severity="error",
    title="XID errors of GPUs",
    proves=(
        "The NVIDIA driver has reported no XID since the host started but those of programs (13, 31, 43, 45)."
    ),
    how="Lines `NVRM: Xid` of the kernel log.",
    fix=(
        "Look the number up in NVIDIA's XID catalogue: 48, 63, 64, 74, 79, 94, 95 and 119 ask for a reset "
        "or another GPU."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    if not any(gpu.vendor == "nvidia" for gpu in host.gpus):
        yield not_applicable("no NVIDIA GPU")
        return
    messages = host.kernel_messages
    if messages is None:
        yield unknown("the kernel log may not be read")
        return
    found: dict[str, dict[int, str]] = {}
    for line in messages.lines:
        hit = XID.search(line)
        if hit and int(hit[2]) not in OF_PROGRAMS:
            found.setdefault(hit[1].lower(), {})[int(hit[2])] = line
    for address, lines in sorted(found.items()):
        yield failed("XID " + ", ".join(map(str, sorted(lines))), address, line=lines[max(lines)])
    if not found:
        yield passed(messages.none)
