"""Bonds: their slaves, which of them carry traffic, and how often each was lost."""

from collections.abc import Sequence
from typing import Self

from fabricpulse.hostinfo.inventory import Netdev
from fabricpulse.hostinfo.sysfs import clean_text, parse_unsigned, read_once
from fabricpulse.nic.collectors.base import Collector, Context, Environment, register
from fabricpulse.nic.metric_spec import counter, gauge

BOND_SLAVES = gauge(
    "bond_slaves",
    "Links in the bond, which is the device (class/net/BOND/bonding/slaves).",
    ("device", "mode"),
)
BOND_SLAVE_UP = gauge(
    "bond_slave_up",
    "1 if the bond considers the slave's link up (bonding_slave/mii_status).",
    ("device", "bond"),
)
BOND_SLAVE_ACTIVE = gauge(
    "bond_slave_active",
    "1 if the slave carries traffic, 0 if it is a backup (bonding_slave/state).",
    ("device", "bond"),
)
BOND_SLAVE_FAILURES = counter(
    "bond_slave_link_failures",
    "Link failures of the slave seen by the bond (bonding_slave/link_failure_count).",
    ("device", "bond"),
)


@register()
class BondingCollector(Collector):
    """One target a bond. A slave that the inventory does not have is counted, as the bond lists it, but not opened."""

    name = "bonding"

    @classmethod
    def make(cls, environment: Environment) -> Self:
        return cls()

    def __init__(self) -> None:
        self._bonds: dict[str, Netdev] = {}

    def targets(self, context: Context) -> Sequence[str]:
        self._bonds = {netdev.name: netdev for netdev in context.inventory.netdevs if netdev.is_bond}
        return list(self._bonds)

    def collect(self, target: str, context: Context) -> None:
        bond = self._bonds[target]
        errors, sink = context.errors, context.sink
        slaves = clean_text(read_once(f"{bond.path}/bonding/slaves", bond.name, errors) or b"").split()
        mode = clean_text(read_once(f"{bond.path}/bonding/mode", bond.name, errors) or b"").partition(" ")[0]
        sink.add(BOND_SLAVES, (target, mode), len(slaves))
        for slave in slaves:
            netdev = context.inventory.netdev(slave)
            if netdev is None:
                continue
            path = f"{netdev.path}/bonding_slave"
            status = read_once(f"{path}/mii_status", bond.name, errors)
            if status is not None:
                sink.add(BOND_SLAVE_UP, (slave, target), int(status == b"up"))
            state = read_once(f"{path}/state", bond.name, errors)
            if state is not None:
                sink.add(BOND_SLAVE_ACTIVE, (slave, target), int(state == b"active"))
            failures = read_once(f"{path}/link_failure_count", bond.name, errors)
            count = parse_unsigned(failures or b"")
            if count is not None:
                sink.add(BOND_SLAVE_FAILURES, (slave, target), count)
