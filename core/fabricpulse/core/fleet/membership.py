"""The membership file: hosts and NICs of a fleet.

    hosts:
      - name: gpu-001
        nics:
          - {device: eth1, address: 10.10.0.1, network: rail0}

Read by the mesh and by clocksync; the coordinator serves the same document over HTTP.
"""

import ipaddress
from pathlib import Path

from fabricpulse.core.config import Section, load_config


class Nic(Section, frozen=True):
    """A NIC that takes part in the mesh.

    device : name of the network device on its host. address : where it takes probes. network : the rail; NICs of one
    network are peers first.
    """

    device: str
    address: str
    network: str

    def validate(self) -> None:
        ipaddress.ip_address(self.address)
        if not self.device or len(self.device.encode()) > 31:
            raise ValueError(f"device name {self.device!r} must have 1 to 31 bytes")
        if not self.network or len(self.network.encode()) > 31:
            raise ValueError(f"network name {self.network!r} must have 1 to 31 bytes")


class Host(Section, frozen=True):
    """A host and its NICs.

    name : as the host is called everywhere in the fleet. nics : those that take part in the mesh.
    """

    name: str
    nics: tuple[Nic, ...] = ()

    def validate(self) -> None:
        if not self.name or len(self.name.encode()) > 95:
            raise ValueError(f"host name {self.name!r} must have 1 to 95 bytes")
        devices = [nic.device for nic in self.nics]
        if len(set(devices)) != len(devices):
            raise ValueError(f"host {self.name!r} lists a device twice")


class Membership(Section, frozen=True):
    """All hosts of the fleet.

    hosts : in any order. It must be there: a file that is being written and still empty is not a fleet of nobody.
    """

    hosts: tuple[Host, ...]

    def validate(self) -> None:
        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise ValueError("a host is listed twice")
        addresses = [nic.address for host in self.hosts for nic in host.nics]
        if len(set(addresses)) != len(addresses):
            raise ValueError("two NICs have one address")

    def host(self, name: str) -> Host | None:
        """The host called `name`, or None."""
        return next((host for host in self.hosts if host.name == name), None)


def load_membership(path: Path) -> Membership:
    """Reads a membership file. Raises ConfigError."""
    return load_config(path, Membership)
