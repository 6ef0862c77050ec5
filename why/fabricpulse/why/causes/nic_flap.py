"""A NIC that the job uses lost the fabric, or its link, and came back; or has not come back.

Identified by the mesh (no peer receives probes of the NIC), by the kernel's count of link losses, and by the job, whose
plugin moved traffic away from the NIC. Each of the three is enough; together they are almost certain. The plugin
survives a flap, so the job may be as quick as ever: the flap is reported all the same, as it will probably come again.

NICs of one network that are gone on many hosts at once are one finding: what they share, a leaf or its power, is gone.
A NIC of a network that the job does not use is a hint, and so is one that only the mesh has lost while the job's
traffic over it goes on as before, and one that is back while the job waits for a rank that posts nothing. A NIC that
is back and carries its share again is listed after what slows the job now.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import fsum

from fabricpulse.why.analysis import Analysis, nic_subject
from fabricpulse.why.causes.hang import heads_of
from fabricpulse.why.causes.lane_imbalance import shares
from fabricpulse.why.facts import Nic
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding

TITLE = "NIC flap"
DO = (
    "Look at cable, transceiver and switch port of this NIC: `fabricpulse nic` shows light levels and error counters.",
    "If it goes on, keep jobs off it: remediation does with `mode: auto`, `fabricpulse plugin` by hand.",
)
# NICs of one network at once that no chance explains, and their share of the job's.
_MANY = 3
_MANY_SHARE = 0.25
_AS_BEFORE = 0.9
# Of its share among the NICs of its host.
_BACK = 0.85


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC, or one for many of a network."""
    networks: defaultdict[str, list[tuple[Nic, Finding]]] = defaultdict(list)
    waits_for_rank = [head.network for head in heads_of(a)] or [None]
    usual, share = shares(a, before=True), shares(a)
    for nic, seen in _each(a):
        before = usual.get(nic.id.host, {}).get(nic.id.device)
        now = share.get(nic.id.host, {}).get(nic.id.device)
        is_back = bool(nic.connected and before and now is not None and now >= _BACK * before)
        found = replace(seen, past=is_back)
        if nic.connected and not any(network is not False for network in waits_for_rank):
            yield as_hint(found, "it is back, and the job waits for a rank that offers nothing")
        elif not a.uses(nic):
            yield as_hint(found, "the job does not use this network")
        elif _carries_on(a, nic):
            yield as_hint(
                found, "the job's traffic over it goes on as before: it is the probes that are lost"
            )
        else:
            networks[nic.network].append((nic, found))
    for network, members in sorted(networks.items()):
        gone = [(nic, found) for nic, found in members if nic.connected is False]
        count = sum(nic.network == network for nic in a.facts.nics)
        together = bool(network) and len(gone) >= max(_MANY, _MANY_SHARE * count)
        if together:
            yield _many(network, gone)
        yield from (found for nic, found in members if not (together and nic.connected is False))


def _many(network: str, gone: list[tuple[Nic, Finding]]) -> Finding:
    nics = sorted((nic for nic, _ in gone), key=lambda nic: nic.id)
    names = ", ".join(str(nic.id) for nic in nics[:_MANY])
    more = f" and {len(nics) - _MANY} more" if len(nics) > _MANY else ""
    evidence = [
        Evidence(f"{len(nics)} NICs of {network} reach none of their peers now", 0.95, "connected"),
        Evidence("they went together: look at what they share, a leaf or its power", 0.5, "connected"),
    ]
    return finding("nic_flap", f"{names}{more}", evidence, [nic_subject(nic.id) for nic in nics], "mesh")


def _carries_on(a: Analysis, nic: Nic) -> bool:
    """Whether nothing but the mesh says that it is gone, for longer than events are counted, and flows of the job over
    it do not notice."""
    if nic.connected is not False or nic.disconnects or nic.link_downs or nic.failovers:
        return False
    flows = a.flows_of(nic.id)
    now, before = fsum(f.sent or 0 for f in flows), fsum(f.sent_before or 0 for f in flows)
    return before > 0 and now >= _AS_BEFORE * before


def _each(a: Analysis) -> Iterator[tuple[Nic, Finding]]:
    for nic in a.facts.nics:
        evidence = []
        if nic.connected is False:
            evidence.append(Evidence(f"{nic.id} reaches none of its peers now", 0.95, "connected"))
        if nic.disconnects is not None and nic.disconnects > 0.5:
            evidence.append(
                Evidence(f"{nic.id} lost all of its peers {nic.disconnects:.0f} times", 0.93, "disconnects")
            )
        if nic.link_downs is not None and nic.link_downs > 0.5:
            evidence.append(
                Evidence(f"the link of {nic.id} went down {nic.link_downs:.0f} times", 0.92, "link_downs")
            )
        if nic.failovers is not None and nic.failovers > 0.5:
            # A NIC is not the only reason for a failover: the peer's NIC or a path may be.
            evidence.append(
                Evidence(
                    f"the job moved traffic away from {nic.id} {nic.failovers:.0f} times", 0.3, "failovers"
                )
            )
        if any(e.strength > 0.9 for e in evidence):
            # Each of the two is enough: what the other does not say takes nothing away.
            strong = {e.query for e in evidence if e.strength > 0.9}
            needs = ("nic",) if strong == {"link_downs"} else ("mesh",)
            yield nic, finding("nic_flap", str(nic.id), evidence, [nic_subject(nic.id)], *needs)
