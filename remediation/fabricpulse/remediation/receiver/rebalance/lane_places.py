"""Which of the jobs that are congested on a rail at once may be so for the same link. Pure.

Which link of a leaf a lane takes is not known: the mesh knows the switches that its own probes cross, by their source
port, and a switch hashes the lane's protocol and destination port as well, so that the same source port takes another
path. The leaf is known that each NIC is plugged into, where a membership file says so.
"""

from collections.abc import Mapping

from fabricpulse.remediation.receiver.rebalance.lane_evidence import LaneSummary

# (host, device) -> leaf.
Leaves = Mapping[tuple[str, str], str]
Jobs = dict[str, list[LaneSummary]]


def groups(jobs: Jobs, leaves: Leaves) -> list[Jobs]:
    """The jobs by the leaves that their congested lanes leave from: first those that have one in common, directly or
    through others; then all that share none with another job, which may still meet above the leaves.

    All together where the leaf of one lane is not known.
    """
    places = {
        job: {leaves.get((lane.host, lane.last.device), "") for lane in lanes} for job, lanes in jobs.items()
    }
    if any("" in found for found in places.values()):
        return [jobs]
    together: list[tuple[set[str], Jobs]] = []
    for job, lanes in sorted(jobs.items()):
        place, joined = set(places[job]), {job: lanes}
        apart = []
        for other_place, others in together:
            if place & other_place:
                place, joined = place | other_place, others | joined
            else:
                apart.append((other_place, others))
        together = [*apart, (place, joined)]
    alone = {job: lanes for _, own in together if len(own) == 1 for job, lanes in own.items()}
    return [own for _, own in together if len(own) > 1] + ([alone] if alone else [])
