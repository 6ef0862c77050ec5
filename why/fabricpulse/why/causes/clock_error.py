"""A host's clock is stepped, wrong or not synchronized: its one-way delays, and the order of its events, mislead.

Identified by clocksync: steps and contradictions in the window, the coordinator's suspicion, no synchronization, a
wide error bound. Where most hosts have no fleet time, that is a hint of each of them. It does not slow a job. It makes
paths of the host look slow or quick when they are not: one-way delays from and to it are left out of everything else.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import BOUND_S, Analysis
from fabricpulse.why.finding import Evidence, Finding, as_hint, finding

TITLE = "slow or stepped clock"
DO = (
    "See `fabricpulse clocksync status` on this host; find who sets its clock beside chrony (a second time daemon, a "
    "hypervisor, a person).",
    "Do not believe one-way delays of this host until it is synchronized again.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a host."""
    clocks = a.facts.clocks
    # Then it is the fleet that has no time (a coordinator that is down, a fleet that starts), and nobody's clock.
    nobody = len(clocks) > 2 and sum(c.synchronized is False for c in clocks) * 2 > len(clocks)
    for clock in clocks:
        evidence = []
        if clock.disruptions is not None and clock.disruptions > 0.5:
            evidence.append(
                Evidence(
                    f"fleet time of {clock.host} was found wrong {clock.disruptions:.0f} times",
                    0.95,
                    "clock_disruptions",
                )
            )
        if clock.suspect:
            evidence.append(
                Evidence(f"the stamps of {clock.host} contradict the fleet", 0.92, "clock_suspect")
            )
        if clock.synchronized is False:
            evidence.append(_unsynchronized(a, clock.host))
        if clock.bound_s is not None and clock.bound_s > BOUND_S:
            evidence.append(
                Evidence(
                    f"fleet time of {clock.host} is known to {clock.bound_s * 1e3:.1f} ms only",
                    0.8,
                    "clock_bound",
                )
            )
        if evidence:
            found = finding("clock_error", clock.host, evidence, [("clock", clock.host)], "clocksync")
            stepped = (clock.disruptions or 0) > 0.5 or clock.suspect
            reason = "most hosts of the job have no fleet time: it is not known, and nobody is wrong for it"
            yield as_hint(found, reason) if nobody and not stepped else found


def _unsynchronized(a: Analysis, host: str) -> Evidence:
    """A host that no probe reaches, or that sends none, cannot be, whatever its clock is like."""
    if host in a.hosts and "mesh" not in a.hosts[host].exporters:
        return Evidence(f"{host} is not synchronized, as its mesh exporter is off", 0.3, "clock_synchronized")
    nics = a.nics_of(host)
    if nics and all(nic.connected is False for nic in nics):
        return Evidence(f"{host} is not synchronized, as it is cut off", 0.3, "clock_synchronized")
    return Evidence(f"{host} is not synchronized", 0.9, "clock_synchronized")
