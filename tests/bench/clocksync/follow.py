"""A real chronyd that is fed by the sidecar: does what it makes of the samples agree with fleet time?

chronyd is asked at its command socket, not at its NTP port: there a query over loopback answers some 250 ns late (the
receive stamp is taken after the transmit stamp), which would be measured instead. That error is shown in a row of its
own, with a second chronyd that has no source and whose clock therefore is the kernel's.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.bench.clocksync.peers import ChronyTracking, NtpQuery, missing_tools, start_chronyd

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus
from fabricpulse.lab import Lab

# As docs/chrony.md recommends.
REFCLOCK = "refclock SOCK {sock} poll 0 filter 1 precision 1e-7 refid FLT"


# chronyd's regression over one sample a second has forgotten the start of the sidecar.
SETTLE_S = 16.0


def wait_for_tracking(command: Path, seconds: float = 60.0) -> ChronyTracking:
    """What asks chronyd, when it follows a source. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not command.exists() and time.monotonic() < until:
        time.sleep(0.02)
    tracking = ChronyTracking(command)
    while tracking.offset_ns() is None:
        if time.monotonic() > until:
            raise TimeoutError(f"chronyd at {command} follows nothing within {seconds:g} s")
        time.sleep(0.05)
    return tracking


def bench_chrony(report: Callable[..., None], seconds: float = 30.0) -> None:
    """chronyd -x with `refclock SOCK` on one of two hosts; its clock beside the clock page of the same host."""
    if missing_tools():
        report("chronyd -x, SOCK", "chrony_follow_ns_p95", float("nan"), "ns", "<= 200")
        return
    with Lab(hosts=2, rails=1, mtu=1500) as lab:
        membership = lab.write_membership()
        # chronyd sees the kernel's clock, not a virtual one: offset and rate of h0 stay 0, h1 differs.
        lab.hosts[1].clock.set(offset_ns=300_000, drift_ppm=7.0, wander_ppb=2, seed=1)
        lab.popen("mgmt", ["fabricpulse", "clocksync", "coordinator"], name="coordinator")
        sock = lab.directory / "chrony.sock"
        host = lab.hosts[0]
        lines = [REFCLOCK.format(sock=sock), "local stratum 10"]
        command = start_chronyd(host, lab.directory, "fed", 11_240, lines)
        start_chronyd(host, lab.directory, "free", 11_241, ["local stratum 10"])
        for h in lab.hosts:
            mesh = lab.directory / f"mesh-{h.name}.yaml"
            mesh.write_text(json.dumps({"host": h.name, "membership": {"file": str(membership)}}))
            h.popen(["fabricpulse", "mesh", "--config", str(mesh)], name="mesh")
            config = lab.directory / f"sidecar-{h.name}.yaml"
            outputs = {"chrony_sock": str(sock)} if h is host else {}
            url = f"http://{lab.resolve('mgmt')}:9614"
            config.write_text(json.dumps({"host": h.name, "coordinators": [url], "outputs": outputs}))
            h.popen(["fabricpulse", "clocksync", "sidecar", "--config", str(config)], name="sidecar")
        query = NtpQuery(lab, host.name, 11_241)
        tracking = wait_for_tracking(command)
        time.sleep(SETTLE_S)
        differences, loopback, bounds = [], [], []
        reader = ClockPageReader(host.run_dir / "clock")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked = time.time_ns()
            believed = tracking.offset_ns()
            kernel = (asked + time.time_ns()) // 2
            fleet = reader.read().convert(kernel)
            if believed is not None and fleet.status == ClockStatus.SYNCHRONIZED:
                differences.append(believed - (fleet.fleet_ns - kernel))
                bounds.append(fleet.bound_ns)
            late = query.offset_ns()
            if late is not None:
                loopback.append(late)
            time.sleep(0.05)
        query.close()
        tracking.close()
    size = np.abs(differences)

    def quantile(q: float) -> float:
        return round(float(np.quantile(size, q)), 1) if differences else float("nan")

    report(
        "chronyd -x, SOCK", "chrony_follow_ns_p95", quantile(0.95), "ns", "<= 200",
        p50=quantile(0.5), p99=quantile(0.99), worst=quantile(1.0), mean=round(float(np.mean(differences or [0])), 1),
        count=len(differences),
    )  # fmt: skip
    if loopback:
        middle = round(float(np.median(loopback)), 1)
        report("chronyd -x, no source", "ntp_query_bias_ns", middle, "ns", count=len(loopback))
