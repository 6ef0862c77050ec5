"""What the mesh says of links that fail, in a fleet of four hosts: detection, alert, flaps.

The two rails are two networks: while a NIC of one is down, its health hangs on that rail alone (and on the ways across
that end in it). So one NIC of each rail is faulted at a time, in parallel; every fault is measured for itself.
"""

import http.client
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

from tests.bench.mesh.rows import report
from tests.bench.rows import quantile
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import PORT, MeshFleet

from fabricpulse.lab import Lab, Nic
from fabricpulse.lab.servers import start_alertmanager
from fabricpulse.lab.tools import find_tools

DISCONNECTS = "fabricpulse_nic_disconnects_total"


@contextmanager
def fleet_of_four(down_after_s: float, **config: Any) -> Iterator[MeshFleet]:
    """Four hosts, two rails, all probing, on true fleet time."""
    with Lab() as lab:
        for number, host in enumerate(lab.hosts):
            host.clock.set(offset_ns=(number - 1) * 5_000_000_000, drift_ppm=11.0 * (number - 1))
        fleet = MeshFleet(lab, {"down_after_s": down_after_s}, latency={"window_s": 5}, **config)
        fleet.start()
        fleet.true_clock()
        fleet.wait_green(30)
        yield fleet


class Watch:
    """Reads one metric of one exporter as fast as it answers, over one connection. Of one thread."""

    def __init__(self, fleet: MeshFleet, host: str) -> None:
        self.connection = http.client.HTTPConnection(host, PORT, timeout=10)
        self.connection.sock = fleet.lab.connect(host, "127.0.0.1", PORT)

    def shows(self, device: str, value: str) -> bool:
        """Whether fabricpulse_nic_connected of the device has this value now."""
        self.connection.request("GET", "/metrics")
        text = self.connection.getresponse().read().decode()
        start = text.find(f'\nfabricpulse_nic_connected{{device="{device}"')
        return start >= 0 and text[start + 1 : text.find("\n", start + 1)].endswith(f" {value}")


def in_parallel(workers: list[Callable[[], list[float]]]) -> list[float]:
    """Runs the workers in threads of their own; all their values. Raises what a worker raised."""
    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker) for worker in workers]
        return [value for each in running for value in each.result()]


