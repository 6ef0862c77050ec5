"""What is declared of the fabric: the leaf of each NIC.

leaves:
  leaf-a1: [gpu-001/eth1, gpu-002/eth1]
"""

from fabricpulse.core.config import Section


class Topology(Section, frozen=True):
    """A topology file.

    leaves : of each leaf the NICs below it, as host/device. A NIC has one leaf.
    """

    leaves: dict[str, tuple[str, ...]] = {}

    def validate(self) -> None:
        seen: dict[str, str] = {}
        for leaf, nics in self.leaves.items():
            for nic in nics:
                host, _, device = nic.partition("/")
                if not host or not device:
                    raise ValueError(f"{nic!r} below {leaf} is not host/device")
                if (first := seen.setdefault(nic, leaf)) != leaf:
                    raise ValueError(f"{nic} is below two leaves, {first} and {leaf}")

    def leaf_of(self) -> dict[str, str]:
        """Leaf by host/device."""
        return {nic: leaf for leaf, nics in self.leaves.items() for nic in nics}
