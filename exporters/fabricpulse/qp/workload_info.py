"""Which Slurm job or pod a workload is, of whom and since when: `fabricpulse_workload_info`. Pure.

Job, pod, user and start are the kernel's word where it has one (`process_facts`). What only the environment of the job
says, its account, number of nodes and pod's name, is taken where it does not contradict the kernel's; where the kernel
knows of no job, what the environment declares is taken, and `source` says so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.plugin_ipc.telemetry import Table, TelemetrySnapshot, text
from fabricpulse.plugin_ipc.verbs import VerbsSnapshot
from fabricpulse.qp import metrics
from fabricpulse.qp.process_facts import ProcessFacts, ProcessId

# A host has 8 or 16 ranks of a job or a few: what files say must not become more series than that.
MOST_PER_OWNER = 64
_SLURM_JOB = re.compile(r"[0-9]{1,18}", re.ASCII)
_POD_UID = re.compile(r"[0-9a-f-]{32,36}", re.ASCII)
# Kubernetes: names of pods are DNS subdomains, of namespaces labels.
_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_MOST_NODES = 1_000_000


@dataclass(frozen=True, order=True)
class WorkloadInfo:
    """Labels of the series. source : cgroup or environment. "" is unknown."""

    workload: str
    slurm_job: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    user: str = ""
    account: str = ""
    nodes: str = ""
    source: str = "environment"


@dataclass(frozen=True)
class Claim:
    """What the environment of a process says, made printable and plausible; "" is nothing."""

    slurm_job: str = ""
    account: str = ""
    nodes: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = ""


def claim(snapshot: TelemetrySnapshot) -> Claim:
    """Of the plugin in one process; an older plugin says nothing."""
    for record in snapshot.tables[Table.JOB]:
        account = text(record["account"])
        nodes = int(record["nodes"])
        return Claim(
            _plausible(_SLURM_JOB, text(record["slurm_job"])),
            account if account.isprintable() else "",
            str(nodes) if 0 < nodes <= _MOST_NODES else "",
            _plausible(_POD_NAME, text(record["pod_name"])),
            _plausible(_NAMESPACE, text(record["pod_namespace"])),
            _plausible(_POD_UID, text(record["pod_uid"])),
        )
    return Claim()


def info(workload: str, declared: Claim, known: ProcessFacts) -> WorkloadInfo:
    """The labels of one process' workload. What the environment says of another job than the kernel's is left out."""
    member = known.member_of
    if member is None:
        slurm, pod, source = declared.slurm_job, declared.pod_uid, "environment"
    else:
        slurm, pod, source = member.slurm_job, member.pod_uid, "cgroup"
    of_job = member is None or (slurm != "" and declared.slurm_job in ("", slurm))
    of_pod = member is None or (pod != "" and declared.pod_uid in ("", pod))
    return WorkloadInfo(
        workload,
        slurm,
        declared.pod_namespace if of_pod else "",
        declared.pod_name if of_pod else "",
        pod,
        known.user,
        declared.account if of_job else "",
        declared.nodes if of_job else "",
        source,
    )


def workload_infos(
    living: Iterable[TelemetrySnapshot],
    programs: Iterable[VerbsSnapshot],
    facts: Mapping[ProcessId, ProcessFacts],
) -> tuple[list[WorkloadInfo], dict[str, float]]:
    """The series of a host, sorted, of each user MOST_PER_OWNER at most; and the earliest start by workload, s since
    1970, where the kernel knows it."""
    by_owner: dict[int, set[WorkloadInfo]] = {}
    started: dict[str, float] = {}

    def take(workload: str, process: ProcessId, declared: Claim) -> None:
        known = facts.get(process)
        if known is None:
            return
        by_owner.setdefault(process[0], set()).add(info(workload, declared, known))
        if known.start_s is not None:
            started[workload] = min(known.start_s, started.get(workload, known.start_s))

    plugins = set()
    for snapshot in living:
        plugins.add((snapshot.workload, *snapshot.process[:3]))
        take(snapshot.workload, snapshot.process, claim(snapshot))
    for program in programs:
        # A process may have both libraries; the plugin says more.
        if (program.workload, *program.process[:3]) not in plugins:
            take(program.workload, program.process, Claim())
    found = [i for infos in by_owner.values() for i in sorted(infos)[:MOST_PER_OWNER]]
    shown = {i.workload for i in found}
    return sorted(set(found)), {w: start_s for w, start_s in sorted(started.items()) if w in shown}


def expose_workloads(infos: Iterable[WorkloadInfo], started: Mapping[str, float], out: Exposition) -> None:
    """Adds the series."""
    for i in infos:
        labels = (
            *(i.workload, i.slurm_job, i.pod_namespace, i.pod_name, i.pod_uid),
            *(i.user, i.account, i.nodes, i.source),
        )
        out.add(metrics.WORKLOAD_INFO, labels, 1)
    for workload, start_s in started.items():
        out.add(metrics.WORKLOAD_START, (workload,), round(start_s, 1))


def _plausible(pattern: re.Pattern[str], value: str) -> str:
    return value if pattern.fullmatch(value) else ""
