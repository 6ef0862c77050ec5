"""Hosts that daemons steer: what chronyd and phc2sys do to CLOCK_REALTIME, and what fleet time makes of it.

Two hosts on an idle wire, each with the error of an oscillator of its own on both clocks; truth is the kernel's clock.
"""

import math
import random
import time
from collections.abc import Callable

import numpy as np
from tests.bench.clocksync.wire import Instance

from fabricpulse.core.shm.clock_page import ClockStatus, raw_now_ns
from fabricpulse.lab.clocks import HostClock
from fabricpulse.lab.lab import Lab

# name -> (seconds between two changes, change of the frequency in ppm, slew in us)
STEERINGS = {
    "not steered": (1.0, 0.0, 0.0),
    "20 us slew and 0.5 ppm each 16 s": (16.0, 0.5, 20.0),
    "0.5 ppm each 16 s": (16.0, 0.5, 0.0),
    "0.1 ppm each 1 s": (1.0, 0.1, 0.0),
}
# As fast as adjtime.
_SLEW_PPM = 500.0
_SETTLE_S = 8.0


class Steering:
    """Steers one clock. Pure chance, seeded."""

    def __init__(self, clock: HostClock, steering: tuple[float, float, float], seed: int) -> None:
        self._clock, (self._every_s, self._ppm, self._slew_us) = clock, steering
        self._random = random.Random(seed)
        self._due_s = time.monotonic() + self._random.uniform(0.2, 1.0) * self._every_s
        self._slew_end_s = math.inf
        self._steered_ppm = 0.0

    def poll(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        if now >= self._slew_end_s:
            self._slew_end_s = math.inf
            self._clock.steer(self._steered_ppm)
        if now < self._due_s or (self._ppm == 0 and self._slew_us == 0):
            return
        self._due_s += self._every_s
        # To and fro, as a servo does: no random walk.
        self._steered_ppm = self._ppm * self._random.uniform(-1, 1)
        slewing = self._random.choice((-1, 1)) * _SLEW_PPM if self._slew_us else 0.0
        self._clock.steer(self._steered_ppm + slewing)
        if self._slew_us:
            self._slew_end_s = now + self._slew_us / _SLEW_PPM


def bench_steered(report: Callable[..., None], seconds: float) -> None:
    """Error between both hosts, holdover and bounds under each steering."""
    with Lab(hosts=2, rails=1) as lab:
        for number, host in enumerate(lab.hosts):
            host.clock.set(drift_ppm=(-11.3, 23.7)[number], wander_ppb=2.0, seed=number + 1)
        instance = Instance(lab, 50, 0)
        instance.start(lab.write_membership())
        until = time.monotonic() + 60
        while instance.read(raw_now_ns()) is None:
            if time.monotonic() > until:
                raise TimeoutError("no fleet time on the wire")
            time.sleep(0.05)
        time.sleep(_SETTLE_S)
        for name, steering in STEERINGS.items():
            steerings = [Steering(h.clock, steering, 7 + k) for k, h in enumerate(lab.hosts)]
            errors, bounds, held, synchronized = [], [], [], []
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for one in steerings:
                    one.poll()
                times = instance.read(raw_now_ns())
                if times is not None:
                    first, second = times.values()
                    errors.append(abs(second.fleet_ns - first.fleet_ns))
                    bounds.append(max(first.bound_ns, second.bound_ns))
                    held.append(bool(errors[-1] <= first.bound_ns + second.bound_ns))
                    synchronized += [t.status == ClockStatus.SYNCHRONIZED for t in times.values()]
                time.sleep(0.02)
            p50, p95, p99 = (round(float(q), 1) for q in np.quantile(errors, (0.5, 0.95, 0.99)))
            report(name, "err_ns_p99@steered", p99, "ns", "<= 120", p50=p50, p95=p95, count=len(errors))
            report(
                name,
                "holdover_percent@steered",
                round(100 * (1 - sum(synchronized) / len(synchronized)), 3),
                "%",
                "== 0",
            )
            report(name, "bound_violations@steered", len(held) - sum(held), "count", "== 0")
            report(name, "bound_ns_p50@steered", round(float(np.median(bounds))), "ns", "<= 5000")
            for host in lab.hosts:
                host.clock.steer(0.0)
