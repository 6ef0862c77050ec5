"""A process of the job is gone while the others wait.

Identified by processes that left their telemetry file behind, as killed or crashed ones do: the others of the job,
which end because of it, remove theirs. Else by fewer processes with the plugin on a host than before, while other hosts
have as many as they had. No finding where other hosts have as many more: the job was moved; a hint where the others'
collectives go on as quickly as before, or where they end and nobody says what the host does: its exporters do not
answer. If all are gone and left no file, the job has ended, and it is no finding.
A host whose exporters are gone as well has probably crashed. NCCL's RAS service, where it is asked, names ranks that
it considers dead or that do not answer.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import SLOWER, Analysis
from fabricpulse.why.facts import Host
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding

TITLE = "rank dead"
DO = (
    "Look at the job's own log on this host, and at the kernel's (out of memory, Xid errors).",
    "The others do not notice by themselves: end the job, or let the framework's watchdog do so, and start it again.",
)


_MOST_MISSING = 8


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a host, and one a rank that RAS misses."""
    yield from _missing(a)
    dead = [h for h in a.facts.hosts if h.dead]
    yield from _dead(a, dead)
    alive = [h for h in a.facts.hosts if (h.processes or 0) > 0]
    if dead or not alive:
        return
    if sum(h.processes or 0 for h in a.facts.hosts) >= sum(h.processes_before or 0 for h in a.facts.hosts):
        return
    for host in a.facts.hosts:
        before, now = host.processes_before, host.processes or 0.0
        if not before or now >= before:
            continue
        # Traffic that goes on says that only the plugin is gone: causes.plugin_off.
        nics = [n for n in a.nics_of(host.name) if n.transmitted is not None and n.transmitted_before]
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
        found = finding("rank_dead", host.name, evidence, [("host", host.name), ("job",)], "qp")
        if not a.stalled and a.pace is not None and a.pace > 1 / SLOWER:
            found = as_hint(
                found, "the collectives of the others end as often as before: the job goes on without it"
            )
        elif not host.processes and "qp" not in host.exporters and (host.exporters or not a.stalled):
            found = as_hint(found, f"no qp exporter of {host.name} says whether its processes are there")
        elif host.processes is None and "qp" in host.exporters:
            found = as_undecided(
                found, f"the count of processes of {host.name} (fabricpulse_qp_processes) is missing"
            )
        elif not nics and "nic" not in host.exporters and not a.stalled:
            found = as_hint(found, "the collectives of the others end, and what its NICs send is not known")
        yield found


def _dead(a: Analysis, hosts: list[Host]) -> Iterator[Finding]:
    """Of a job whose watchdog aborts all ranks every one is killed: then none of them is more likely than another."""
    strength = 0.93 if len(hosts) * 2 <= len(a.facts.hosts) else 0.4
    # Where the others have ended it runs nowhere: of a host whose only process died the count before is the last one.
    others = [h for h in a.facts.hosts if h not in hosts]
    over = bool(others) and all(h.processes == 0 for h in others)
    for host in hosts:
        evidence = [
            Evidence(
                f"{host.dead:.0f} processes of the job on {host.name} were killed or have crashed",
                strength,
                "dead",
            )
        ]
        if a.stalled:
            evidence.append(Evidence("the collectives of the others do not end", 0.7, "rank_operations"))
        found = finding("rank_dead", host.name, evidence, [("host", host.name), ("job",)], "qp")
        back = bool(host.processes) and (host.processes or 0) >= (host.processes_before or 0) and not over
        if not a.stalled and a.facts.gone_s is None and back:
            found = as_hint(found, "as many processes as before run there again: it has been started anew")
        yield found


def _missing(a: Analysis) -> Iterator[Finding]:
    for m in sorted(a.facts.missing, key=lambda m: (not m.dead, m.communicator, m.rank))[:_MOST_MISSING]:
        place = f"rank {m.rank} on {m.host} (process {m.pid}) of communicator {m.communicator}"
        said = "NCCL's RAS holds it for dead" if m.dead else "it did not answer NCCL's RAS in time"
        evidence = [Evidence(f"{place}: {said}", 0.9 if m.dead else 0.6)]
        evidence += [Evidence(f"{error}", 0.3) for error in a.facts.rank_errors[:1]]
        yield finding("rank_dead", f"rank {m.rank} on {m.host}", evidence, [("host", m.host), ("job",)])
