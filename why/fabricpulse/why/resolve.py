"""From what a scheduler shows to the name of a workload and the hosts on which it runs.

`fabricpulse_workload_info` says which Slurm job and which pod the processes of a workload are. What cgroups prove goes
before what a process says of itself: who merely says that it is another's job is not taken for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable
from fabricpulse.core.web.prometheus import PromQl, RefusedError, Sample
from fabricpulse.why.moment import when
from fabricpulse.why.queries import alternatives, quote

_MOST_SHOWN = 10
_LEAST_WINDOW_S = 300


@dataclass(frozen=True)
class Resolved:
    """hosts : on which what was asked about runs; () where all of the workload is meant."""

    workload: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Directory:
    """Where names are looked up. extra : matchers that each series must have. window_s : before `at_s`."""

    prom: PromQl
    at_s: float
    window_s: int = _LEAST_WINDOW_S
    extra: str = ""

    async def samples(self, metric: str, *matchers: str, by: str = "") -> list[Sample]:
        """The last samples of series in the window. Raises RefusedError."""
        text = self._last(metric, matchers)
        return await self.prom.instant(f"max by ({by}) ({text})" if by else text, self.at_s)

    async def last_seen_s(self, metric: str, *matchers: str) -> float | None:
        """When such a series was last there, in the day before. Raises RefusedError."""
        series = f"{metric}{{{self._matchers(matchers)}}}"
        query = f"max(max_over_time(timestamp({series})[1d:1m]))"
        return next((s.value for s in await self.prom.instant(query, self.at_s)), None)

    def _last(self, metric: str, matchers: Iterable[str]) -> str:
        return (
            f"last_over_time({metric}{{{self._matchers(matchers)}}}[{max(self.window_s, _LEAST_WINDOW_S)}s])"
        )

    def _matchers(self, matchers: Iterable[str]) -> str:
        return ", ".join([*matchers, *([self.extra] if self.extra else [])])


async def workload_of_slurm_job(directory: Directory, job: str) -> Resolved:
    """The workload of a Slurm job, and its hosts.

    Without an exporter that knows jobs: the workload of this name, as the plugin calls a job by its number. Raises
    UserError when there is none, or several.
    """
    shown = f"Slurm job {printable(job)}"
    matcher = f"slurm_job={quote(job)}"
    try:
        found = await directory.samples("fabricpulse_workload_info", matcher)
        if found:
            resolved = choose(found, shown)
            # Only where another job goes by the same name are its hosts left out: a host may have an older exporter.
            others = await directory.samples(
                "fabricpulse_workload_info",
                f"workload={quote(resolved.workload)}",
                f"slurm_job!={quote(job)}",
                'source="cgroup"',
            )
            return resolved if others else Resolved(resolved.workload)
        if await directory.samples("fabricpulse_qp_processes", f"workload={quote(job)}"):
            return Resolved(job)
        seen_s = await directory.last_seen_s("fabricpulse_workload_info", matcher)
        there = await directory.samples("fabricpulse_workload_info", 'slurm_job!=""', by="slurm_job, user")
    except RefusedError as error:
        raise UserError(f"the workload of {shown} cannot be asked for: {error}") from error
    if seen_s is not None:
        raise UserError(
            f"{shown} is not seen at this time, and was last at {when(seen_s)}: ask with --at {seen_s:.0f}"
        )
    jobs = sorted({_job(s) for s in there})
    # Of an array or a heterogeneous job the scheduler shows another name than the number by which hosts know it.
    hint = "; give its own number, SLURM_JOB_ID" if set(job) & set("_+") else ""
    raise UserError(f"no host runs {shown} with the plugin; there are: {_some(jobs) or 'none'}{hint}")


async def workload_of_pod(directory: Directory, pod: str) -> Resolved:
    """The workload of a pod, NAME or NAMESPACE/NAME.

    By the pod's uid, which kube-state-metrics has by name; else by what the pod's processes say of themselves; else by
    the only workload on the pod's node. Raises UserError when it is not known, or when there are several.
    """
    namespace, _, name = pod.rpartition("/")
    shown = f"pod {printable(pod)}"
    try:
        return await _workload_of_pod(directory, namespace, name, shown)
    except RefusedError as error:
        raise UserError(f"the workload of {shown} cannot be asked for: {error}") from error


async def _workload_of_pod(directory: Directory, namespace: str, name: str, shown: str) -> Resolved:
    matchers = [f"pod={quote(name)}", *([f"namespace={quote(namespace)}"] if namespace else [])]
    pods = await directory.samples("kube_pod_info", *matchers, by="node, uid, namespace")
    uids = {s.labels["uid"] for s in pods if s.labels.get("uid")}
    if uids and (
        found := await directory.samples(
            "fabricpulse_workload_info", f"pod_uid=~{quote(alternatives(sorted(uids)))}"
        )
    ):
        return _of_pod(choose(found, shown))
    own = [f"pod_name={quote(name)}", *([f"pod_namespace={quote(namespace)}"] if namespace else [])]
    # What a process says is believed only where nobody knows better.
    if not uids and (found := await directory.samples("fabricpulse_workload_info", *own)):
        return _of_pod(choose(found, shown))
    nodes = sorted({s.labels["node"] for s in pods if s.labels.get("node")})
    if not nodes:
        there = await directory.samples(
            "fabricpulse_workload_info", 'pod_name!=""', by="pod_namespace, pod_name"
        )
        names = sorted({f"{s.labels.get('pod_namespace', '')}/{s.labels.get('pod_name', '')}" for s in there})
        raise UserError(
            f"no kube_pod_info of {shown}: does kube-state-metrics run, is the name right? Pods that name themselves: "
            f"{_some(names) or 'none'}"
        )
    samples = await directory.samples(
        "fabricpulse_qp_processes", f"instance=~{quote(alternatives(nodes))}", by="workload"
    )
    workloads = sorted({s.labels.get("workload", "") for s in samples if s.value > 0})
    where = _some(nodes)
    if not workloads:
        raise UserError(f"no workload runs with the plugin on {where}, the node of {shown}")
    if len(workloads) > 1:
        raise UserError(f"several workloads run on {where}: give one of {_some(workloads)} instead of --pod")
    return Resolved(workloads[0])


def choose(samples: Iterable[Sample], shown: str) -> Resolved:
    """The one workload of series of `fabricpulse_workload_info`; of those alone that cgroups prove, if any are.

    Pure. Raises UserError when there are several: it is not known which of them is meant.
    """
    known = list(samples)
    proven = [s for s in known if s.labels.get("source") == "cgroup"] or known
    workloads = sorted({s.labels.get("workload", "") for s in proven})
    if len(workloads) > 1:
        raise UserError(f"{shown} is several workloads: give one of {_some(workloads)} as WORKLOAD")
    hosts = {host for s in proven if (host := s.labels.get("instance"))}
    return Resolved(workloads[0], tuple(sorted(hosts)))


def _of_pod(resolved: Resolved) -> Resolved:
    """All of the workload of which the pod is a part; the pod's host alone for what has no name."""
    return resolved if resolved.workload == "unknown" else Resolved(resolved.workload)


def _job(sample: Sample) -> str:
    return f"{sample.labels.get('slurm_job', '')} ({sample.labels.get('user', '')})"


def _some(names: list[str]) -> str:
    more = f", … ({len(names) - _MOST_SHOWN} more)" if len(names) > _MOST_SHOWN else ""
    return printable(", ".join(names[:_MOST_SHOWN]) + more)
