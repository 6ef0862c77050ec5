"""Ten minutes of everything that is not a dead NIC: no NIC may ever be called disconnected."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.bench.mesh.faults import DISCONNECTS, fleet_of_four
from tests.bench.mesh.rows import report
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Host

HOUR_NS = 3600 * 10**9


class Stalls:
    """The ways in which a fleet can be disturbed without a dead NIC. Each method plays one and mends it.

    Each sleep is the length of what is played: several intervals of 0.2 s, in which a false alarm would fall.
    """

    def __init__(self, fleet: MeshFleet, seed: int) -> None:
        self.fleet = fleet
        self.rng = random.Random(seed)
        self.lost = 0.0  # disconnects counted by daemons that were killed since
        self.ways: dict[str, Callable[[Host], None]] = {
            "SIGSTOP 2 s": self.stop,
            "CPU hog": self.hog,
            "clock step": self.step,
            "VM pause": self.pause,
            "dead peer": self.dead_peer,
            "dead path": self.dead_path,
        }

    def stop(self, host: Host) -> None:
        """The exporter is stopped for two seconds."""
        self.fleet.daemons[host.name].suspend()
        time.sleep(2)
        self.fleet.daemons[host.name].resume()

    def hog(self, _: Host) -> None:
        """Twice as many busy loops as there are cores."""
        burn = [sys.executable, "-c", "while True: pass"]
        hogs = [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]
        time.sleep(3)
        for hog in hogs:
            hog.kill()
            hog.wait()

    def step(self, host: Host) -> None:
        """The host's clock jumps by an hour."""
        host.clock.step(self.rng.choice((HOUR_NS, -HOUR_NS)))
        time.sleep(1.5)

    def pause(self, host: Host) -> None:
        """A paused virtual machine: nothing of the host runs, what is sent to it is lost, and its clock is late."""
        length_s = self.rng.uniform(1, 3)
        with ExitStack() as paused:
            for nic in host.nics:
                paused.enter_context(nic.black_hole())
            paused.enter_context(host.freeze())
            time.sleep(length_s)
            host.clock.step(-round(length_s * 1e9))

    def dead_peer(self, host: Host) -> None:
        """Every process of a host dies; it comes back later."""
        self.lost += sum(self.fleet.scrape(host.name).values(DISCONNECTS))
        host.crash()
        time.sleep(1.5)
        self.fleet.start(host.name)

    def dead_path(self, _: Host) -> None:
        """A spine swallows everything."""
        with self.fleet.lab.spine(self.rng.randrange(2)).black_hole():
            time.sleep(3)

    def disconnects(self) -> float:
        """All that were ever counted."""
        daemons = self.fleet.daemons
        return self.lost + sum(sum(self.fleet.scrape(name).values(DISCONNECTS)) for name in daemons)


def bench_stalls(seconds: float) -> None:
    """Plays the ways in turn, each on a random host."""
    with fleet_of_four(0.2) as fleet:
        stalls = Stalls(fleet, 5)
        played = dict.fromkeys(stalls.ways, 0)
        before = 0.0
        end = time.monotonic() + seconds
        for way in itertools.cycle(stalls.ways):
            if time.monotonic() >= end:
                break
            host = stalls.rng.choice(fleet.lab.hosts)
            stalls.ways[way](host)
            played[way] += 1
            fleet.wait_green(30)
            now = stalls.disconnects()
            if now != before:
                explain(fleet, way, host.name)
                before = now
        report(
            f"{seconds:g} s of stalls, interval 0.2 s",
            "false_disconnects",
            before,
            "disconnects",
            "== 0",
            played=played,
        )


def explain(fleet: MeshFleet, way: str, host: str) -> None:
    """Says on stderr what was played and who was called disconnected."""
    print(f"bench mesh: a false disconnect after {way} of {host}", file=sys.stderr)
    for name in fleet.daemons:
        for event in fleet.get(name, "/api/v1/events?limit=20")["events"]:
            if event["event"] in ("nic_disconnected", "nic_connected", "stall"):
                print(f"  {name} {event}", file=sys.stderr)
