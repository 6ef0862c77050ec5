"""Members of bonds."""

from collections.abc import Iterator

from fabricpulse.audit.check import Check
from fabricpulse.audit.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed
from fabricpulse.audit.routes import bond_members

CHECK = Check(
    id="bond-members",
    category="front-end",
    severity="error",
    title="Members of bonds",
    proves="Every bond has at least two members, and all of them carry traffic.",
    how="bonding/slaves in /sys/class/net, and operstate of each.",
    mend="Check the cable and the switch port of the member named, and LACP on the switch.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    bonds = [netdev for netdev in host.inventory.netdevs if netdev.is_bond]
    if not bonds:
        yield not_applicable("no bond")
    for bond in bonds:
        members = bond_members(host, bond.name)
        down = [name for name in members if host.netdev_text(name, "operstate") != "up"]
        if down:
            yield failed(f"{', '.join(down)} down", bond.name, members=" ".join(members))
        elif len(members) < 2:
            yield failed(f"{len(members)} member", bond.name, members=" ".join(members))
        else:
            yield passed(" ".join(members), bond.name)
