"""Which Slurm job or pod a process belongs to, by the path of its cgroup. Pure.

The path of a process in /proc/<pid>/cgroup is the kernel's word, and who may make cgroups at the places below is root
alone: a user's own cgroups lie under /user.slice. Only paths that begin so count, and the outermost job of a path.

    /system.slice/slurmstepd.scope/job_4711/step_0/user/task_0                        Slurm, cgroup v2
    /slurm/uid_1000/job_4711/step_0                                                   Slurm, cgroup v1
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/...    kubelet, systemd driver
    /kubepods/burstable/pod<uid>/...                                                  kubelet, cgroupfs driver

Sources: Slurm's cgroups documentation (cgroup v2, cgroup.conf), the kubelet's cgroup drivers, cgroup_namespaces(7).
"""

import re
from dataclasses import dataclass

# cgroup_namespaces(7): in a cgroup namespace of our own, paths of others begin with as many /.. as lead out of it.
_OUTSIDE = re.compile(r"(?:/\.\.)+(?=/|$)")
_SLURM = (
    re.compile(r"/(?:[\w.@:-]+\.slice/)?(?:[\w.-]+_)?slurmstepd\.scope/job_([0-9]{1,18})(?:/|$)", re.ASCII),
    re.compile(r"/slurm(?:_[\w.-]+)?/uid_[0-9]+/job_([0-9]{1,18})(?:/|$)", re.ASCII),
)
_POD = (
    re.compile(
        r"/(?:kubelet\.slice/)?(?:(?:kubelet-)?kubepods\.slice/)?(?:(?:kubelet-)?kubepods-[a-z]+\.slice/)?"
        r"(?:kubelet-)?kubepods(?:-[a-z]+)?-pod([0-9a-f_]{32,36})\.slice(?:/|$)",
        re.ASCII,
    ),
    re.compile(r"/(?:kubelet/)?kubepods/(?:burstable/|besteffort/)?pod([0-9a-f-]{32,36})(?:/|$)", re.ASCII),
)
# From inside of a pod, those of the same class of service: their common part is gone.
_SIBLING_POD = re.compile(r"/pod([0-9a-f-]{32,36})(?:/|$)", re.ASCII)


@dataclass(frozen=True)
class CgroupMembership:
    """What a process is part of. One of both is set. pod_uid : with dashes."""

    slurm_job: str = ""
    pod_uid: str = ""


def membership(text: str) -> CgroupMembership | None:
    """By the lines of /proc/<pid>/cgroup; None when none of them is a job's or a pod's."""
    for line in text.splitlines():
        _, _, path = line.partition(":")
        _, _, path = path.partition(":")
        found = _of_path(path)
        if found is not None:
            return found
    return None


def _of_path(path: str) -> CgroupMembership | None:
    outside = _OUTSIDE.match(path)
    if outside is not None:
        path = path[outside.end() :]
    for pattern in _SLURM:
        if match := pattern.match(path):
            return CgroupMembership(slurm_job=match[1])
    for pattern in (*_POD, _SIBLING_POD) if outside else _POD:
        if match := pattern.match(path):
            return CgroupMembership(pod_uid=match[1].replace("_", "-"))
    return None
