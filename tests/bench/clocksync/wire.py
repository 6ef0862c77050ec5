"""One wire, all contestants at once: two hosts of the lab, a shaped queue each way, load, and the truth."""

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.bench.clocksync.peers import (
    ChronyTracking,
    Ptp4l,
    build_preload,
    missing_tools,
    start_chronyd,
)

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus, FleetTime, raw_now_ns
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.core.shm.probe_ring import INBOUND, OUTBOUND
from fabricpulse.lab import Host, Lab, LabProcess

ROOT = Path(__file__).parents[3]
# Trains a second. 21 of 3 packets each way are 126 packets a second; a poll of -6 is 128.
RATES = (16, 21, 50, 100)
# The last puts together what the FAQ of chrony 4.3 gives for the best accuracy with short polls: a median of 15 polls a
# sample, of the packets with the shortest 30 % of the round trips.
CHRONY = {
    "poll -4": "minpoll -4 maxpoll -4",
    "poll -6": "minpoll -6 maxpoll -6",
    "poll 0": "minpoll 0 maxpoll 0",
    "poll -6 filter": "minpoll -6 maxpoll -6 filter 15 maxdelayquant 0.3",
}
LINK_MBIT, QUEUE_MS = 200.0, 2.0
# Readings of both clocks in the 4 s of trains that simple estimators get.
_NAIVE_READINGS = 80


@dataclass
class Instance:
    """One complete clocksync (two engines, two sidecars, a coordinator) at one probe rate."""

    lab: Lab
    rate: int
    number: int
    readers: dict[str, ClockPageReader] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)

    def directory(self, host: Host) -> Path:
        return host.directory / f"run-{self.rate}"

    def start(self, membership: Path) -> None:
        mgmt_port = 29_700 + self.number
        self.lab.popen(
            "mgmt",
            ["fabricpulse", "clocksync", "coordinator", "--web.listen-address", f":{mgmt_port}"],
            name=f"coordinator-{self.rate}",
        )
        for host in self.lab.hosts:
            place = self.directory(host)
            place.mkdir()
            environment = {"FABRICPULSE_RUN_DIR": str(place)}
            mesh = {
                "host": host.name,
                "membership": {"file": str(membership)},
                "probe": {
                    "trains_per_s": self.rate, "port": 20_000 + 100 * self.number, "paths": 1, "sweep": 0,
                    "peers": 1, "cross_peers": 0,
                },
            }  # fmt: skip
            sidecar = {"host": host.name, "coordinators": [f"http://{self.lab.resolve('mgmt')}:{mgmt_port}"]}
            for name, config in (("mesh", mesh), ("sidecar", sidecar)):
                (place / f"{name}.yaml").write_text(json.dumps(config))
            listen = ["--web.listen-address", f":{29_710 + self.number}"]
            host.popen(
                ["fabricpulse", "mesh", "--config", str(place / "mesh.yaml"), *listen],
                env=environment,
                name=f"mesh-{self.rate}",
            )
            listen = ["--web.listen-address", f":{29_720 + self.number}"]
            host.popen(
                ["fabricpulse", "clocksync", "sidecar", "--config", str(place / "sidecar.yaml"), *listen],
                env=environment,
                name=f"sidecar-{self.rate}",
            )

    def read(self, raw_ns: int) -> dict[str, FleetTime] | None:
        """Fleet time of both hosts when the kernel's CLOCK_MONOTONIC_RAW showed `raw_ns`; None while one has none."""
        times = {}
        for host in self.lab.hosts:
            reader = self.readers.get(host.name)
            if reader is None or reader.stale():
                try:
                    reader = self.readers[host.name] = ClockPageReader(self.directory(host) / "clock")
                except (OSError, LayoutError):
                    return None
            page = reader.read()
            if page.status == ClockStatus.UNKNOWN:
                return None
            times[host.name] = page.at(host.clock.raw_from_kernel(raw_ns))
        return times

    def stamp_ns(self, host: Host, raw_ns: int) -> int:
        """The stamp clock of `host` when the kernel's CLOCK_MONOTONIC_RAW showed `raw_ns`."""
        epoch_ns = self.epochs.get(host.name)
        if epoch_ns is None:
            ring = SampleReader(self.directory(host) / "probes")
            epoch_ns = self.epochs[host.name] = ring.stamp_epoch_ns
        return host.clock.raw_from_kernel(raw_ns) + epoch_ns


