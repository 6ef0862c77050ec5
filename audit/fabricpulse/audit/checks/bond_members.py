"""Members of bonds."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.routes import bond_members
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown

CHECK = Check(
    id="bond-members",
    category="front-end",
    severity="error",
    title="Members of bonds",
    proves="Every bond has at least two members, and all of them carry traffic.",
    how="bonding/slaves in /sys/class/net, and operstate of each.",
    fix="Check the cable and the switch port of the member named, and LACP on the switch.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    bonds = [netdev for netdev in host.inventory.netdevs if netdev.is_bond]
    if not bonds:
        yield not_applicable("no bond")
    for bond in bonds:
        members = bond_members(host, bond.name)
        states = {name: member_state(host, bond.name, name) for name in members}
        down = [name for name, state in states.items() if state not in (None, "up")]
        if down:
            yield failed(f"{', '.join(down)} down", bond.name, members=" ".join(members))
        elif None in states.values():
            yield unknown("the state of a member cannot be read", bond.name, members=" ".join(members))
        elif not members and host.netdev_text(bond, "operstate") == "down":
            # The bonding module makes one by itself when it is loaded.
            yield not_applicable("not in use: no member, and down", bond.name)
        elif len(members) < 2:
            count = "one member" if members else "no member"
            yield failed(count, bond.name, members=" ".join(members))
        else:
            yield passed(" ".join(members), bond.name)


def member_state(host: HostReader, bond: str, member: str) -> str | None:
    """As the kernel has it, or else as the bonding driver's own monitor has; None if neither reports it."""
    state = host.netdev_text(member, "operstate")
    if state is not None:
        return state
    return host.value(f"/sys/class/net/{bond}/slave_{member}/bonding_slave/mii_status") or host.value(
        f"/sys/class/net/{bond}/slave_{member}/operstate"
    )
