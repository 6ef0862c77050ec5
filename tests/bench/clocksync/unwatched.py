"""What happens to the clocks of hosts while their daemons watch, and while a sidecar or probe engine is stopped or
dead; `bound_violations` must be 0.

Five hosts of the lab with real engines and sidecars. At a random moment the clocks of one, or of two at once, lose
20 us to 2 s, as those of a virtual machine that was paused, or turn by 5 to 500 ppm; in `unwatched` its sidecar or
engine is stopped or killed up to a third of a second before. Judged from the moment on at which any engine can
know of the event (and 240 ms after the end of an engine, which is noticed within that), a thousand times a second, for
some seconds: fleet times of two hosts that both say synchronized and differ by more than the sum of their bounds. In
the lab clocks go back by a pause, and programs run on: for so long nothing is judged.

Where delays to the host become shorter, as by a pause, the train that is sent after the event brings its stamp, and the
next tick reads it: ticks are 15 to 25 ms apart, so 50 ms, and 5 for what a busy machine adds. Where those from it do,
as by half of the turns, it is the next train of a peer that brings its stamps, and the tick after that: 75 ms.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

from tests.bench.clocksync.daemons import SETTLE_S, wait_for_probes

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus, FleetTime, raw_now_ns
from fabricpulse.lab import Host, Lab, LabProcess

_PAUSE_SHOWN_NS, _TURN_SHOWN_NS = 55_000_000, 75_000_000
_ENGINE_MISSED_NS = 240_000_000
_PATIENCE_S = 60.0
# Of the oscillators, at first.
_PPM = (-11.3, 23.7, 4.1, -3.2, 8.9)


def bench_unwatched(report: Callable[..., None], runs: int = 30) -> None:
    """Each event `runs` times, half of them with a daemon that was killed."""
    with Lab(hosts=5, rails=1) as lab:
        fleet = _Fleet(lab)
        for part in "sidecar", "probe engine":
            for event in _EVENTS:
                fleet.judge(report, f"{part} stopped or killed, {event.name}", runs, event, 1, part)


def bench_watched(report: Callable[..., None], runs: int = 30) -> None:
    """Each event `runs` times, on one host and on two at once; all daemons run."""
    with Lab(hosts=5, rails=1) as lab:
        fleet = _Fleet(lab)
        for victims in 1, 2:
            for event in _EVENTS:
                case = f"{victims} of 5 hosts, all daemons run, {event.name}"
                fleet.judge(report, case, runs, event, victims)


def _pause(host: Host, size: float) -> int:
    lost_ns = int(20_000 * 100_000**size)
    return host.clock.pause(lost_ns) + lost_ns


def _turn(host: Host, size: float) -> int:
    by_ppm = random.choice((-1, 1)) * 5 * 100**size
    usual_ppm = _PPM[int(host.name.removeprefix("h"))]
    turned = abs(host.clock.drift_ppm - usual_ppm) > 2
    return host.clock.set(drift_ppm=usual_ppm if turned else usual_ppm + by_ppm)


class _Event(NamedTuple):
    """happen : to a host, of a size from 0 to 1; returns when it is over. shown_ns : until delays have shown it."""

    name: str
    happen: Callable[[Host, float], int]
    shown_ns: int


_EVENTS = (
    _Event("pauses of 20 us to 2 s", _pause, _PAUSE_SHOWN_NS),
    _Event("frequency steps of 5 to 500 ppm", _turn, _TURN_SHOWN_NS),
)


class _Judged(NamedTuple):
    """Of one event. false : of `reads`. latest_ms : from the event to the last false one, counted or not."""

    false: int
    reads: int
    latest_ms: float


class _Fleet:
    def __init__(self, lab: Lab) -> None:
        self._lab, self._random = lab, random.Random(1)
        membership = lab.write_membership()
        lab.popen("mgmt", ["fabricpulse", "clocksync", "coordinator"], name="coordinator")
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
        time.sleep(SETTLE_S)  # fleet time has its usual bound then

    def judge(
        self,
        report: Callable[..., None],
        case: str,
        runs: int,
        event: _Event,
        victims: int,
        without: str | None = None,
    ) -> None:
        """One row of `runs` events. without : the daemon of the first victim that does not run."""
        rows = [
            self._play(event, (run + 0.5) / runs, victims, without, kill=bool(run % 2)) for run in range(runs)
        ]
        false, reads = sum(row.false for row in rows), sum(row.reads for row in rows)
        report(case, "bound_violations", false, "reads", "== 0", runs=runs, reads=reads,
               false_runs=sum(row.false > 0 for row in rows),
               latest_ms=round(max(row.latest_ms for row in rows), 1))  # fmt: skip

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

    def _play(
        self,
        event: _Event,
        size: float,
        victims: int,
        without: str | None,
        *,
        kill: bool,
    ) -> _Judged:
        hosts = [self._lab.hosts[2]] if without else self._random.sample(self._lab.hosts, victims)
        victim = hosts[0].name
        time.sleep(self._random.uniform(0.0, 1.0))  # anywhere between two rounds
        missed_ns = 0
        if without:
            os.kill(self._processes[without][victim].outer_pid, signal.SIGKILL if kill else signal.SIGSTOP)
            missed_ns = time.time_ns() + _ENGINE_MISSED_NS * (without == "probe engine")
            time.sleep(self._random.uniform(0.0, 0.33))  # the event comes soon or late after it
        event_ns = max(event.happen(host, size) for host in hosts)
        since_ns = max(missed_ns, event_ns + event.shown_ns)
        false, reads, latest_ns = 0, 0, event_ns
        back_s = time.monotonic() + self._random.uniform(0.2, 4.0)
        until_s, back, late_s = back_s + 4.0, without is None, back_s + _PATIENCE_S
        while True:
            if not back and time.monotonic() >= back_s:
                back = True
                assert without is not None
                if kill:
                    self._processes[without][victim] = self._start[without](hosts[0])
                else:
                    os.kill(self._processes[without][victim].outer_pid, signal.SIGCONT)
            times = [now for now in self._times() if now.status == ClockStatus.SYNCHRONIZED]
            if time.monotonic() > until_s and len(times) == len(self._lab.hosts):
                break
            if time.monotonic() > late_s:
                raise TimeoutError("no fleet time")
            if (now_ns := time.time_ns()) > event_ns:
                counts = now_ns > since_ns
                reads += counts
                if any(
                    abs(a.fleet_ns - b.fleet_ns) > a.bound_ns + b.bound_ns for a, b in combinations(times, 2)
                ):
                    false, latest_ns = false + counts, now_ns
            time.sleep(0.001)  # a thousand reads a second
        return _Judged(false, reads, (latest_ns - event_ns) / 1e6)