@dataclass
class Measured:
    """Errors of one contestant, ns; for ours also bounds and whether they held."""

    errors: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    def quantile(self, q: float) -> float:
        return float(np.quantile(np.abs(self.errors), q)) if self.errors else math.nan


class Wire:
    """The lab with every contestant running. wander_ppb : of the rate of each clock, over 1 s."""

    def __init__(self, lab: Lab, peers: bool, wander_ppb: float = 2.0) -> None:
        self.lab = lab
        a, b = lab.hosts
        self.a, self.b = a, b
        a.clock.set(offset_ns=1_234_567_890, drift_ppm=-11.3, wander_ppb=wander_ppb, seed=1)
        # Near each other: chronyd says its offset in a float of 24 bits, in steps of 238 ns if the offset were 2 s.
        b.clock.set(offset_ns=1_233_567_890, drift_ppm=23.7, wander_ppb=wander_ppb, seed=2)
        for host in (a, b):
            host.nic("rail0").limit(LINK_MBIT, QUEUE_MS)
        membership = lab.write_membership()
        self.instances = {rate: Instance(lab, rate, k) for k, rate in enumerate(RATES)}
        for instance in self.instances.values():
            instance.start(membership)
        self.queries: dict[str, ChronyTracking] = {}
        self.commands: dict[str, Path] = {}
        self.ptp: Ptp4l | None = None
        if peers and not missing_tools():
            self._start_peers()
        self.sinks = []
        for host in (a, b):
            sink = lab.socket(host.name, socket.SOCK_DGRAM)
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sink.bind((host.nic("rail0").address, 5001))
            self.sinks.append(sink)
        self.traffic = lab.directory / "burst_traffic"
        source = ROOT / "tests" / "native" / "probes" / "burst_traffic.c"
        subprocess.run(["cc", "-O2", str(source), "-o", str(self.traffic), "-lm"], check=True)

    def _start_peers(self) -> None:
        server = self.b.nic("rail0").address
        # In this order: what is first converts the stamps that the second lets pass.
        names = ("virtual_clock_preload", "first_tx_stamp")
        preload = [build_preload(self.lab.directory, name) for name in names]
        start_chronyd(self.b, self.lab.directory, "server", 11_230, ["local stratum 1"], preload)
        for k, (name, options) in enumerate(CHRONY.items()):
            line = f"server {server} port 11230 iburst {options} xleave"
            self.commands[name] = start_chronyd(
                self.a, self.lab.directory, str(k), 11_231 + k, [line], preload
            )
        self.ptp = Ptp4l(self.b, self.a, server, self.lab.directory)

    def wait(self, seconds: float) -> None:
        """Until all of ours have a fleet time. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while any(i.read(raw_now_ns()) is None for i in self.instances.values()):
            if time.monotonic() > until:
                raise TimeoutError("clocksync did not get a fleet time on the wire")
            time.sleep(0.05)

    @contextmanager
    def load(self, forward: float, backward: float, hogs: int = 0) -> Iterator[None]:
        """Load a -> b and b -> a as shares of the link, and processes that only burn CPU."""
        running: list[LabProcess] = []
        for share, sender, receiver in ((forward, self.a, self.b), (backward, self.b, self.a)):
            if share > 0:
                target = receiver.nic("rail0").address
                command = [str(self.traffic), target, "5001", str(share * LINK_MBIT), str(len(running) + 1)]
                running.append(sender.popen(command, name="traffic"))
        running.extend(
            self.lab.popen("mgmt", ["sh", "-c", "while :; do :; done"], name="hog") for _ in range(hogs)
        )
        try:
            yield
        finally:
            for process in running:
                process.kill()
                process.wait()

    def measure(self, seconds: float) -> dict[str, Measured]:
        """Reads every contestant twenty times a second."""
        result: dict[str, Measured] = {}
        for name, command in self.commands.items():
            if name not in self.queries:
                self.queries[name] = ChronyTracking(command)

        def of(name: str) -> Measured:
            return result.setdefault(name, Measured())

        rings = {h.name: SampleReader(self.instances[50].directory(h) / "probes") for h in (self.a,)}
        window = EdgeWindow(EstimatorParameters())
        readings: list[tuple[int, int]] = []
        ptp_second: list[int] = []
        until = time.monotonic() + seconds
        next_second = time.monotonic() + 1
        while time.monotonic() < until:
            now = raw_now_ns()
            stamps = self.instances[50].stamp_ns(self.a, now), self.instances[50].stamp_ns(self.b, now)
            readings = [*readings[-_NAIVE_READINGS:], stamps]
            for rate, instance in self.instances.items():
                times = instance.read(now)
                if times is None:
                    continue
                first, second = times[self.a.name], times[self.b.name]
                error = second.fleet_ns - first.fleet_ns
                ours = of(f"clocksync {rate}/s")
                ours.errors.append(error)
                ours.widths.append(2.0 * max(first.bound_ns, second.bound_ns))
                ours.held.append(abs(error) <= first.bound_ns + second.bound_ns)
            for chronyd, query in self.queries.items():
                asked = time.time_ns()
                offset = query.offset_ns()
                # chronyd read its clock between the two readings at ours: at 35 ppm a microsecond too early or too
                # late is 0.035 ns.
                middle = (asked + time.time_ns()) // 2
                if offset is not None:
                    truth = self.b.clock.from_kernel(middle) - self.a.clock.from_kernel(middle)
                    of(f"chronyd {chronyd}").errors.append(offset - truth)
            if self.ptp is not None:
                ptp_second.extend(self.ptp.new_offsets_ns())
            if time.monotonic() > next_second:
                next_second += 1
                if ptp_second:
                    of("ptp4l").errors.append(float(np.mean(ptp_second)))
                    ptp_second.clear()
                window.add(rings[self.a.name].read())
                for name, value in self._naive(window, readings).items():
                    of(name).errors.append(value)
            time.sleep(max(0.0, 0.05 - (raw_now_ns() - now) * 1e-9))
        return result

    def _naive(self, window: EdgeWindow, readings: list[tuple[int, int]]) -> dict[str, float]:
        """What the same packets say to simpler estimators over the same 4 s: four-stamp mean, minimum filter. They are
        given the true rate in this time, by `readings` at both clocks, and are asked when the newest trains have come.
        """
        kernel_raw = raw_now_ns()
        now = self.instances[50].stamp_ns(self.a, kernel_raw)
        begin = window._keep(now)
        out = window._trains(OUTBOUND, begin, now)
        into = window._trains(INBOUND, begin, now)
        if not len(out) or not len(into):
            return {}
        there = self.instances[50].stamp_ns(self.b, kernel_raw)
        truth_now = there - now, now
        here0, there0 = readings[0]
        rate = ((there - now) - (there0 - here0)) / (now - here0) * 1e9
        up = _deviation(out.tx_ns, out.rx_ns, out.valid, 1, out.t_ns, truth_now, rate)
        down = _deviation(into.tx_ns, into.rx_ns, into.valid, -1, into.t_ns, truth_now, rate)
        return {
            "four-stamp mean": (up.mean() + down.mean()) / 2,
            "minimum filter": (up.min() + down.max()) / 2,
        }

    def close(self) -> None:
        for query in self.queries.values():
            query.close()
        for sink in self.sinks:
            sink.close()
        if self.ptp is not None:
            self.ptp.close()


def _deviation(
    tx: np.ndarray, rx: np.ndarray, valid: np.ndarray, sign: int, t: np.ndarray, truth: tuple[int, int], rate_ppb: float
) -> np.ndarray:  # fmt: skip
    """Per packet: measured offset minus the true one, ns. The first packet of a train counts as for NTP and PTP."""
    offset = sign * (rx - tx) - truth[0]
    drift = rate_ppb * 1e-9 * (t - truth[1])
    deviation: np.ndarray = (offset - drift[:, None])[valid]
    return deviation


def run_wire(
    seconds: float, report: Callable[..., None], *, peers: bool, cases: list[tuple[str, float, float, int]]
) -> dict[str, dict[str, Measured]]:
    """All cases on one wire; returns case -> contestant -> errors."""
    if shutil.which("cc") is None:
        raise SystemExit("clocksync: no C compiler for the load generator")
    results: dict[str, dict[str, Measured]] = {}
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=2, rails=1, mtu=1500))
        wire = Wire(lab, peers)
        stack.callback(wire.close)
        wire.wait(30)
        time.sleep(8)
        for name, forward, backward, hogs in cases:
            with wire.load(forward, backward, hogs):
                time.sleep(5)
                results[name] = wire.measure(seconds)
            for contestant, measured in results[name].items():
                report(
                    name,
                    contestant,
                    p50=round(measured.quantile(0.5), 1),
                    p95=round(measured.quantile(0.95), 1),
                    p99=round(measured.quantile(0.99), 1),
                    worst=round(measured.quantile(1.0), 1),
                    count=len(measured.errors),
                )
    return results
