"""Does each NIC hang on the switch that the plan says? Pure.

    wiring:
      gpu-001:
        eth1: {switch: leaf-1, port: Ethernet1}
        eth2: {switch: leaf-2}

`leaf` of a NIC in the membership is its switch where the file says nothing.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fabricpulse.audit.checks.fleet import wiring as wiring_check
from fabricpulse.audit.checks.fleet import wiring_unknown
from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.lldp import Neighbour
from fabricpulse.audit.model import Finding, clip
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.core.config import Section
from fabricpulse.core.fleet.membership import Membership


class Place(Section, frozen=True):
    """Where a cable goes. switch : its system name, short or fully qualified. port : as LLDP calls it; "" for any."""

    switch: str
    port: str = ""


class Wiring(Section, frozen=True):
    """Where the cable of each NIC goes: the file of `--wiring-file`.

    wiring : host -> netdev -> place.
    """

    wiring: dict[str, dict[str, Place]]


@dataclass(frozen=True)
class LldpReports:
    """What the hosts received. neighbours : of the NICs that received one. reasons : of those that could not listen."""

    neighbours: Mapping[Nic, Neighbour]
    reasons: Mapping[Nic, str]


def planned_places(wiring: Wiring | None, membership: Membership) -> dict[Nic, Place]:
    """NIC -> its place, of all that are planned."""
    found = {
        (host.name, nic.device): Place(nic.leaf) for host in membership.hosts for nic in host.nics if nic.leaf
    }
    for name, nics in (wiring.wiring if wiring else {}).items():
        host = membership.host(name)
        found |= {((host.name if host else name), device): place for device, place in nics.items()}
    return found


def wiring_findings(planned: Mapping[Nic, Place], lldp: LldpReports) -> list[Finding]:
    """NICs that hang elsewhere, with whose place theirs is, and those of which nothing is known."""
    found = []
    owners: dict[str, list[Nic]] = defaultdict(list)
    for nic, place in planned.items():
        owners[place.port].append(nic)
    names = {neighbour.switch.lower() for neighbour in lldp.neighbours.values()}
    for nic, place in sorted(planned.items()):
        neighbour = lldp.neighbours.get(nic)
        if neighbour is None:
            why = lldp.reasons.get(nic, "no LLDP frame was received")
            text = f"where its cable goes is not known: {why}"
            found.append(_finding(wiring_unknown.CHECK, nic, text, {"planned": _describe(place)}))
        elif not is_at(place, neighbour):
            own = Place(neighbour.switch, neighbour.port)
            text = f"hangs on {_describe(own)}, planned is {_describe(place)}"
            evidence = {"planned": _describe(place), "found": _describe(own)}
            rightful = [
                other
                for other in owners.get(own.port, ())
                if own.port and other != nic and _same_switch(planned[other].switch, own.switch)
            ]
            if rightful:
                evidence["place_of"] = " ".join(rightful[0])
                other = lldp.neighbours.get(rightful[0])
                if other is not None and is_at(place, other):
                    text += f": swapped with {' '.join(rightful[0])}"
            found.append(_finding(wiring_check.CHECK, nic, text, evidence))
        elif others := _ambiguous(place.switch, neighbour.switch, names):
            text = (
                f"hangs on {neighbour.switch}; {place.switch} in the plan may be {' or '.join(others)}, too"
            )
            found.append(_finding(wiring_unknown.CHECK, nic, text, {"planned": _describe(place)}))
    return found


def located(planned: Mapping[Nic, Place], lldp: LldpReports, findings: Iterable[Finding]) -> list[Nic]:
    """The planned NICs of which it is known where they hang. findings : of `wiring_findings`."""
    unknown = {(f.host, f.subject) for f in findings if f.check == wiring_unknown.CHECK.id}
    return sorted(nic for nic in planned if nic in lldp.neighbours and nic not in unknown)


def is_at(place: Place, neighbour: Neighbour) -> bool:
    """Whether a neighbour is the planned place. Switches may say their name short or qualified, in any case."""
    if not _same_switch(place.switch, neighbour.switch):
        return False
    return place.port in ("", neighbour.port, neighbour.description)


def _same_switch(one: str, other: str) -> bool:
    """Whether two names may be those of one switch: equal, or one is the beginning of the other up to a dot. An
    address is no name, and equal to itself alone."""
    short, long = sorted((one.lower().rstrip("."), other.lower().rstrip(".")), key=len)
    if short == long:
        return True
    return long.startswith(f"{short}.") and not _is_address(long)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _ambiguous(planned: str, seen: str, names: Collection[str]) -> list[str]:
    """Other switches that the planned name may be of, by the names of all that were seen."""
    fits = [name for name in names if _same_switch(planned, name)]
    return sorted(name for name in fits if not _same_switch(name, seen))


def _describe(place: Place) -> str:
    return f"{place.switch} {place.port}".strip()


def _finding(check: Check, nic: Nic, text: str, evidence: dict[str, str]) -> Finding:
    return check.finding(*nic, text, {k: clip(v, 128) for k, v in evidence.items()})
