"""The membership that the coordinator serves: the hosts of its file, and those that have joined by lease. Pure.

Every mesh of the fleet reads it and refuses a document that contradicts itself, so what one host says must not make it
one: a host that was renamed is there twice with the same addresses, until the lease of its old name is over, or
that is taken out of the file.
"""

from collections.abc import Iterable, Mapping

import msgspec

from fabricpulse.core.fleet.membership import Host, Membership, Nic


def served_membership(
    static: Membership, joined: Iterable[Host], leaf_of: Mapping[str, str] | None = None
) -> tuple[Membership, tuple[str, ...]]:
    """What to serve, and what was left out of it, in words. joined : hosts with a lease, the latest first. leaf_of : by
    host/device; a leaf that it does not know is that of the file.

    A lease outweighs the file, and a later claim to an address an earlier one.
    """
    hosts: dict[str, Host] = {}
    claims: dict[str, str] = {}
    left_out = []
    leaves = {
        **{f"{host.name}/{nic.device}": nic.leaf for host in static.hosts for nic in host.nics},
        **(leaf_of or {}),
    }
    for host in (*joined, *static.hosts):
        if host.name in hosts:
            continue
        if fault := _fault(host):
            left_out.append(f"host {host.name!r}: {fault}")
            continue
        nics: list[Nic] = []
        for nic in host.nics:
            owner = claims.setdefault(nic.address, host.name)
            if owner == host.name:
                leaf = leaves.get(f"{host.name}/{nic.device}", "")
                nics.append(nic if leaf == nic.leaf else msgspec.structs.replace(nic, leaf=leaf))
            else:
                left_out.append(
                    f"{nic.device} of host {host.name!r}: {nic.address} is that of host {owner!r}"
                )
        if nics or not host.nics:
            hosts[host.name] = Host(name=host.name, nics=tuple(nics))
    return Membership(hosts=tuple(hosts[name] for name in sorted(hosts))), tuple(left_out)


def _fault(host: Host) -> str:
    """What is wrong with a host that came with a report, and is unchecked; "" if nothing is."""
    try:
        for nic in host.nics:
            nic.validate()
        host.validate()
    except ValueError as error:
        return str(error)
    addresses = [nic.address for nic in host.nics]
    return "two of its NICs have one address" if len(set(addresses)) != len(addresses) else ""
