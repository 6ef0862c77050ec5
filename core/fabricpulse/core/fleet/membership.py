"""The membership file: hosts and NICs of a fleet.

    hosts:
      - name: gpu-001
        nics:
          - {device: eth1, address: 10.10.0.1, network: rail0}

Read by the mesh and by clocksync; the coordinator serves the same document over HTTP. A host may be listed by its short
name or by its fully qualified one: `gpu-001` and `gpu-001.example.com` are the same host.
"""

import ipaddress
from pathlib import Path

from msgspec import ValidationError

from fabricpulse.core.config import Section, load_config

MOST_HOST_BYTES, MOST_DEVICE_BYTES = 95, 31  # of a network's name, too
MOST_LEAF = 253  # characters


class Nic(Section, frozen=True):
    """A NIC that takes part in the mesh.

    device : name of the network device on its host. address : IP address at which the NIC takes probes. network : the
    rail; NICs of one network are peers first. leaf : the switch that its cable goes to, if that is known: alerts on
    the NIC carry it, so that one on the whole leaf can mute them.
    """

    device: str
    address: str
    network: str
    leaf: str = ""

    def validate(self) -> None:
        ipaddress.ip_address(self.address)
        if not self.device or len(self.device.encode()) > MOST_DEVICE_BYTES:
            raise ValueError(f"device name {self.device!r} must have 1 to {MOST_DEVICE_BYTES} bytes")
        if not self.network or len(self.network.encode()) > MOST_DEVICE_BYTES:
            raise ValueError(f"network name {self.network!r} must have 1 to {MOST_DEVICE_BYTES} bytes")
        if len(self.leaf) > MOST_LEAF:
            raise ValueError(f"leaf name {self.leaf[:40]!r}… must have at most {MOST_LEAF} characters")


class Host(Section, frozen=True):
    """A host and its NICs.

    name : what the host is called everywhere in the fleet. nics : NICs of the host that take part in the mesh.
    """

    name: str
    nics: tuple[Nic, ...] = ()

    def validate(self) -> None:
        if not self.name or len(self.name.encode()) > MOST_HOST_BYTES:
            raise ValueError(f"host name {self.name!r} must have 1 to {MOST_HOST_BYTES} bytes")
        devices: set[str] = set()
        for nic in self.nics:
            if nic.device in devices:
                raise ValueError(f"host {self.name!r} lists device {nic.device!r} twice")
            devices.add(nic.device)


class Membership(Section, frozen=True):
    """All hosts of the fleet.

    hosts : the hosts, in any order, at least one: an empty list is a file that is being written, or a mistake, and
    never a fleet of nobody. Names and addresses are unique.
    """

    hosts: tuple[Host, ...]

    def validate(self) -> None:
        if not self.hosts:
            raise _invalid("there is no host in it; list the hosts of the fleet", "hosts")
        by_short: dict[str, list[str]] = {}
        addresses: dict[str, str] = {}
        for index, host in enumerate(self.hosts):
            alike = by_short.setdefault(host.name.lower().partition(".")[0], [])
            same = next((name for name in alike if _is_same(name, host.name)), None)
            if same is not None:
                what = "is listed twice" if same == host.name else f"is the same as {same!r}"
                raise _invalid(f"host {host.name!r} {what}", f"hosts[{index}]")
            alike.append(host.name)
            for number, nic in enumerate(host.nics):
                name = f"{host.name} {nic.device}"
                first = addresses.setdefault(str(ipaddress.ip_address(nic.address)), name)
                if first != name:
                    raise _invalid(
                        f"address {nic.address} belongs to two NICs, {first} and {name}",
                        f"hosts[{index}].nics[{number}]",
                    )

    def host(self, name: str) -> Host | None:
        """The host called `name`, by its short or fully qualified name in any case. None if it is not there, or if
        several have this short name.
        """
        short = name.lower().partition(".")[0]
        alike = [host for host in self.hosts if host.name.lower().partition(".")[0] == short]
        exact = [host for host in alike if host.name.lower() == name.lower()]
        same = exact or [host for host in alike if _is_same(host.name, name)]
        return same[0] if len(same) == 1 else None


def _is_same(a: str, b: str) -> bool:
    """Of two names with the same first label: "a" and "a.b" are one host, "a.b" and "a.c" are two."""
    return a.lower() == b.lower() or "." not in a or "." not in b


def _invalid(what: str, path: str) -> ValidationError:
    """path : of the key in the document, for the line in the message."""
    return ValidationError(f"{what} - at `$.{path}`")


def load_membership(path: Path) -> Membership:
    """Reads a membership file. Raises ConfigError."""
    return load_config(path, Membership)
