"""Flows of this job wait in queues at the same time as flows of another job: they share links.

Identified by delay far above the job's quick flows, with signs of a queue (congestion marks or retransmissions), while
another job has slow flows too, and had none in the baseline unless both use a NIC. Those are read from the recorded
score of all jobs; where it is not recorded, contention is found and the other job stays unknown. Flows of both jobs
that end at the same NIC, or begin there, make it more likely. Also identified by a NIC with queued outgoing flows that
sends much beside this job which it did not send in the baseline: storage, or a job that is not measured.
"""

from collections.abc import Iterator

from fabricpulse.why.analysis import Analysis, nic_subject
from fabricpulse.why.causes.contention_self import (
    OLD_QUEUES,
    competing_nics,
    contenders,
    crossings,
    link_unknown,
    worst_receiver_unknown,
)
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

TITLE = "contention with another job"
DO = (
    "Place the jobs on different leaves, or give each a share of the links (traffic classes).",
    "Let the plugin spread: more lanes or other source ports move a flow to a quieter path.",
)


def find(a: Analysis) -> Iterator[Finding]:
    """One finding for the job, with the other jobs' names."""
    queued, others = a.queues_between, contenders(a)
    if queued and not others:
        yield from _competing(a)
    if not queued or not others:
        return
    worst = max(queued, key=a.score)
    names = ", ".join(sorted(others)[:5])
    mine = {nic for f in queued for nic in (f.source, f.target)}
    theirs = {nic for flows in others.values() for f in flows for nic in (f.source, f.target)}
    # In a large fleet some job waits somewhere at any time: without a NIC in common it may be chance.
    evidence = [
        Evidence(
            f"{len(queued)} flows wait in queues; {worst} has {a.score(worst):.0f} times the delay of quick flows",
            grows(a.score(worst), 3, 10, 0.5, 0.75),
            "delay",
        ),
        Evidence(
            f"flows of job {names} wait in queues at the same time",
            0.8 if mine & theirs else 0.7,
            "other_slow_flows",
        ),
    ]
    if mine & theirs:
        evidence.append(Evidence(f"both use {min(map(str, mine & theirs))}", 0.5, "other_slow_flows"))
    evidence += crossings(a, queued)
    # No subject of the whole job: what a NIC of these flows' hosts lost goes over the others, whose queues grow.
    subjects = [nic_subject(nic) for nic in sorted(mine)]
    found = finding("contention_jobs", f"{len(queued)} flows, with job {names}", evidence, subjects, "qp")
    if a.queues_are_old:
        found = as_hint(found, OLD_QUEUES)
    elif not mine & theirs and (unknown := link_unknown(a) or worst_receiver_unknown(a)):
        found = as_undecided(found, unknown)
    yield found


def _competing(a: Analysis) -> Iterator[Finding]:
    found = competing_nics(a)
    if not found:
        return
    nic, rate = max(found.items(), key=lambda item: item[::-1])
    queued = a.queues_between
    worst = max(queued, key=a.score)
    evidence = [
        Evidence(
            f"{len(queued)} flows wait in queues; {worst} has {a.score(worst):.0f} times the delay of quick flows",
            grows(a.score(worst), 3, 10, 0.5, 0.75),
            "delay",
        ),
        Evidence(
            f"beside this job {nic} sends {rate * 8e-9:.1f} Gb/s, more than twice of what it did",
            0.8,
            "transmitted",
        ),
    ]
    subjects = [nic_subject(nic) for nic in sorted(found)]
    yield finding(
        "contention_jobs", f"{len(queued)} flows, with what else {nic} sends", evidence, subjects, "qp", "nic"
    )
