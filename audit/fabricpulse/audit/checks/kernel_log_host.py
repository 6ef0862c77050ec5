"""Faults in the kernel log."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

KINDS = {
    "machine check": re.compile(r"\[Hardware Error\]|mce: .*(Machine check|Uncorrected)"),
    "hung task": re.compile(r"blocked for more than \d+ seconds"),
    "lockup": re.compile(r"(soft|hard) lockup|rcu.*(self-detected stall|detected stalls)"),
    "out of memory": re.compile(r"Out of memory: Kill|oom-kill:constraint=CONSTRAINT_NONE"),
    "file system": re.compile(
        r"EXT4-fs error|XFS .*(corruption|shut ?down)|BTRFS.*error|I/O error, dev (?!fd\d|sr\d)"
    ),
}

CHECK = Check(
    id="kernel-log-host",
    category="node",
    severity="error",
    title="Faults in the kernel log",
    proves=(
        "Since the host started the kernel has logged no machine check, no hung task, no soft lockup, no "
        "file system error and has killed nothing for want of memory."
    ),
    how="The kernel's own lines of /dev/kmsg.",
    fix="Read the lines around it (`dmesg -T`); machine checks and file system errors need service.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    messages = host.kernel_messages
    if messages is None:
        yield unknown("the kernel log may not be read")
        return
    clean = True
    for kind, pattern in KINDS.items():
        lines = [line for line in messages.lines if pattern.search(line)]
        if lines:
            clean = False
            yield failed(f"{kind}: {len(lines)} lines", kind, count=len(lines), last=lines[-1])
    if clean:
        yield passed(messages.none)
