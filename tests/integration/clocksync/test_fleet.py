"""Real sidecars and a real coordinator on a fleet whose truth is known."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus, FleetTime

HOSTS = ["h0", "h1", "h2", "h3"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Daemons:
    """The processes of one test."""

    def __init__(self, directory: Path, fleet: SyntheticFleet) -> None:
        self.directory, self.fleet = directory, fleet
        self.port = free_port()
        self.ports = {host: free_port() for host in fleet.hosts}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.membership = ""

    def spawn(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fabricpulse.core.cli", "clocksync", *arguments],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )

    def coordinator(self) -> None:
        self.spawn("coordinator", ["coordinator", "--web.listen-address", f"127.0.0.1:{self.port}"], {})

    def sidecar(self, host: str, *, coordinator: bool = True) -> None:
        config = self.directory / f"{host}.yaml"
        lines = [f"coordinators: [http://127.0.0.1:{self.port}]"] if coordinator else []
        if self.membership:
            lines.append(f"membership: {self.membership}")
        config.write_text("\n".join(lines) + "\n")
        listen = f"127.0.0.1:{self.ports[host]}"
        arguments = ["sidecar", "--config", str(config), "--web.listen-address", listen]
        self.spawn(host, arguments, self.fleet.environment(host))

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                assert process.wait(20) == 0
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def metrics(self, port: int) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if not line.startswith("#")
        }


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SyntheticFleet]:
    made = SyntheticFleet(tmp_path, HOSTS)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def daemons(tmp_path: Path, fleet: SyntheticFleet) -> Iterator[Daemons]:
    made = Daemons(tmp_path, fleet)
    yield made
    made.stop()


def read(fleet: SyntheticFleet, host: str, kernel_ns: int | None = None) -> FleetTime | None:
    """Fleet time of `host` now, as any process of the host would read it."""
    try:
        reader = ClockPageReader(fleet.directory / host / "clock")
    except OSError:
        return None
    page = reader.read()
    reader.close()
    return page.convert(fleet.clocks[host].from_kernel(kernel_ns or time.time_ns()))


def disagreement(fleet: SyntheticFleet, hosts: list[str]) -> tuple[float, bool, list[FleetTime]]:
    """Largest difference of fleet time between hosts at one moment, and whether all bounds hold for it."""
    now = time.time_ns()
    times = [t for host in hosts if (t := read(fleet, host, now)) is not None]
    spread = max(t.fleet_ns for t in times) - min(t.fleet_ns for t in times)
    hold = all(abs(a.fleet_ns - b.fleet_ns) <= a.bound_ns + b.bound_ns for a in times for b in times)
    return spread, hold, times


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def all_have(fleet: SyntheticFleet, hosts: list[str], status: ClockStatus) -> bool:
    times = [read(fleet, host) for host in hosts]
    return all(t is not None and t.status == status for t in times)


def test_fleet_agrees_survives_kills_and_never_runs_backward(fleet: SyntheticFleet, daemons: Daemons) -> None:
    """Four hosts with clocks seconds and 100 ppm apart agree within 1 us, whoever is killed."""
    daemons.coordinator()
    for host in HOSTS:
        daemons.sidecar(host)
    wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 15, "all synchronized")
    wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 6, "agreement within 1 us")

    last = dict.fromkeys(HOSTS, 0)

    def watch(seconds: float, limit_ns: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            spread, hold, times = disagreement(fleet, HOSTS)
            assert hold, times
            assert spread < limit_ns, times
            for host, fleet_time in zip(HOSTS, times, strict=True):
                assert fleet_time.fleet_ns > last[host], f"fleet time of {host} ran backward"
                last[host] = fleet_time.fleet_ns
            time.sleep(0.005)

    watch(3, 1_000)
    metrics = daemons.metrics(daemons.ports["h1"])
    assert metrics['fabricpulse_clock_synchronized{clock="fleet"}'] == 1
    assert 0 < metrics['fabricpulse_clock_error_bound_seconds{clock="fleet"}'] < 20e-6
    assert abs(metrics['fabricpulse_clock_frequency_ratio{clock="fleet"}'] - 1) < 200e-6

    daemons.kill("h2")
    watch(1, 5_000)
    daemons.sidecar("h2")
    daemons.kill("coordinator")
    # Alone they ask their neighbours, and stay together; the one that has just started is not as good at once.
    watch(6, 10_000)
    assert all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED)
    daemons.coordinator()
    for host in HOSTS:
        wait_for(
            lambda port=daemons.ports[host]: daemons.metrics(port)["fabricpulse_clock_coordinator_up"] == 1,  # type: ignore[misc]
            20,
            f"{host} reports to the new coordinator",
        )
    assert all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED)
    watch(2, 2_000)
