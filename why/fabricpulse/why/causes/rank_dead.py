"""A process of the job is gone while the others wait.

Told by fewer processes with the plugin on a host than before, while other hosts have as many as they had. All gone
everywhere is a job that has ended, and no finding. A host whose exporters are gone as well has probably crashed.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.finding import Evidence, Finding, finding

TITLE = "rank dead"
DO = (
    "Look at the job's own log on this host, and at the kernel's (out of memory, Xid errors).",
    "The others do not notice by themselves: end the job, or let the framework's watchdog do so, and start it again.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a host."""
    alive = [h for h in a.facts.hosts if (h.processes or 0) > 0]
    if not alive:
        return
    for host in a.facts.hosts:
        before, now = host.processes_before, host.processes or 0.0
        if not before or now >= before:
            continue
        # Traffic that goes on says that only the plugin is gone: causes.plugin_off.
        nics = [
            n
            for n in a.facts.nics
            if n.id.host == host.name and n.transmitted is not None and n.transmitted_before
        ]
        if nics and sum(n.transmitted or 0 for n in nics) > 0.5 * sum(
            n.transmitted_before or 0 for n in nics
        ):
            continue
        evidence = [
            Evidence(
                f"{host.name} has {now:.0f} processes of the job and had {before:.0f}", 0.85, "processes"
            )
        ]
        if nics:
            evidence.append(Evidence("its NICs send less than half of what they sent", 0.5, "transmitted"))
        if a.stalled:
            evidence.append(Evidence("the collectives of the others do not end", 0.7, "rank_operations"))
        if not host.exporters:
            evidence.append(
                Evidence(f"no exporter of {host.name} answers: the host may be down", 0.6, "exporters")
            )
        yield finding("rank_dead", host.name, evidence, [("host", host.name), ("job",)], "qp")
