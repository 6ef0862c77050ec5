"""What `fabricpulse why` lists without a name: the workloads that run, as people and as the scheduler call them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable
from fabricpulse.core.web.prometheus import RefusedError, Sample
from fabricpulse.why.moment import when
from fabricpulse.why.resolve import Directory

_MOST_SHOWN = 200


@dataclass(frozen=True)
class Listed:
    """A workload. started_s : of its oldest process, since 1970. slurm_jobs, users, accounts : those that cgroups prove
    where there are any, else what processes say."""

    workload: str
    hosts: int
    started_s: float | None = None
    slurm_jobs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


async def list_workloads(directory: Directory) -> list[Listed]:
    """All of them, by name. Raises UserError when they cannot be asked for."""
    try:
        processes = await directory.samples("fabricpulse_qp_processes", by="workload, instance")
        infos = await directory.samples(
            "fabricpulse_workload_info", by="workload, slurm_job, user, account, source"
        )
        starts = await directory.samples(
            "fabricpulse_workload_start_timestamp_seconds", by="workload, instance"
        )
    except RefusedError as error:
        raise UserError(f"the workloads cannot be asked for: {error}") from error
    return listed(processes, infos, starts)


def listed(processes: Iterable[Sample], infos: Iterable[Sample], starts: Iterable[Sample]) -> list[Listed]:
    """From the series of `Directory.samples`. Pure."""
    hosts: defaultdict[str, int] = defaultdict(int)
    for s in processes:
        hosts[s.labels.get("workload", "")] += s.value > 0
    names: defaultdict[str, list[Sample]] = defaultdict(list)
    for s in infos:
        names[s.labels.get("workload", "")].append(s)
    started: dict[str, float] = {}
    for s in starts:
        workload = s.labels.get("workload", "")
        started[workload] = min(s.value, started.get(workload, s.value))

    def of(workload: str, label: str) -> tuple[str, ...]:
        series = names[workload]
        known = [s for s in series if s.labels.get("source") == "cgroup"] or series
        return tuple(sorted({v for s in known if (v := s.labels.get(label))}))

    return [
        Listed(
            *(workload, count, started.get(workload)),
            *(of(workload, label) for label in ("slurm_job", "user", "account")),
        )
        for workload, count in sorted(hosts.items())
        if count
    ]


def listing_text(found: list[Listed]) -> str:
    """A table for a terminal."""
    if not found:
        return "No workload runs with the plugin: does qp (port 9612) answer, and is it scraped?\n"
    rows: list[tuple[str, ...]] = [("WORKLOAD", "HOSTS", "SLURM JOB", "USER", "ACCOUNT", "SINCE")]
    rows += [
        (
            *(w.workload, str(w.hosts), *map(_some, (w.slurm_jobs, w.users, w.accounts))),
            "" if w.started_s is None else when(w.started_s),
        )
        for w in found[:_MOST_SHOWN]
    ]
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(found) > _MOST_SHOWN:
        lines.append(f"… and {len(found) - _MOST_SHOWN} more: --output json")
    return "\n".join(lines) + "\n"


def listing_document(found: list[Listed]) -> dict[str, Any]:
    """What `--output json` writes."""
    return {"schema": 1, "workloads": [asdict(w) for w in found]}


def _some(names: tuple[str, ...]) -> str:
    return ",".join(names[:3]) + (",…" if len(names) > 3 else "")
