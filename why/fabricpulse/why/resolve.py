"""From what a scheduler shows to the name of a workload."""

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable
from fabricpulse.why.prometheus import PromQl, RefusedError
from fabricpulse.why.queries import alternatives, quote

_MOST_SHOWN = 10


async def workload_of_pod(prom: PromQl, pod: str, at_s: float) -> str:
    """The workload that runs on the node of a pod, by kube-state-metrics.

    `pod` is NAME or NAMESPACE/NAME. Raises UserError when the pod is not known, or when its node runs no workload with
    the plugin, or several: which of them is the pod's nobody tells.
    """
    namespace, _, name = pod.rpartition("/")
    matchers = f"pod={quote(name)}" + (f", namespace={quote(namespace)}" if namespace else "")
    try:
        found = await prom.instant(f"max by (node) (last_over_time(kube_pod_info{{{matchers}}}[5m]))", at_s)
        nodes = sorted({s.labels["node"] for s in found if s.labels.get("node")})
        if not nodes:
            raise UserError(
                f"no kube_pod_info of pod {printable(pod)}: does kube-state-metrics run, is the name right?"
            )
        hosts = quote(alternatives(nodes))
        query = f"max by (workload) (last_over_time(fabricpulse_qp_processes{{instance=~{hosts}}}[5m]))"
        samples = await prom.instant(query, at_s)
    except RefusedError as error:
        raise UserError(f"the workload of pod {printable(pod)} cannot be asked for: {error}") from error
    workloads = sorted({s.labels.get("workload", "") for s in samples if s.value > 0})
    where = printable(", ".join(nodes[:_MOST_SHOWN]))
    if not workloads:
        raise UserError(f"no workload runs with the plugin on {where}, the node of pod {printable(pod)}")
    if len(workloads) > 1:
        names = printable(", ".join(workloads[:_MOST_SHOWN]))
        raise UserError(f"several workloads run on {where}: give one of {names} instead of --pod")
    return workloads[0]
