"""Bonds: their slaves, which of them carry traffic, and how often each was lost."""

from collections.abc import Sequence

from fabricpulse.nic.collectors.contract import Context
from fabricpulse.nic.inventory import Netdev
from fabricpulse.nic.metrics import bonding as m
from fabricpulse.nic.reader import clean_text, parse_unsigned, read_once


class BondingCollector:
    """One target a bond. A slave that the inventory does not have is counted, as the bond tells, but not opened."""

    name = "bonding"

    def __init__(self) -> None:
        self._bonds: dict[str, Netdev] = {}

    def targets(self, context: Context) -> Sequence[str]:
        self._bonds = {netdev.name: netdev for netdev in context.inventory.netdevs if netdev.is_bond}
        return list(self._bonds)

    def collect(self, target: str, context: Context) -> None:
        bond = self._bonds[target]
        faults, sink = context.faults, context.sink
        slaves = clean_text(read_once(f"{bond.path}/bonding/slaves", bond.device, faults) or b"").split()
        mode = clean_text(read_once(f"{bond.path}/bonding/mode", bond.device, faults) or b"").partition(" ")[
            0
        ]
        sink.add(m.BOND_SLAVES, (target, mode), len(slaves))
        for slave in slaves:
            netdev = context.inventory.netdev(slave)
            if netdev is None:
                continue
            path = f"{netdev.path}/bonding_slave"
            status = read_once(f"{path}/mii_status", bond.device, faults)
            if status is not None:
                sink.add(m.BOND_SLAVE_UP, (target, slave), int(status == b"up"))
            state = read_once(f"{path}/state", bond.device, faults)
            if state is not None:
                sink.add(m.BOND_SLAVE_ACTIVE, (target, slave), int(state == b"active"))
            failures = read_once(f"{path}/link_failure_count", bond.device, faults)
            count = parse_unsigned(failures or b"")
            if count is not None:
                sink.add(m.BOND_SLAVE_FAILURES, (target, slave), count)

    def close(self) -> None:
        """Nothing is held."""
