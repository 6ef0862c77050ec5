"""The probe mesh beside ping, blackbox_exporter and smokeping_prober on one link."""

import random
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.bench.mesh.faults import Watch, fleet_of_four
from tests.bench.mesh.rows import report
from tests.bench.rows import cpu_seconds
from tests.fixtures.debian_tool import debian_tool
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet, Scrape

from fabricpulse.core.errors import UserError


class Rival:
    """A peer that watches h1's rail0 from h0. `alive(since)` says whether it still believes in the link."""

    def __init__(self, fleet: MeshFleet, command: list[str | Path], port: int = 0) -> None:
        self.fleet, self.port = fleet, port
        self.target = fleet.lab.address("h1", "rail0")
        self.process = fleet.lab.popen("h0", command, name=Path(command[0]).name)

    def metrics(self, path: str = "/metrics") -> Scrape:
        return Scrape(self.fleet.lab.http_get("h0", f"http://127.0.0.1:{self.port}{path}", timeout=10))


def rival_row(
    name: str, detect_ms: list[float], cpu_s: float, probes: float, ours: tuple[float, float]
) -> None:
    """Detection and CPU of one peer, with ours beside it."""
    report(
        "link down on the same link",
        "detect_ms_p50",
        ours[0],
        "ms",
        peer=name,
        peer_value=round(statistics.median(detect_ms), 1),
        ratio=round(ours[0] / statistics.median(detect_ms), 4),
    )
    if probes > 0:
        peer_cpu = cpu_s / probes * 1e6
        report(
            "same link",
            "cpu_ms_per_1000_probes",
            ours[1],
            "ms",
            peer=name,
            peer_value=round(peer_cpu, 2),
            ratio=round(ours[1] / peer_cpu, 4) if peer_cpu else None,
        )


def fault_times(
    fleet: MeshFleet, faults: int, dead: Callable[[], bool], alive: Callable[[], bool]
) -> list[float]:
    """Times in ms from link down until `dead`, each after `alive`."""
    times: list[float] = []
    for _ in range(faults):
        wait_for(alive, 20, "the peer to see the link")
        time.sleep(random.Random(len(times)).uniform(0.1, 1.1))  # at any moment of the rival's period
        with fleet.lab.host("h1").nic("rail0").down() as fault:
            wait_for(dead, 20, "the peer to miss the link", poll_s=0.01)
            times.append((time.time_ns() - fault.event.before_ns) / 1e6)
    return times


def bench_side_by_side(faults: int) -> None:
    """ping at 200 ms, blackbox_exporter scraped each second, smokeping_prober at its default, on one link with us."""
    with fleet_of_four(0.2) as fleet:
        watch = Watch(fleet, "h1")
        ours_ms = fault_times(
            fleet, faults, partial(watch.shows, "rail0", "0"), partial(watch.shows, "rail0", "1")
        )
        first = fleet.scrape("h0")
        time.sleep(10)  # the measurement of our CPU time
        last = fleet.scrape("h0")

        def grown(name: str) -> float:
            return sum(last.values(name)) - sum(first.values(name))

        packets = grown("fabricpulse_edge_probes_sent_total")
        ours = (statistics.median(ours_ms), grown("fabricpulse_probe_cpu_seconds_total") / packets * 1e6)
        report("link down on the same link", "detect_ms_p50", ours[0], "ms", faults=faults)
        report("same link, sent and received", "cpu_ms_per_1000_probes", ours[1], "ms")
        for play in (side_ping, side_blackbox, side_smokeping):
            try:
                play(fleet, faults, ours)
            except (UserError, AssertionError, OSError) as error:
                print(f"bench mesh: {play.__name__}: {error}", file=sys.stderr)