def shares(count: int, parts: int) -> list[int]:
    """`count` split into `parts` that differ by 1 at most."""
    return [count // parts + (number < count % parts) for number in range(parts)]


def nics_of_rail(fleet: MeshFleet, rail: int, count: int, seed: int) -> Iterator[tuple[str, Nic]]:
    """`count` times a NIC of this rail, hosts in random order."""
    rng = random.Random(seed + rail)
    for _ in range(count):
        host = rng.choice(fleet.lab.hosts)
        yield host.name, host.nics[rail]


def bench_detect(down_after_s: float, faults: int, must: str) -> None:
    """From the moment a link goes down to the metric that says so, scraped all the while."""
    with fleet_of_four(down_after_s) as fleet:

        def play(rail: int, count: int) -> list[float]:
            watches = {host.name: Watch(fleet, host.name) for host in fleet.lab.hosts}
            rng = random.Random(3 + rail)
            times = []
            for host, nic in nics_of_rail(fleet, rail, count, 2):
                wait_for(partial(watches[host].shows, nic.device, "1"), 10, "connected")
                time.sleep(rng.uniform(0.05, 0.15))  # at any moment of the exporter's rhythm
                with nic.down() as fault:
                    wait_for(partial(watches[host].shows, nic.device, "0"), 10, "disconnected", poll_s=0.01)
                    times.append((time.time_ns() - fault.event.before_ns) / 1e6)
            return times

        rails = range(len(fleet.lab.hosts[0].nics))
        times = in_parallel(
            [partial(play, r, n) for r, n in zip(rails, shares(faults, len(rails)), strict=True)]
        )
    report_times(f"link down to metric, down after {down_after_s:g} s", "detect_ms", times, must)


def report_times(case: str, metric: str, times: list[float], must: str) -> None:
    """One row: the 99th percentile against its gate, and the median and the worst beside it."""
    report(
        f"{case}, {len(times)} faults",
        f"{metric}_p99",
        quantile(times, 0.99),
        "ms",
        must,
        p50=round(statistics.median(times), 1),
        max=round(max(times), 1),
    )


def bench_alert(faults: int) -> None:
    """From the moment a link goes down to the alert in a real Alertmanager, pushed, at 200 ms."""
    with Lab() as lab:
        config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
        alertmanager = start_alertmanager(lab, config, tools=find_tools())
        url = f"http://{lab.resolve('mgmt')}:{alertmanager.port}"
        fleet = MeshFleet(lab, {"down_after_s": 0.2})
        for host in lab.hosts:
            labels = {"job": "mesh", "instance": host.name}
            # No Prometheus is there whose copy of the alert would have to end first.
            fleet.config["alerting"] = {"alertmanagers": [url], "labels": labels, "resolve_hold_s": 0}
            fleet.start(host.name)
        fleet.wait_green(30)

        def firing(host: str, device: str) -> bool:
            matchers = ('alertname="FabricNicDisconnected"', f'device="{device}"', f'instance="{host}"')
            return bool(alertmanager.alerts(*matchers))

        def play(rail: int, count: int) -> list[float]:
            watches = {host.name: Watch(fleet, host.name) for host in lab.hosts}
            times = []

            def quiet(host: str, device: str) -> bool:
                return watches[host].shows(device, "1") and not firing(host, device)

            for name, nic in nics_of_rail(fleet, rail, count, 4):
                wait_for(partial(quiet, name, nic.device), 10, "connected, and no alert")
                with nic.down() as fault:
                    wait_for(partial(firing, name, nic.device), 10, "the alert", poll_s=0.01)
                    times.append((time.time_ns() - fault.event.before_ns) / 1e6)
            return times

        rails = range(len(lab.hosts[0].nics))
        times = in_parallel(
            [partial(play, r, n) for r, n in zip(rails, shares(faults, len(rails)), strict=True)]
        )
    report_times("link down to Alertmanager, down after 0.2 s", "alert_ms", times, "<= 500")


class Flapping:
    """Random flaps of one NIC, each longer than the interval of 0.2 s, and when they were."""

    def __init__(self, host: str, nic: Nic, count: int) -> None:
        self.host, self.nic, self.count = host, nic, count
        self.outages: list[tuple[int, int]] = []  # down and up again, ns of the kernel's clock

    def play(self) -> list[float]:
        """Flaps; returns when all are done."""
        rng = random.Random(self.host + self.nic.device)
        for _ in range(self.count):
            down = self.nic.switch_port.set_up(False)
            time.sleep(rng.uniform(0.25, 0.7))  # the length of the outage
            up = self.nic.switch_port.set_up(True)
            self.outages.append((down.before_ns, up.after_ns))
            time.sleep(rng.uniform(0.35, 0.7))  # and of what lies between two
        return []


def bench_flaps(flaps: int) -> None:
    """Random flaps longer than the interval, on one NIC of each host: every one is counted, and nothing else."""
    with fleet_of_four(0.2, event_log={"keep": 10_000}) as fleet:
        # Two NICs of each rail: whatever coincides, a NIC that is up has peers that are.
        plans = [
            Flapping(host.name, host.nics[number % len(host.nics)], count)
            for number, (host, count) in enumerate(
                zip(fleet.lab.hosts, shares(flaps, len(fleet.lab.hosts)), strict=True)
            )
        ]
        in_parallel([plan.play for plan in plans])
        fleet.wait_green()
        played = {(plan.host, plan.nic.device): plan for plan in plans}
        counted = miscounted = 0.0
        for host in fleet.lab.hosts:
            scrape = fleet.scrape(host.name)
            for nic in host.nics:
                count = scrape.value(DISCONNECTS, device=nic.device) or 0.0
                plan = played.get((host.name, nic.device))
                counted += count
                miscounted += abs(count - (plan.count if plan else 0))
                if count != (plan.count if plan else 0):
                    explain(fleet, host.name, nic.device, plan)
    case = f"{flaps} flaps longer than the interval, 0.2 s"
    report(case, "flaps_counted", counted, "flaps", f"== {flaps}")
    report(case, "flaps_miscounted", miscounted, "flaps", "== 0")


def since_1970_ns(text: str) -> int:
    """The inverse of `rfc3339` of core.event_log."""
    seconds, _, ns = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{seconds}+00:00").timestamp()) * 1_000_000_000 + int(ns)


def explain(fleet: MeshFleet, host: str, device: str, plan: Flapping | None) -> None:
    """Says on stderr which outages have not one disconnect each, with the events of the host around them."""
    to_host = partial(fleet.lab.host(host).clock.from_kernel)
    events = [{"time_ns": since_1970_ns(e["time"]), **e} for e in fleet.get(host, "/api/v1/events")["events"]]
    began = [e for e in events if e["event"] == "nic_disconnected" and e.get("device") == device]
    outages = [(to_host(down), to_host(up)) for down, up in plan.outages] if plan else []
    slack = 150_000_000
    strange = [down for down, up in outages if sum(down <= e["time_ns"] <= up + slack for e in began) != 1]
    strange += [
        e["time_ns"] for e in began if not any(down <= e["time_ns"] <= up + slack for down, up in outages)
    ]
    for moment in strange:
        print(f"bench mesh: {host} {device}: miscounted at {moment}", file=sys.stderr)
        near: list[tuple[int, Any]] = [
            (e["time_ns"], e) for e in events if abs(e["time_ns"] - moment) < 1_500_000_000
        ]
        near += [(down, "link down") for down, _ in outages if abs(down - moment) < 1_500_000_000]
        near += [(up, "link up") for _, up in outages if abs(up - moment) < 1_500_000_000]
        for at, what in sorted(near, key=lambda pair: pair[0]):
            print(f"  {(at - moment) / 1e6:+9.1f} ms {json.dumps(what)}", file=sys.stderr)
