"""What a sidecar with ten edges costs, and one with eighty: hosts of the lab, real engines, one round a second."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.bench.clocksync.daemons import SETTLE_S, wait_for_probes

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus
from fabricpulse.lab import Lab, LabProcess

_NS = 10**9


def bench_sidecar(report: Callable[..., None], seconds: float = 30.0) -> None:
    """With ten edges, and with eighty."""
    _measure(report, 2, seconds, "<= 0.4", start="<= 0.5")
    _measure(report, 16, seconds, "<= 1.5", star=True)


def _measure(
    report: Callable[..., None],
    rails: int,
    seconds: float,
    most: str,
    *,
    start: str | None = None,
    star: bool = False,
) -> None:
    """CPU of each of six sidecars, until it is synchronized and later. most, start : what both must be. star : only the
    first host has edges to all others, and is measured; a lab in which all have eighty needs more than two cores.

    Which end of an edge fits it is a matter of names: the most loaded one counts.
    """
    hosts = 6
    case = f"{hosts} hosts x {rails} rails"
    with Lab(hosts=hosts, rails=rails, mtu=1500) as lab:
        memberships = [
            _write_membership(lab, [lab.hosts[0].name, host.name] if star and k else None)
            for k, host in enumerate(lab.hosts)
        ]
        rng = np.random.default_rng(1)
        lab.popen("mgmt", ["fabricpulse", "clocksync", "coordinator"], name="coordinator")
        url = f"http://{lab.resolve('mgmt')}:9614"
        sidecars: list[LabProcess] = []
        for k, host in enumerate(lab.hosts):
            offset, drift = int(rng.integers(-5 * _NS, 5 * _NS)), float(rng.uniform(-50, 50))
            host.clock.set(offset_ns=offset, drift_ppm=drift, wander_ppb=2, seed=k + 1)
            mesh = lab.directory / f"mesh-{host.name}.yaml"
            probe = {"cross_peers": 0}
            mesh.write_text(
                json.dumps({"host": host.name, "membership": {"file": str(memberships[k])}, "probe": probe})
            )
            host.popen(["fabricpulse", "mesh", "--config", str(mesh)], name="mesh")
            config = lab.directory / f"sidecar-{host.name}.yaml"
            config.write_text(json.dumps({"host": host.name, "coordinators": [url]}))
            listen = f"{host.front_end}:9613"
            command = ["fabricpulse", "clocksync", "sidecar", "--config", str(config)]
            sidecars.append(host.popen([*command, "--web.listen-address", listen], name="sidecar"))
        wait_for_probes(lab)
        started = []
        for host, process in zip(lab.hosts, sidecars, strict=True):
            _wait_synchronized(host.run_dir / "clock")
            started.append(round(cpu_s(lab, process.pid), 2))
        report(case, "sidecar_start_cpu_s", max(started), "s", start, each=started)
        time.sleep(SETTLE_S)  # the start has shorter steps, and fits both ends of an edge
        if star:
            del sidecars[1:]
        before = [cpu_s(lab, process.pid) for process in sidecars]
        began = time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - began
        percent = [
            round((cpu_s(lab, p.pid) - b) / spent * 100, 2) for p, b in zip(sidecars, before, strict=True)
        ]
        edges, fitted = [], []
        for host in lab.hosts[: len(sidecars)]:
            document = json.loads(
                lab.http_get("mgmt", f"http://{host.front_end}:9613/api/v1/clocksync/status")
            )
            edges.append(len(document["edges"]))
            fitted.append(sum(edge["offset_ns"] is not None for edge in document["edges"]))
        report(
            case, "sidecar_cpu_percent", max(percent), "%", most,
            edges=min(edges), fitted=fitted, each=percent,
        )  # fmt: skip


def _write_membership(lab: Lab, names: list[str] | None) -> Path:
    """A membership file of the hosts `names`, or of all."""
    hosts = [host for host in lab.membership().hosts if names is None or host.name in names]
    path = lab.directory / f"membership-{'-'.join(names or ['all'])}.yaml"
    fields = ("device", "address", "network")
    nics = {host.name: [{name: getattr(nic, name) for name in fields} for nic in host.nics] for host in hosts}
    path.write_text(
        json.dumps({"hosts": [{"name": name, "nics": of_host} for name, of_host in nics.items()]})
    )
    return path


def _wait_synchronized(page: Path, seconds: float = 30.0) -> None:
    """Returns when the clock page says so. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if page.exists():
            reader = ClockPageReader(page)
            status = reader.read().status
            reader.close()
            if status == ClockStatus.SYNCHRONIZED:
                return
        time.sleep(0.05)
    raise TimeoutError(f"{page}: not synchronized within {seconds:g} s")


def cpu_s(lab: Lab, pid: int) -> float:
    """CPU time of a process of the lab, which has process numbers of its own."""
    fields = lab.mgmt.run(["cat", f"/proc/{pid}/stat"]).stdout.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
