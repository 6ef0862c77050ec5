"""Faults of NICs in the kernel log."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown
from fabricpulse.hostinfo.kernel_log import classify

CHECK = Check(
    id="kernel-log-nic",
    category="back-end",
    severity="error",
    title="Faults of NICs in the kernel log",
    proves="The drivers of NICs have reported no fault since the host started.",
    how="The kernel's own lines of /dev/kmsg; links that go up and down are not counted here.",
    fix=(
        "Read the lines around it (`dmesg -T`); timeouts of commands and health reports need a reset of "
        "the NIC or another one."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    messages = host.kernel_messages
    if messages is None:
        yield unknown("the kernel log may not be read")
        return
    found: dict[tuple[str, str], list[str]] = {}
    for line in messages.lines:
        message = classify(line)
        if message is not None and message.kind not in ("link_up", "link_down"):
            subject = message.netdev or message.rdma or message.pci_address
            found.setdefault((subject, message.kind), []).append(line)
    for (subject, kind), lines in sorted(found.items()):
        yield failed(f"{kind.replace('_', ' ')}: {len(lines)} lines", subject, last=lines[-1])
    if not found:
        yield passed(messages.none)
