"""Reverse-path filter on rails."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="reverse-path-filter",
    category="back-end",
    severity="warning",
    title="Reverse-path filter on rails",
    proves=(
        "The kernel does not drop packets that arrive on another NIC than that to their sender: with "
        "several rails, that is normal."
    ),
    how=(
        "rp_filter of /proc/sys/net/ipv4/conf for the NICs of the back end, on hosts with two or more of "
        "them."
    ),
    fix=(
        "`sysctl -w net.ipv4.conf.DEVICE.rp_filter=2` (loose) or 0, and the same for `all`, in /etc/sysctl.d."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    names = [netdev.name for netdev in host.backend]
    if len(names) < 2:
        yield not_applicable("fewer than two back-end NICs")
        return
    for name in names:
        found = [host.number(f"/proc/sys/net/ipv4/conf/{place}/rp_filter") for place in ("all", name)]
        known = [value for value in found if value is not None]
        # The larger counts: only the loosest there is decides alone.
        if len(known) < len(found) and 2 not in known:
            yield unknown("rp_filter cannot be read", name)
        elif max(known) == 1:
            yield failed("strict (rp_filter 1)", name, rp_filter=1)
        else:
            yield passed(f"rp_filter {max(known)}", name)
