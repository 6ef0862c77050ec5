"""A NIC that the job uses lost the fabric, or its link, and came back; or has not come back.

Told by the mesh (nobody hears the NIC), by the kernel's count of link losses, and by the job itself, whose plugin moved
traffic away from the NIC. Each of the three is enough; together they leave little doubt. The plugin survives a flap, so
the job may be as quick as ever: then the flap is reported all the same, as something that will come again.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis, nic_subject
from fabricpulse.why.finding import Evidence, Finding, finding

TITLE = "NIC flap"
DO = (
    "Look at cable, transceiver and switch port of this NIC: `fabricpulse nic` shows light levels and error counters.",
    "If it goes on, keep jobs off it: remediation does with `mode: auto`, `fabricpulse plugin` by hand.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a NIC."""
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
            yield finding("nic_flap", str(nic.id), evidence, [nic_subject(nic.id)], *needs)
