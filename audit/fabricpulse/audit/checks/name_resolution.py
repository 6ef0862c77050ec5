"""Name resolution."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

NAMESERVER = re.compile(r"^nameserver\s+(\S+)", re.MULTILINE)

CHECK = Check(
    id="name-resolution",
    category="front-end",
    severity="error",
    title="Name resolution",
    proves="The host resolves its own name; by /etc/hosts is enough.",
    how="A look-up of the host's name; the `nameserver` lines of /etc/resolv.conf are shown beside it.",
    fix="Correct /etc/resolv.conf or systemd-resolved; put the host's name into DNS or /etc/hosts.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    servers = NAMESERVER.findall(host.text("/etc/resolv.conf") or "")
    name = host.text("/proc/sys/kernel/hostname") or ""
    if host.resolve is None or not name:
        yield unknown(f"look-ups cannot be tried here; name servers: {', '.join(servers) or 'none'}")
        return
    addresses = host.resolve(name)
    if not addresses:
        yield failed(f"{name} does not resolve", name, name_servers=", ".join(servers) or "none")
    else:
        yield passed(f"{name} is {addresses[0]}", name)
