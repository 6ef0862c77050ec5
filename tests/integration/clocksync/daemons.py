"""Real sidecars and coordinators on a synthetic fleet, and what the truth says of them."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from tests.fixtures.forked_daemons import ForkedDaemon
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.clocksync.sidecar.host_clock import HostClock
from fabricpulse.core.shm.clock_page import (
    ClockPage,
    ClockPageReader,
    ClockStatus,
    FleetTime,
    raw_now_ns,
)

HOSTS = ["h0", "h1", "h2", "h3"]


def _both_of_one_number() -> tuple[int, socket.socket, socket.socket]:
    """A listener and a socket for datagrams on a port that is free for both."""
    while True:
        listener = socket.create_server(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagrams.bind(("127.0.0.1", port))
        except OSError:
            listener.close()
            datagrams.close()
            continue
        return port, listener, datagrams


class Relay:
    """A way to `port` by TCP and UDP that can be cut: connections end, new ones are reset, and datagrams are lost
    until it is healed.
    """

    def __init__(self, port: int) -> None:
        self.up = True
        self._port = port
        self.port, self._listener, self._datagrams = _both_of_one_number()
        self._end, self._ended = socket.socketpair()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept), threading.Thread(target=self._pass_datagrams)]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        self.up = False
        for one in (end for pair in self._pairs for end in pair):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self.up = True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends accept
        self._end.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for one in (
            self._listener,
            self._datagrams,
            self._ended,
            *(end for pair in self._pairs for end in pair),
        ):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._reach() if self.up else None
            if far is None:
                near.close()
                continue
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._copy, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _pass_datagrams(self) -> None:
        ways: dict[tuple[str, int], socket.socket] = {}
        back: dict[socket.socket, tuple[str, int]] = {}
        while self._ended not in (ready := select.select([self._ended, self._datagrams, *back], [], [])[0]):
            for source in ready:
                with suppress(OSError):  # nobody listens there
                    data, sender = source.recvfrom(2_048)
                    if not self.up:
                        continue
                    if source is not self._datagrams:
                        self._datagrams.sendto(data, back[source])
                        continue
                    if sender not in ways:
                        ways[sender] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                        ways[sender].connect(("127.0.0.1", self._port))
                        back[ways[sender]] = sender
                    ways[sender].send(data)
        for way in back:
            way.close()

    def _reach(self) -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            return None

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Daemons:
    """The processes of one test.

    settings : of all sidecars, YAML lines. coordinator_arguments, sidecar_arguments : of all
    of them. scheme : of their URLs. executed : start programs, not forks of one that has imported everything.
    """

    def __init__(self, directory: Path, fleet: SyntheticFleet) -> None:
        self.directory, self.fleet = directory, fleet
        self.coordinator_ports: dict[str, int] = {}
        self.ports = {host: reserved_port() for host in fleet.hosts}
        self.running: dict[str, subprocess.Popen[bytes] | ForkedDaemon] = {}
        self.executed = False
        self.settings: list[str] = []
        self.coordinator_arguments: list[str] = []
        self.sidecar_arguments: list[str] = []
        self.scheme = "http"
        self.relays: list[Relay] = []

    def spawn(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        command = ["clocksync", *arguments]
        variables, log_file = {**os.environ, **environment}, self.directory / f"{name}.log"
        if not (self.executed or "LD_PRELOAD" in environment):
            self.running[name] = ForkedDaemon(command, variables, log_file)
            return
        with log_file.open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fabricpulse.core.cli", *command],
                env=variables,
                stdout=log,
                stderr=log,
            )

    def url(self, name: str = "coordinator") -> str:
        if name not in self.coordinator_ports:
            self.coordinator_ports[name] = reserved_port()
        return f"{self.scheme}://localhost:{self.coordinator_ports[name]}"

    def coordinator(self, name: str = "coordinator") -> None:
        self.url(name)
        listen = f"127.0.0.1:{self.coordinator_ports[name]}"
        self.spawn(name, ["coordinator", "--web.listen-address", listen, *self.coordinator_arguments], {})

    def sidecar(
        self,
        host: str,
        *coordinators: str | Relay,
        settings: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """coordinators : names, or relays to them; default: the one called coordinator. environment : more of it."""
        config = self.directory / f"{host}.yaml"
        urls = [
            self.url(way) if isinstance(way, str) else f"{self.scheme}://localhost:{way.port}"
            for way in (coordinators or ("coordinator",))
        ]
        lines = [f"coordinators: [{', '.join(urls)}]", *(self.settings if settings is None else settings)]
        config.write_text("\n".join(lines) + "\n")
        listen = f"127.0.0.1:{self.ports[host]}"
        arguments = ["sidecar", "--config", str(config), "--web.listen-address", listen]
        self.spawn(
            host,
            [*arguments, *self.sidecar_arguments],
            {**self.fleet.environment(host), **(environment or {})},
        )

    def relay(self, name: str = "coordinator") -> Relay:
        """A way to a coordinator that can be cut; the sidecars that take it name its port."""
        self.url(name)
        made = Relay(self.coordinator_ports[name])
        self.relays.append(made)
        return made

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def signal(self, name: str, number: int) -> None:
        self.running[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for relay in self.relays:
            relay.close()
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        ends: dict[str, int | None] = {}
        for name, process in self.running.items():
            try:
                ends[name] = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                ends[name] = None
        assert not any(code != 0 for code in ends.values()), f"not ended in order: {ends}"

    def get(self, url: str) -> str:
        with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - our own daemons
            return str(response.read().decode())

    def metrics(self, host: str) -> dict[str, float]:
        """Of the sidecar of `host`, or of a coordinator by its name."""
        port = self.coordinator_ports[host] if host in self.coordinator_ports else self.ports[host]
        lines = self.get(f"http://127.0.0.1:{port}/metrics").splitlines()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if not line.startswith("#")
        }


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SyntheticFleet]:
    """Four hosts, each connected with each; their clocks are seconds and up to 100 ppm apart."""
    made = SyntheticFleet(tmp_path, HOSTS)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def daemons(tmp_path: Path, fleet: SyntheticFleet, failed: Callable[[], bool]) -> Iterator[Daemons]:
    """Nothing runs yet; what is running at the end must end in order."""
    made = Daemons(tmp_path, fleet)
    yield made
    with suppress(AssertionError) if failed() else nullcontext():
        made.stop()


def read(fleet: SyntheticFleet, host: str, raw_ns: int | None = None) -> FleetTime | None:
    """Fleet time of `host` now, or when CLOCK_MONOTONIC_RAW of the kernel showed `raw_ns`, as it would read it."""
    page = page_of(fleet, host)
    return None if page is None else page.at(fleet.clocks[host].raw_from_kernel(raw_ns or raw_now_ns()))


def page_of(fleet: SyntheticFleet, host: str) -> ClockPage | None:
    """What its sidecar has published; None before the first."""
    try:
        reader = ClockPageReader(fleet.directory / host / "clock")
    except OSError:
        return None
    try:
        return reader.read()
    finally:
        reader.close()


def at_one_moment(fleet: SyntheticFleet, hosts: list[str]) -> tuple[int, list[FleetTime]]:
    """A moment, on CLOCK_MONOTONIC_RAW of the kernel, and fleet time then of the hosts that have a page."""
    while True:
        now_ns = raw_now_ns()
        pages = [(host, page) for host in hosts if (page := page_of(fleet, host)) is not None]
        moments = [fleet.clocks[host].raw_from_kernel(now_ns) for host, _ in pages]
        # Else this process had no core in between, and a page has lines only for later: what one saw is not known.
        if all(at >= page.previous.from_ns for (_, page), at in zip(pages, moments, strict=True)):
            return now_ns, [page.at(at) for (_, page), at in zip(pages, moments, strict=True)]


def disagreement(fleet: SyntheticFleet, hosts: list[str]) -> tuple[float, bool, list[FleetTime]]:
    """Largest difference of fleet time between hosts at one moment, and whether all bounds hold for it."""
    return disagreement_of(at_one_moment(fleet, hosts)[1])


def disagreement_of(times: list[FleetTime]) -> tuple[float, bool, list[FleetTime]]:
    """The same of `times`, which are of one moment."""
    spread = max(t.fleet_ns for t in times) - min(t.fleet_ns for t in times)
    hold = all(abs(a.fleet_ns - b.fleet_ns) <= a.bound_ns + b.bound_ns for a in times for b in times)
    return spread, hold, times


def errors_ns(fleet: SyntheticFleet, hosts: list[str]) -> list[int]:
    """Fleet time of each host minus UTC; asserts that all are within their bounds."""
    now = HostClock().cross_timestamp()
    result = []
    for host in hosts:
        shown = read(fleet, host, now.raw_ns)
        assert shown is not None
        result.append(shown.fleet_ns - now.host_ns)
        assert abs(result[-1]) <= shown.bound_ns, (host, result[-1], shown)
    return result


def all_have(fleet: SyntheticFleet, hosts: list[str], status: ClockStatus) -> bool:
    times = [read(fleet, host) for host in hosts]
    return all(t is not None and t.status == status for t in times)


def all_publish(fleet: SyntheticFleet, hosts: list[str], status: ClockStatus) -> bool:
    """The same of what their sidecars say, however late these are: a reader sees *holdover* whenever a page has not
    been renewed for some tens of milliseconds, which on a busy machine happens to any of them.
    """
    pages = [page_of(fleet, host) for host in hosts]
    return all(page is not None and page.status == status for page in pages)


class Watch:
    """Reads fleet time until stopped: bounds hold, it never runs backward on any host, and never jumps."""

    def __init__(self, fleet: SyntheticFleet, hosts: list[str] | None = None) -> None:
        self._fleet, self._hosts = fleet, hosts or fleet.hosts
        self._last: dict[str, int] = {}
        self._looked_ns = 0

    def once(self) -> float:
        """Asserts what always must hold; returns the largest disagreement, ns."""
        now, times = at_one_moment(self._fleet, self._hosts)
        spread, hold, _ = disagreement_of(times)
        assert hold, times
        # Fleet time may differ by 50 ppm from true time, as clocks do, and be slewed by 500.
        most = 600e-6 * (now - self._looked_ns) + 1_000
        for host, shown in zip(self._hosts, times, strict=True):
            assert shown.status != ClockStatus.UNKNOWN
            if host in self._last:
                moved = shown.fleet_ns - self._last[host]
                assert moved >= 0, f"fleet time of {host} ran backward by {-moved} ns"
                jump = moved - (now - self._looked_ns)
                assert abs(jump) < most, f"fleet time of {host} jumped by {jump} ns"
            self._last[host] = shown.fleet_ns
        self._looked_ns = now
        return spread

    def run(self, seconds: float, limit_ns: float) -> None:
        """All the time; also that they agree within `limit_ns`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.once() < limit_ns
            time.sleep(0.005)

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until `condition` holds, which must be within `seconds`."""

        def check() -> bool:
            self.once()
            return condition()

        wait_for(check, seconds, what)
