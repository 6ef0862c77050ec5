"""What is declared of the fabric: the leaf of each NIC, the addresses of switches.

leaves:
  leaf-a1: [gpu-001/eth1, gpu-002/eth1]
switches:
  spine-1: [10.254.0.1, 10.254.0.7]
"""

import ipaddress
from pathlib import Path

from fabricpulse.core.config import Section, load_config


class Topology(Section, frozen=True):
    """A topology file.

    leaves : of each leaf the NICs below it, as host/device. A NIC has one leaf.
    switches : of each switch, leaves too, the addresses that it answers with when a hop limit ends there. One that is
    not listed goes by its address, and by several if it has several.
    """

    leaves: dict[str, tuple[str, ...]] = {}
    switches: dict[str, tuple[str, ...]] = {}

    def validate(self) -> None:
        seen: dict[str, str] = {}
        for leaf, nics in self.leaves.items():
            for nic in nics:
                host, _, device = nic.partition("/")
                if not host or not device:
                    raise ValueError(f"{nic!r} below {leaf} is not host/device")
                if (first := seen.setdefault(nic, leaf)) != leaf:
                    raise ValueError(f"{nic} is below two leaves, {first} and {leaf}")
        owner: dict[str, str] = {}
        for switch, addresses in self.switches.items():
            for address in addresses:
                try:
                    plain = str(ipaddress.ip_address(address))
                except ValueError:
                    raise ValueError(f"{address!r} of {switch} is no IP address") from None
                if (first := owner.setdefault(plain, switch)) != switch:
                    raise ValueError(f"{address} belongs to two switches, {first} and {switch}")

    def leaf_of(self) -> dict[str, str]:
        """Leaf by host/device."""
        return {nic: leaf for leaf, nics in self.leaves.items() for nic in nics}

    def switch_of(self) -> dict[str, str]:
        """Switch by address."""
        return {
            str(ipaddress.ip_address(address)): switch
            for switch, addresses in self.switches.items()
            for address in addresses
        }


def load_topology(path: Path) -> Topology:
    """Reads a topology file. Raises ConfigError."""
    return load_config(path, Topology)