def side_ping(fleet: MeshFleet, faults: int, ours: tuple[float, float]) -> None:
    """ping -i 0.2 -O says "no answer yet" one interval after a loss."""
    program = debian_tool("iputils-ping", "ping")
    if program is None:
        raise UserError("ping is not installed and cannot be fetched")
    rival = Rival(fleet, [program, "-O", "-n", "-i", "0.2", fleet.lab.address("h1", "rail0")])

    def last_line() -> str:
        return (rival.process.output().splitlines() or [""])[-1]

    times = fault_times(
        fleet, faults, lambda: "no answer" in last_line(), lambda: "bytes from" in last_line()
    )
    before, count = cpu_seconds(rival.process.outer_pid), rival.process.output().count("icmp_seq")
    time.sleep(20)  # the measurement of its CPU time: 100 probes
    probes = rival.process.output().count("icmp_seq") - count
    cpu = cpu_seconds(rival.process.outer_pid) - before
    rival.process.send_signal(signal.SIGINT)
    rival_row("ping -i 0.2", times, cpu, probes, ours)


def side_blackbox(fleet: MeshFleet, faults: int, ours: tuple[float, float]) -> None:
    """blackbox_exporter probes when it is scraped: each second, time limit 1 s."""
    program = debian_tool("prometheus-blackbox-exporter", "prometheus-blackbox-exporter")
    if program is None:
        raise UserError("prometheus-blackbox-exporter is not installed and cannot be fetched")
    config = fleet.lab.directory / "blackbox.yml"
    config.write_text("modules: {icmp: {prober: icmp, timeout: 1s}}\n")
    rival = Rival(fleet, [program, f"--config.file={config}", "--web.listen-address=127.0.0.1:9115"], 9115)
    rival.process.wait_for_output("Listening")
    due = [time.monotonic()]

    def success() -> float | None:
        time.sleep(max(due[0] - time.monotonic(), 0))  # until the next scrape is due
        due[0] = max(due[0] + 1, time.monotonic())
        return rival.metrics(f"/probe?module=icmp&target={rival.target}").value("probe_success")

    times = fault_times(fleet, faults, lambda: success() == 0, lambda: success() == 1)
    before = cpu_seconds(rival.process.outer_pid)
    for _ in range(200):
        rival.metrics(f"/probe?module=icmp&target={rival.target}")
    cpu = cpu_seconds(rival.process.outer_pid) - before
    rival.process.stop()
    rival_row("blackbox_exporter, scraped each second", times, cpu, 200, ours)


def side_smokeping(fleet: MeshFleet, faults: int, ours: tuple[float, float]) -> None:
    """smokeping_prober pings each second; a loss shows as a request without a response."""
    program = debian_tool("prometheus-smokeping-prober", "prometheus-smokeping-prober")
    if program is None:
        raise UserError("prometheus-smokeping-prober is not installed and cannot be fetched")
    target = fleet.lab.address("h1", "rail0")
    rival = Rival(fleet, [program, "--privileged", "--web.listen-address=127.0.0.1:9374", target], 9374)
    wait_for(lambda: rival_answers(rival), 15, "smokeping_prober")

    def open_requests() -> float:
        scrape = rival.metrics()
        answered = sum(scrape.values("smokeping_response_duration_seconds_count"))
        return sum(scrape.values("smokeping_requests_total")) - answered

    base = [0.0]

    def alive() -> bool:
        # One request may be on its way.
        first = open_requests()
        time.sleep(1.2)  # its period and some
        base[0] = min(first, open_requests())
        return first == open_requests() or open_requests() <= base[0] + 1

    times = fault_times(fleet, faults, lambda: open_requests() >= base[0] + 2, alive)
    before, count = (
        cpu_seconds(rival.process.outer_pid),
        sum(rival.metrics().values("smokeping_requests_total")),
    )
    time.sleep(30)  # the measurement of its CPU time: 30 probes
    probes = sum(rival.metrics().values("smokeping_requests_total")) - count
    cpu = cpu_seconds(rival.process.outer_pid) - before
    rival.process.stop()
    rival_row("smokeping_prober, 1 s", times, cpu, probes, ours)


def rival_answers(rival: Rival) -> bool:
    """Whether its /metrics is there and shows requests."""
    with suppress(OSError, socket.timeout):
        return bool(rival.metrics().values("smokeping_requests_total"))
    return False
