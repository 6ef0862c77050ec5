"""Eight hosts of the lab with the real daemons: mesh, sidecars, a coordinator; clocks that are wrong, and known."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench.clocksync.gain import EdgeErrors, report_gain, rms

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus, raw_now_ns
from fabricpulse.core.shm.probe_ring import HEADER, NEXT_OFFSET
from fabricpulse.lab import Host, Lab

_NS = 10**9


# After the first synchronisation windows grow to their full 4 s, and a window later every sample that was judged in a
# short one is gone. Nothing tells of it but time.
SETTLE_S = 8.0
# Without corrections for this long (clock.holdover_after_s) a clock says holdover.
HOLDOVER_AFTER_S = 4.0
# A host whose bound is wider has not recovered from a step of its clock.
_MOST_BOUND_NS = 5_000
# One holdover is looked at after each of these.
HOLDOVERS_S = (10, 60, 300)


def wait_for_probes(lab: Lab, seconds: float = 30.0) -> None:
    """Returns when the probe ring of every host has samples. Raises TimeoutError naming the hosts that have none."""
    until = time.monotonic() + seconds
    silent = [host.name for host in lab.hosts]
    while silent:
        if time.monotonic() > until:
            raise TimeoutError(f"no probe samples within {seconds:g} s on {', '.join(silent)}")
        time.sleep(0.02)
        silent = [name for name in silent if not _samples(lab.host(name).run_dir / "probes")]


def _samples(ring: Path) -> int:
    """How many samples a probe ring ever had; 0 while there is none. The count is the last field of its header."""
    try:
        with ring.open("rb") as file:
            return int.from_bytes(file.read(HEADER.size)[NEXT_OFFSET : NEXT_OFFSET + 8], "little")
    except FileNotFoundError:
        return 0


def bench_fleet(report: Callable[..., None], seconds: float, longest_holdover_s: float, steps: int) -> None:
    """Eight hosts with virtual clocks: convergence, mesh gain, `steps` steps, backward jumps, holdover."""
    with Lab(hosts=8, rails=1) as lab:
        membership = lab.write_membership()
        rng = np.random.default_rng(1)
        for k, host in enumerate(lab.hosts):
            host.clock.set(
                offset_ns=int(rng.integers(-5 * _NS, 5 * _NS)),
                drift_ppm=float(rng.uniform(-50, 50)),
                wander_ppb=2,
                seed=k + 1,
            )
        coordinator = lab.popen("mgmt", ["fabricpulse", "clocksync", "coordinator"], name="coordinator")
        url = f"http://{lab.resolve('mgmt')}:9614"
        for host in lab.hosts:
            mesh = lab.directory / f"mesh-{host.name}.yaml"
            mesh.write_text(json.dumps({"host": host.name, "membership": {"file": str(membership)}}))
            host.popen(["fabricpulse", "mesh", "--config", str(mesh)], name="mesh")
        wait_for_probes(lab)  # what is timed is clocksync's own start
        began = time.monotonic()
        sidecars = []
        for host in lab.hosts:
            config = lab.directory / f"sidecar-{host.name}.yaml"
            config.write_text(json.dumps({"host": host.name, "coordinators": [url]}))
            listen = f"{host.front_end}:9613"
            command = [
                "fabricpulse",
                "clocksync",
                "sidecar",
                "--config",
                str(config),
                "--web.listen-address",
                listen,
            ]
            sidecars.append(host.popen(command, name="sidecar"))
        watch = FleetWatch(lab)
        report("8 hosts", "converge_s", round(watch.until_below(1_000, began, 30), 2), "s", "<= 6")
        time.sleep(SETTLE_S)
        hogs = [lab.popen("mgmt", ["sh", "-c", "while :; do :; done"], name="hog") for _ in range(2)]
        report_gain(report, "8 hosts, hog", watch.run_with_edges(max(seconds, 20.0)))
        for hog in hogs:
            hog.kill()
        time.sleep(SETTLE_S)
        watch.reset()
        errors = watch.run_with_edges(max(seconds, 20.0))
        report("8 hosts", "sidecar_rss_mb", round(max(_lab_rss_mb(lab, p.pid) for p in sidecars), 1), "MB")
        report("8 hosts", "coordinator_rss_mb", round(_lab_rss_mb(lab, coordinator.pid), 1), "MB")
        node = rms(watch.node_errors)
        # What stays for the whole run: stamps of a host that are late one way. No mesh can tell it from its clock.
        bias = rms(np.reshape(watch.node_errors, (-1, len(lab.hosts))).mean(axis=0))
        report(
            "8 hosts", "node_err_ns_rms", round(node, 1), "ns", edge_err_ns_rms=round(rms(errors.edge_ns), 1),
            window_err_ns_rms=round(rms(errors.window_ns), 1), host_bias_ns_rms=round(bias, 1),
        )  # fmt: skip
        report_gain(report, "8 hosts", errors)
        report("8 hosts", "bound_coverage", watch.coverage(), "share", ">= 0.999")
        report(
            "8 hosts",
            "bound_width_ns_p50",
            round(2 * statistics.median(watch.bounds), 1),
            "ns",
            "<= 5000",
        )
        _bench_steps(lab, watch, report, steps)
        coordinator.kill()
        for name in ("mesh",):
            for process in [p for host in lab.hosts for p in host.processes() if p.name == name]:
                process.kill()
        watch.reset()
        watch.run(HOLDOVER_AFTER_S)
        began = time.monotonic()
        for lasts_s in (length for length in HOLDOVERS_S if length <= longest_holdover_s):
            watch.run(lasts_s - (time.monotonic() - began))
            name = f"holdover {lasts_s} s"
            held = all(t[2] == ClockStatus.HOLDOVER for t in watch.read().values())
            report(name, "bound_coverage", watch.coverage(), "share", ">= 0.999", all_say_holdover=held)
            report(
                name, "err_ns_max", round(max(abs(e) for e in watch.node_errors), 1), "ns",
                bound_ns_max=round(max(watch.bounds), 1),
            )  # fmt: skip
        report("8 hosts", "backward_jumps", watch.backward, "count", "== 0")


def _bench_steps(lab: Lab, watch: "FleetWatch", report: Callable[..., None], steps: int) -> None:
    """`steps` steps of 1 ms of one host's clock after another's, at random moments between two solves."""
    usual = max(abs(e) for e in watch.node_errors)
    watch.reset()
    rng = np.random.default_rng(1)
    seen = []
    for k in range(steps):
        time.sleep(float(rng.uniform(0, 1)))
        victim = lab.hosts[(3 + k) % len(lab.hosts)]
        seen.append(_step(lab, watch, victim, 1_000_000 if k % 2 == 0 else -1_000_000))
    recovered, errors, others = (np.array(column) for column in zip(*seen, strict=True))
    # One that never recovered makes the maximum NaN, which misses any limit.
    report(
        "step 1 ms", "step_recover_s", round(float(recovered.max()), 2), "s", "<= 6", steps=steps,
        err_ns_max=round(float(errors.max()), 1),
    )  # fmt: skip
    report("step 1 ms", "bound_coverage", watch.coverage(), "share", ">= 0.999")
    report(
        "step 1 ms", "step_others_extra_ns", round(max(0.0, float(others.max()) - usual), 1), "ns", "<= 100"
    )


def _step(lab: Lab, watch: "FleetWatch", victim: Host, by_ns: int) -> tuple[float, float, float]:
    """Seconds until the host has recovered, NaN if it has not after 8; largest error of it, and of the others, ns."""
    kernel = victim.clock.step(by_ns)
    while time.time_ns() < kernel:
        time.sleep(0.005)
    others = [h.name for h in lab.hosts if h is not victim]
    began = time.monotonic()
    worst, worst_victim, recovered = 0.0, 0.0, math.nan
    while time.monotonic() - began < 8:
        times = watch.read()
        watch.count_outside(times)
        # Differences first: a mean of times as they are would be a float, which knows them to 256 ns.
        base = times[others[0]][0]
        mean = statistics.mean(times[name][0] - base for name in others)
        worst = max(worst, *(abs(times[name][0] - base - mean) for name in others))
        error = abs(times[victim.name][0] - base - mean)
        worst_victim = max(worst_victim, error)
        there = error < 1_000
        _, bound_ns, status = times[victim.name]
        good = there and status == ClockStatus.SYNCHRONIZED and bound_ns <= _MOST_BOUND_NS
        recovered = (
            (time.monotonic() - began) if good and math.isnan(recovered) else recovered if good else math.nan
        )
        time.sleep(0.01)
    return recovered, worst_victim, worst


class FleetWatch:
    """Reads the clock pages of all hosts of a lab and knows the truth."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.readers: dict[str, ClockPageReader] = {}
        self.last: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.backward = 0
        self.reset()

    def reset(self) -> None:
        self.node_errors: list[float] = []
        self.bounds: list[float] = []
        self.pairs = self.outside = 0

    def read(self, now: int | None = None) -> dict[str, tuple[int, int, ClockStatus]]:
        """host -> (fleet time, bound, status), all at one moment, `now` by the kernel's raw clock."""
        now = raw_now_ns() if now is None else now
        result = {}
        for host in self.lab.hosts:
            reader = self.readers.get(host.name)
            if reader is None or reader.stale():
                try:
                    reader = self.readers[host.name] = ClockPageReader(host.run_dir / "clock")
                except OSError:
                    return {}
            page = reader.read()
            if page.status == ClockStatus.UNKNOWN:
                return {}
            fleet = page.at(host.clock.raw_from_kernel(now))
            if fleet.fleet_ns <= self.last.get(host.name, 0):
                self.backward += 1
            self.last[host.name] = fleet.fleet_ns
            result[host.name] = (fleet.fleet_ns, fleet.bound_ns, fleet.status)
        return result

    def until_below(self, limit_ns: float, began: float, seconds: float) -> float:
        """Seconds from `began` until all hosts agree within `limit_ns` and are synchronized; NaN if they never do."""
        while time.monotonic() - began < seconds:
            times = self.read().values()
            synced = bool(times) and all(t[2] == ClockStatus.SYNCHRONIZED for t in times)
            if synced and max(t[0] for t in times) - min(t[0] for t in times) < limit_ns:
                return time.monotonic() - began
            time.sleep(0.02)
        return math.nan

    def run(self, seconds: float) -> None:
        """Collects errors and bounds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pages = self.read()
            times = list(pages.values())
            base = times[0][0]
            mean = statistics.mean(t[0] - base for t in times)
            self.node_errors.extend(t[0] - base - mean for t in times)
            self.bounds.extend(t[1] for t in times)
            self.count_outside(pages)
            time.sleep(0.05)

    def count_outside(self, pages: dict[str, tuple[int, int, ClockStatus]]) -> None:
        """Counts the pairs of hosts whose times, as `read` gave them, are further apart than their bounds allow."""
        for a, b in itertools.combinations(pages.values(), 2):
            self.pairs += 1
            self.outside += abs(a[0] - b[0]) > a[1] + b[1]

    def coverage(self) -> float:
        return round(1 - self.outside / max(self.pairs, 1), 6)

    def run_with_edges(self, seconds: float) -> EdgeErrors:
        """Collects errors and bounds, and those of all edges at the moments when one looks.

        What one edge alone would make of its packets. As the time of a node, which is looked at in the same way, the
        edge's offset is some time old and goes on at the edge's rate.
        """
        errors = EdgeErrors()
        number = {host.name: at for at, host in enumerate(self.lab.hosts)}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            edges = [
                (host, edge) for host in self.lab.hosts for edge in self._status(host.front_end)["edges"]
            ]
            now = raw_now_ns()
            times = self.read(now)
            for host, edge in edges:
                if edge["offset_ns"] is None:
                    continue
                shown = self._stamp_ns(host, now)
                truth = self._stamp_ns(self.lab.host(edge["peer"]), now) - shown
                change = round(edge["rate_ppb"] * 1e-9 * (shown - edge["t_ns"]))
                edge_ns, window_ns = (edge[name] + change - truth for name in ("offset_ns", "raw_offset_ns"))
                pair_ns = times[edge["peer"]][0] - times[host.name][0]
                errors.add(number[host.name], number[edge["peer"]], edge_ns, pair_ns)
                errors.window_ns.append(window_ns)
            errors.moments += 1
            self.run(0.2)
        return errors

    def _stamp_ns(self, host: Host, raw_ns: int) -> int:
        if host.name not in self.epochs:
            self.epochs[host.name] = SampleReader(host.run_dir / "probes").stamp_epoch_ns
        return host.clock.raw_from_kernel(raw_ns) + self.epochs[host.name]

    def _status(self, address: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(
            self.lab.http_get("mgmt", f"http://{address}:9613/api/v1/clocksync/status")
        )
        return result


def _lab_rss_mb(lab: Lab, pid: int) -> float:
    return field_mb(lab.mgmt.run(["cat", f"/proc/{pid}/status"]).stdout, "VmRSS")


def field_mb(status: str, field: str) -> float:
    """VmRSS, or VmHWM for its peak; not getrusage, whose peak a child inherits from its parent."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024
