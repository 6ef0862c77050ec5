"""A real chronyd that is fed by the sidecar: does what it makes of the samples agree with fleet time?"""

import json
import time
from collections.abc import Callable

import numpy as np
from tests.bench.clock_peers import NtpQuery, missing_tools, start_chronyd

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus
from fabricpulse.lab import Lab


def bench_chrony(report: Callable[..., None], seconds: float = 20.0) -> None:
    """chronyd -x with `refclock SOCK` on one of two hosts; its clock by NTP against the clock page of the same host."""
    if missing_tools():
        report("chronyd -x, SOCK", "chrony_follow_ns_p95", float("nan"), "ns", lambda v: v <= 200)
        return
    with Lab(hosts=2, rails=1, mtu=1500) as lab:
        membership = lab.write_membership()
        # chronyd sees the kernel's clock, not a virtual one: offset and rate of h0 stay 0, h1 differs.
        lab.hosts[1].clock.set(offset_ns=300_000, drift_ppm=7.0, wander_ppb=2, seed=1)
        lab.popen("mgmt", ["fabricpulse", "clocksync", "coordinator"], name="coordinator")
        sock = lab.directory / "chrony.sock"
        host = lab.hosts[0]
        start_chronyd(
            host,
            lab.directory,
            "fed",
            11_240,
            [f"refclock SOCK {sock} poll 0 filter 1 refid FLT", "local stratum 10"],
        )
        for h in lab.hosts:
            mesh = lab.directory / f"mesh-{h.name}.yaml"
            mesh.write_text(json.dumps({"host": h.name, "membership": {"file": str(membership)}}))
            h.popen(["fabricpulse", "mesh", "--config", str(mesh)], name="mesh")
            config = lab.directory / f"sidecar-{h.name}.yaml"
            outputs = {"chrony_sock": str(sock)} if h is host else {}
            url = f"http://{lab.resolve('mgmt')}:9614"
            config.write_text(json.dumps({"host": h.name, "coordinators": [url], "outputs": outputs}))
            h.popen(["fabricpulse", "clocksync", "sidecar", "--config", str(config)], name="sidecar")
        query = NtpQuery(lab, host.name, 11_240)
        time.sleep(25)
        differences = []
        reader = ClockPageReader(host.run_dir / "clock")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            believed = query.offset_ns()
            now = time.time_ns()
            fleet = reader.read().convert(now)
            if believed is not None and fleet.status == ClockStatus.SYNCHRONIZED:
                differences.append(abs(believed - (fleet.fleet_ns - now)))
            time.sleep(0.05)
        query.close()
        p95 = round(float(np.quantile(differences, 0.95)), 1) if differences else float("nan")
        report(
            "chronyd -x, SOCK", "chrony_follow_ns_p95", p95, "ns", lambda v: v <= 200, count=len(differences)
        )
