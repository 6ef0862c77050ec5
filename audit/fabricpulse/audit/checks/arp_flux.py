"""NICs that answer for one another."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.routes import shared_subnets
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="arp-flux",
    category="back-end",
    severity="error",
    title="NICs that answer for one another",
    proves=(
        "Where two NICs of the host are in one subnet, neither answers ARP for the other's address: or "
        "else traffic of two rails goes through one."
    ),
    how=("Connected routes of /proc/net/route, and arp_ignore and arp_announce in /proc/sys/net/ipv4/conf."),
    fix=(
        "`sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`, or give each rail "
        "its own subnet."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    shared = shared_subnets(host)
    if shared is None:
        yield unknown("/proc/net/route cannot be read")
        return
    if not shared:
        yield not_applicable("no two NICs share a subnet")
    for devices in shared:
        for device in devices:
            ignore = setting(host, device, "arp_ignore")
            announce = setting(host, device, "arp_announce")
            if ignore is None or announce is None:
                yield unknown("its arp settings cannot be read", device)
            elif ignore < 1 or announce < 2:
                text = f"arp_ignore {ignore}, arp_announce {announce}, one subnet with {', '.join(devices)}"
                yield failed(text, device, arp_ignore=ignore, arp_announce=announce)
            else:
                yield passed("answers for itself only", device)


def setting(host: HostReader, device: str, name: str) -> int | None:
    """In force for a device: the larger of its own and of `all` (Documentation/networking/ip-sysctl.rst)."""
    found = [host.number(f"/proc/sys/net/ipv4/conf/{place}/{name}") for place in ("all", device)]
    known = [value for value in found if value is not None]
    return max(known) if known else None
