"""What happens to the clocks of a host while its sidecar, or its probe engine, is stopped or dead; `bound_violations`
must be 0.

Five hosts of the lab with real engines and sidecars. That of one is stopped or killed at a random moment; up to
a third of a second later its clocks lose 20 us to 2 s, as those of a virtual machine that was paused, or turn by 5 to
500 ppm. Judged from two probe intervals after the event on (and 240 ms after the end of an engine, which is noticed
within that), a thousand times a second, until the process has been back for some seconds: fleet times of two hosts that
both say synchronized and differ by more than the sum of their bounds. In the lab clocks go back by a pause, and
programs run on: for so long nothing is judged.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from itertools import combinations

from tests.bench.clocksync.daemons import SETTLE_S, wait_for_probes

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus, FleetTime, raw_now_ns
from fabricpulse.lab import Host, Lab, LabProcess

_PROBE_INTERVAL_NS = 20_000_000
_ENGINE_MISSED_NS = 240_000_000
_PATIENCE_S = 60.0
# Of the oscillators, at first.
_PPM = (-11.3, 23.7, 4.1, -3.2, 8.9)


def bench_unwatched(report: Callable[..., None], runs: int = 30) -> None:
    """Each event `runs` times, half of them with a sidecar that was killed."""
    with Lab(hosts=5, rails=1) as lab:
        fleet = _Fleet(lab)
        time.sleep(SETTLE_S)  # fleet time has its usual bound then
        for part in "sidecar", "probe engine":
            for name, happen in (
                ("pauses of 20 us to 2 s", _pause),
                ("frequency steps of 5 to 500 ppm", _turn),
            ):
                false, judged = 0, 0
                for run in range(runs):
                    more, reads = fleet.play(part, happen, (run + 0.5) / runs, kill=bool(run % 2))
                    false, judged = false + more, judged + reads
                report(f"{part} stopped or killed, {name}", "bound_violations", false, "reads", "== 0",
                       runs=runs, reads=judged)  # fmt: skip


def _pause(host: Host, size: float) -> int:
    lost_ns = int(20_000 * 100_000**size)
    return host.clock.pause(lost_ns) + lost_ns


def _turn(host: Host, size: float) -> int:
    by_ppm = random.choice((-1, 1)) * 5 * 100**size
    turned = abs(host.clock.drift_ppm - _PPM[2]) > 2
    return host.clock.set(drift_ppm=_PPM[2] if turned else _PPM[2] + by_ppm)


class _Fleet:
    def __init__(self, lab: Lab) -> None:
        self._lab, self._random = lab, random.Random(1)
        membership = lab.write_membership()
        lab.popen("mgmt", ["fabricpulse", "clocksync", "coordinator"], name="coordinator")
        self._victim = lab.hosts[2]
        for number, host in enumerate(lab.hosts):
            host.clock.set(drift_ppm=_PPM[number], wander_ppb=2.0, seed=number + 1)
            mesh = lab.directory / f"mesh-{host.name}.yaml"
            mesh.write_text(json.dumps({"host": host.name, "membership": {"file": str(membership)}}))
        self._start = {"sidecar": self._sidecar, "probe engine": self._mesh}
        meshes = {host.name: self._mesh(host) for host in lab.hosts}
        sidecars = {host.name: self._sidecar(host) for host in lab.hosts}
        self._processes = {"sidecar": sidecars, "probe engine": meshes}
        wait_for_probes(lab)
        self._readers: dict[str, ClockPageReader] = {}
        self._wait_synchronized()

    def _mesh(self, host: Host) -> LabProcess:
        config = self._lab.directory / f"mesh-{host.name}.yaml"
        return host.popen(["fabricpulse", "mesh", "--config", str(config)], name="mesh")

    def _sidecar(self, host: Host) -> LabProcess:
        config = self._lab.directory / f"sidecar-{host.name}.yaml"
        url = f"http://{self._lab.resolve('mgmt')}:9614"
        config.write_text(json.dumps({"host": host.name, "coordinators": [url]}))
        listen = f"{host.front_end}:9613"
        command = ["fabricpulse", "clocksync", "sidecar", "--config", str(config)]
        return host.popen([*command, "--web.listen-address", listen], name="sidecar")

    def _times(self) -> list[FleetTime]:
        """Of all hosts at one moment."""
        pages = [(host, self._readers[host.name].read()) for host in self._lab.hosts]
        raw_ns = raw_now_ns()
        return [page.at(host.clock.raw_from_kernel(raw_ns)) for host, page in pages]

    def _wait_synchronized(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        while True:
            for host in self._lab.hosts:
                path = host.run_dir / "clock"
                if host.name not in self._readers and path.exists():
                    self._readers[host.name] = ClockPageReader(path)
            known = len(self._readers) == len(self._lab.hosts)
            if known and all(now.status == ClockStatus.SYNCHRONIZED for now in self._times()):
                return
            if time.monotonic() > until:
                raise TimeoutError("no fleet time")
            time.sleep(0.02)  # the page is memory: it tells nobody that it has changed

    def play(
        self, part: str, happen: Callable[[Host, float], int], size: float, *, kill: bool
    ) -> tuple[int, int]:
        """(violations, reads of all hosts) of one event."""
        processes = self._processes[part]
        process = processes[self._victim.name]
        time.sleep(self._random.uniform(0.0, 1.0))  # anywhere between two rounds
        os.kill(process.outer_pid, signal.SIGKILL if kill else signal.SIGSTOP)
        missed_ns = time.time_ns() + _ENGINE_MISSED_NS * (part == "probe engine")
        time.sleep(self._random.uniform(0.0, 0.33))  # the event comes soon or late after it
        since_ns = max(happen(self._victim, size) + 2 * _PROBE_INTERVAL_NS, missed_ns)
        false = reads = 0
        back_s = time.monotonic() + self._random.uniform(0.2, 4.0)
        until_s, back = back_s + 4.0, False
        while time.monotonic() < until_s:
            if not back and time.monotonic() >= back_s:
                back = True
                if kill:
                    processes[self._victim.name] = self._start[part](self._victim)
                else:
                    os.kill(process.outer_pid, signal.SIGCONT)
            times = [now for now in self._times() if now.status == ClockStatus.SYNCHRONIZED]
            if time.time_ns() > since_ns:
                reads += 1
                if any(
                    abs(a.fleet_ns - b.fleet_ns) > a.bound_ns + b.bound_ns for a, b in combinations(times, 2)
                ):
                    false += 1
            time.sleep(0.001)  # a thousand reads a second
        self._wait_synchronized()
        return false, reads
