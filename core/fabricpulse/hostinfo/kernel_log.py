"""Kernel log lines about NICs: the kind of fault, and the NIC. Pure."""

import re
from dataclasses import dataclass

_PCI = re.compile(r"\b([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
_DRIVERS = re.compile(
    r"\b(mlx5_core|mlx5_ib|mlx5_\d+|mlx4_core|bnxt_en|bnxt_re|ice|irdma|hns3|hns_roce|efa|pcieport|AER|NETDEV WATCHDOG)\b"
)
_WATCHDOG = re.compile(r"NETDEV WATCHDOG: (?:CPU: \d+: )?(\S+?):? \(")
_NETDEV = re.compile(r"[0-9a-f]{2}\.[0-7] ([A-Za-z][\w.-]{0,14}):? ")

# In order: the first that fits names the line. Kinds are a closed set, because they are a label.
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("transmit_timeout", r"NETDEV WATCHDOG|TX timeout|transmit queue \d+ timed out"),
        ("insufficient_power", r"insufficient power|power budget"),
        ("high_temperature", r"high temperature|over.?temperature|temperature.*(threshold|exceed)"),
        ("module_unplugged", r"(cable|module) (un)?plugged|module .*(removed|unplugged)|link module is (not present|removed)"),
        ("module_error", r"port module event.*error|cable error|bus stuck|unsupported cable|unqualified (SFP|optics|module)"),
        ("command_timeout", r"cmd_exec.*(timeout|timed out)|wait_func.*timeout|leak of a command resource|(firmware|hwrm).*(timeout|timed out)|Error \(timeout: \d+\) msg|cmdq\[.*timedout"),
        ("access_register", r"ACCESS_REG"),
        ("health", r"health (poll|recovery|compromised)|health compromised|device's health|assert_var|synd 0x|fatal (firmware )?error|firmware (not responding|fatal|crash|is in reset)|internal error|error recovery|reset (event|requested)"),
        ("pcie", r"PCIe Bus Error|AER:|link (speed|width).*(reduced|downgraded|limited)|available PCIe bandwidth"),
        ("completion_error", r"dump error cqe|dump_cqe|Error cqe|WC error"),
        ("link_down", r"link (is )?down"),
        ("link_up", r"link (is )?up"),
    )
)  # fmt: skip


# All kinds.
KINDS = tuple(kind for kind, _ in _KINDS)


@dataclass(frozen=True)
class KernelMessage:
    """A line about a NIC. pci_address, netdev, rdma : the NIC, as far as the line names it, else empty."""

    kind: str
    pci_address: str
    netdev: str
    rdma: str
    text: str


def parse_record(record: bytes) -> str | None:
    """The text of a /dev/kmsg record, None for one that user space wrote or that is no record.

    The kernel gives every line that is written into /dev/kmsg a facility, and its own lines none (devkmsg_write in
    kernel/printk/printk.c): a log daemon that echoes a line does not count it again.
    """
    head, semicolon, rest = record.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3 or not fields[0].isdigit():
        return None
    facility = int(fields[0]) >> 3
    if facility:
        return None
    text = rest.partition(b"\n")[0].decode("utf-8", "replace")
    return "".join(c for c in text if c.isprintable())


def classify(text: str) -> KernelMessage | None:
    """The message about a NIC, None if the line is about something else."""
    if not _DRIVERS.search(text):
        return None
    for kind, pattern in _KINDS:
        if pattern.search(text):
            addresses = _PCI.findall(text)
            watchdog = _WATCHDOG.search(text)
            netdev = watchdog[1] if watchdog else (found[1] if (found := _NETDEV.search(text)) else "")
            rdma = found[0] if (found := re.search(r"\b(mlx5_\d+|bnxt_re\d+|irdma\d+)\b", text)) else ""
            # pcieport lines name the port first and the function that has the error last.
            return KernelMessage(kind, addresses[-1] if addresses else "", netdev, rdma, text)
    return None
