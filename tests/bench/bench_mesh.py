"""`make bench NAME=mesh`: the probe mesh in the lab, beside ping, blackbox_exporter and smokeping_prober.

Prints one JSON object a line and exits with 1 if a gate is missed. Needs root. `ARGS="--only cpu,detect"` chooses
parts, `--faults N`, `--flaps N`, `--stall-seconds S`, `--forged N` their sizes.
"""

import argparse
import http.client
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.integration.mesh.mesh_fleet import MeshFleet, Scrape, wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND, ProbeRingReader
from fabricpulse.exporters import _probe_engine as native
from fabricpulse.lab import Host, Lab, LabProcess, Nic
from fabricpulse.lab.clocks import HostClock
from fabricpulse.lab.servers import start_alertmanager
from fabricpulse.lab.tools import find_tools

HOUR_NS = 3600 * 10**9
DISCONNECTS = "fabricpulse_nic_disconnects_total"
TICKS = os.sysconf("SC_CLK_TCK")
ENGINES = (sys.executable, "-m", "tests.bench.mesh_engine")
missed = False


def report(case: str, metric: str, value: float, unit: str, gate: float | None = None, **more: Any) -> None:
    """Prints one line. gate : the value must not be above it."""
    global missed  # noqa: PLW0603 - the exit code of the program
    line = {"bench": "mesh", "case": case, "metric": metric, "value": round(value, 4), "unit": unit, **more}
    if gate is not None:
        line |= {"gate": gate, "ok": value <= gate}
        missed |= value > gate
    print(json.dumps(line), flush=True)


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least q of all are not above."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# -- one host under test, its peers played by engines in another -----------------------------------------------------


@contextmanager
def peer_lab(rails: int, peers: int) -> Iterator[tuple[Lab, list[list[str]]]]:
    """Two hosts; the second has `peers` more addresses on each rail. Yields the lab and the addresses by rail."""
    with Lab(hosts=2, rails=rails) as lab:
        addresses = []
        for nic in lab.host("h1").nics:
            prefix = nic.address.rsplit(".", 1)[0]
            found = [f"{prefix}.{100 + p}" for p in range(peers)]
            batch = "\n".join(f"addr add {address}/24 dev {nic.device}" for address in found)
            lab.run("h1", ["ip", "-batch", "-"], input=batch + "\n")
            addresses.append(found)
        yield lab, addresses


def engine_file(lab: Lab, name: str, plans: list[dict[str, Any]], seconds: float, warmup: float) -> Path:
    """Writes the plans of tests.bench.mesh_engine."""
    path = lab.directory / f"{name}.json"
    path.write_text(json.dumps({"plans": plans, "seconds": seconds, "warmup": warmup}))
    return path


def peer_plans(lab: Lab, addresses: list[list[str]], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Hosts p0, p1, … that each probe the NICs of h0, one address on each rail."""
    rails = lab.host("h0").nics
    return [
        {
            "host": f"p{p}",
            "settings": {"bind_device": False, **settings},
            "nics": [(rail.device, rail.device, addresses[r][p]) for r, rail in enumerate(rails)],
            "edges": [(r, "h0", rail.device, rail.device, rail.address) for r, rail in enumerate(rails)],
        }
        for p in range(len(addresses[0]))
    ]


def bench_cpu(case: str, metric: str, rails: int, gate: float) -> None:
    """CPU of the engine's thread at 10 peers a NIC, 50 trains a second, three packets each.

    The thread pays for the lab too: in the kernel, a send runs the switch and the receiver before it returns.
    """
    with peer_lab(rails, 10) as (lab, addresses):
        own = [(nic.device, nic.device, nic.address) for nic in lab.host("h0").nics]
        pairs = [
            (rail, p, address) for rail, found in enumerate(addresses) for p, address in enumerate(found)
        ]
        plan = {
            "host": "h0",
            "settings": {"ring_path": str(lab.directory / "ring")},
            "nics": own,
            "edges": [
                (rail, "h1", f"{own[rail][0]}-{p}", own[rail][0], address) for rail, p, address in pairs
            ],
        }
        # One engine plays all peers, so that the CPU is not woken for each of them.
        peers = {
            "host": "h1",
            "settings": {"bind_device": False},
            "nics": [(f"{own[rail][0]}-{p}", own[rail][0], address) for rail, p, address in pairs],
            "edges": [
                (index, "h0", own[rail][0], *own[rail][1:]) for index, (rail, _, _) in enumerate(pairs)
            ],
        }
        playing = lab.popen("h1", [*ENGINES, engine_file(lab, "peers", [peers], 60, 1)])
        run = lab.run("h0", [*ENGINES, engine_file(lab, "own", [plan], 20, 3)], timeout=60)
        playing.kill()
        got = json.loads(run.stdout)
        assert got["up"] == 10 * rails, got
        report(case, metric, got["cpu_percent"], "percent of a core", gate, **detail(got))


def detail(got: dict[str, Any]) -> dict[str, Any]:
    """What belongs beside the CPU figure."""
    return {key: round(got[key], 1) for key in ("sent_per_s", "received_per_s", "stamps_lost", "overflows")}


@contextmanager
def exporter_under_test(rails: int, peers: int, rate: float) -> Iterator[tuple[MeshFleet, LabProcess]]:
    """`fabricpulse mesh` on h0 with `peers` peers on each rail, all answering, on fleet time."""
    with peer_lab(rails, peers) as (lab, addresses):
        fleet = MeshFleet(
            lab,
            {"rate": rate, "peers": min(peers, 64), "cross_peers": 0, "interval_s": max(1.0, 6 / rate)},
            latency={"window_s": 5},
        )
        document = {
            "hosts": [{"name": "h0", "nics": nics_of(lab.host("h0"))}]
            + [
                {
                    "name": f"p{p}",
                    "nics": [
                        {"device": nic.device, "address": addresses[r][p], "network": nic.device}
                        for r, nic in enumerate(lab.host("h0").nics)
                    ],
                }
                for p in range(peers)
            ]
        }
        fleet.membership.write_text(yaml.safe_dump(document))
        fleet.true_clock()
        settings = {
            "rate": rate,
            "clock_path": str(lab.host("h1").run_dir / "clock"),
            "tick_ns": round(0.5e9 / rate),
        }
        peers_process = lab.popen(
            "h1",
            [*ENGINES, engine_file(lab, "peers", peer_plans(lab, addresses, settings), 600, 1)],
        )
        fleet.without_key = True
        fleet.start("h0")
        fleet.wait_green(30)

        def learned() -> list[float]:
            time.sleep(0.5)
            return fleet.scrape("h0").values("fabricpulse_edge_latency_elevated")

        wait_for(learned, 90, "delays")
        yield fleet, fleet.daemons["h0"]
        peers_process.kill()


def nics_of(host: Host) -> list[dict[str, str]]:
    """A host's NICs for a membership file."""
    return [{"device": nic.device, "address": nic.address, "network": nic.device} for nic in host.nics]


def lateness(fleet: MeshFleet) -> dict[str, float]:
    """Cumulative lateness histogram of h0 by bound."""
    scrape = fleet.scrape("h0")
    return {
        labels["le"]: value
        for name, labels, value in scrape.samples
        if name == "fabricpulse_probe_lateness_seconds_bucket"
    }


def late_quantile(before: dict[str, float], after: dict[str, float], q: float) -> float:
    """Upper bound in seconds of the bucket that holds quantile q of the turns between two scrapes."""
    total = after["+Inf"] - before["+Inf"]
    for bound, value in after.items():
        if value - before[bound] >= q * total:
            return float(bound)
    return math.inf


def bench_exporter(scrapes: int) -> None:
    """Memory of engine and exporter; a scrape of 10,000 series, and what it does to the engine."""
    with exporter_under_test(8, 10, 50) as (fleet, daemon):
        for _ in range(20):
            fleet.scrape("h0")
        status = Path(f"/proc/{daemon.outer_pid}/status").read_text()
        rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        series = len(fleet.scrape("h0").samples)
        report("8 NICs x 10 peers", "rss_mb", rss / 1024, "MB", 60)
        report("8 NICs x 10 peers", "series", series, "series", 2_000)
    with exporter_under_test(8, 64, 2) as (fleet, _):
        idle_start = lateness(fleet)
        time.sleep(10)
        idle_end = lateness(fleet)
        connection = http.client.HTTPConnection("h0", 9610, timeout=10)
        connection.sock = fleet.lab.connect("h0", "127.0.0.1", 9610)
        times = []
        for _ in range(scrapes):
            start = time.perf_counter()
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            body = connection.getresponse().read()
            times.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.02)
        busy_end = lateness(fleet)
        connection.close()
        series = len(fleet.scrape("h0").samples)
        report(
            "8 NICs x 64 peers, gzip",
            "scrape_ms_p99",
            quantile(times, 0.99),
            "ms",
            15,
            series=series,
            p50=round(statistics.median(times), 2),
            compressed_bytes=len(body),
        )
        before, during = (
            late_quantile(a, b, 0.99) for a, b in ((idle_start, idle_end), (idle_end, busy_end))
        )
        report("without scrapes", "lateness_p99_s", before, "s (bucket)")
        report("scraped 30 times a second", "lateness_p99_s", during, "s (bucket)", max(2 * before, 1e-3))


# -- faults in a fleet of four hosts ---------------------------------------------------------------------------------


@contextmanager
def fleet_of_four(interval_s: float, **config: Any) -> Iterator[MeshFleet]:
    """Four hosts, two rails, all probing, on true fleet time."""
    with Lab() as lab:
        for number, host in enumerate(lab.hosts):
            host.clock.set(offset_ns=(number - 1) * 5_000_000_000, drift_ppm=11.0 * (number - 1))
        fleet = MeshFleet(lab, {"interval_s": interval_s}, latency={"window_s": 5}, **config)
        fleet.start()
        fleet.true_clock()
        fleet.wait_green(30)
        yield fleet


class Watch:
    """Reads one metric of one exporter as fast as it answers, over one connection."""

    def __init__(self, fleet: MeshFleet, host: str) -> None:
        self.connection = http.client.HTTPConnection(host, 9610, timeout=10)
        self.connection.sock = fleet.lab.connect(host, "127.0.0.1", 9610)

    def shows(self, device: str, value: str) -> bool:
        """Whether fabricpulse_nic_connected of the device has this value now."""
        self.connection.request("GET", "/metrics")
        text = self.connection.getresponse().read().decode()
        start = text.find(f'\nfabricpulse_nic_connected{{device="{device}"')
        return start >= 0 and text[start + 1 : text.find("\n", start + 1)].endswith(f" {value}")


def each_nic_in_turn(fleet: MeshFleet, count: int, seed: int) -> Iterator[tuple[str, Nic]]:
    """NICs of the fleet in random order, `count` in all."""
    rng = random.Random(seed)
    nics = [(host.name, nic) for host in fleet.lab.hosts for nic in host.nics]
    for _ in range(count):
        yield rng.choice(nics)


def bench_detect(interval_s: float, faults: int, gate: float) -> None:
    """From the moment a link goes down to the metric that says so, scraped all the while."""
    with fleet_of_four(interval_s) as fleet:
        watches = {host.name: Watch(fleet, host.name) for host in fleet.lab.hosts}
        times = []
        rng = random.Random(3)
        for host, nic in each_nic_in_turn(fleet, faults, 2):
            wait_for(partial(watches[host].shows, nic.device, "1"), 10, "connected")
            time.sleep(rng.uniform(0.05, 0.15))
            with nic.down() as fault:
                wait_for(partial(watches[host].shows, nic.device, "0"), 10, "disconnected")
                times.append((time.time_ns() - fault.event.before_ns) / 1e6)
        case = f"link down to metric, interval {interval_s:g} s, {faults} faults"
        report(
            case, "detect_ms_p99", quantile(times, 0.99), "ms", gate, p50=round(statistics.median(times), 1)
        )


def bench_alert(faults: int) -> None:
    """From the moment a link goes down to the alert in a real Alertmanager, pushed, at 200 ms."""
    tools = find_tools()
    with Lab() as lab:
        config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
        alertmanager = start_alertmanager(lab, config, tools=tools)
        url = f"http://{lab.resolve('mgmt')}:{alertmanager.port}"
        fleet = MeshFleet(lab, {"interval_s": 0.2})
        for host in lab.hosts:
            labels = {"job": "mesh", "instance": host.name}
            fleet.config["alerting"] = {"alertmanagers": [url], "labels": labels}
            fleet.start(host.name)
        fleet.wait_green(30)
        times: list[float] = []

        def firing(host: str, device: str) -> bool:
            matchers = ('alertname="FabricNicDisconnected"', f'device="{device}"', f'instance="{host}"')
            return bool(alertmanager.alerts(*matchers))

        def quiet(host: str, device: str) -> bool:
            return fleet.connected(host, device) == 1 and not firing(host, device)

        for name, nic in each_nic_in_turn(fleet, faults, 4):
            wait_for(partial(quiet, name, nic.device), 10, "connected, and no alert")
            with nic.down() as fault:
                wait_for(partial(firing, name, nic.device), 10, "the alert")
                times.append((time.time_ns() - fault.event.before_ns) / 1e6)
        report(
            f"link down to Alertmanager, interval 0.2 s, {faults} faults",
            "alert_ms_p99",
            quantile(times, 0.99),
            "ms",
            500,
            p50=round(statistics.median(times), 1),
        )


def bench_flaps(flaps: int) -> None:
    """Random flaps longer than the interval, on one NIC of each host: every one is counted, no other."""
    with fleet_of_four(0.2) as fleet:
        share = [flaps // 4 + (number < flaps % 4) for number in range(4)]

        def play(host: Host, count: int) -> None:
            rng = random.Random(host.name)
            nic = host.nics[0]
            for _ in range(count):
                with nic.down():
                    time.sleep(rng.uniform(0.3, 0.7))
                time.sleep(rng.uniform(0.4, 0.8))

        threads = [
            threading.Thread(target=play, args=(host, count))
            for host, count in zip(fleet.lab.hosts, share, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fleet.wait_green()
        counted = sum(sum(fleet.scrape(host.name).values(DISCONNECTS)) for host in fleet.lab.hosts)
        report(f"{flaps} flaps longer than the interval, 0.2 s", "flaps_counted", counted, "flaps", flaps)
        report(f"{flaps} flaps longer than the interval, 0.2 s", "flaps_missed", flaps - counted, "flaps", 0)


def bench_stalls(seconds: float) -> None:
    """Stopped daemons, hogged CPUs, stepped clocks, dead peers, dead paths: no NIC is ever called disconnected."""
    rng = random.Random(5)
    with fleet_of_four(0.2) as fleet:
        lost = 0.0  # counts of daemons that were killed
        end = time.monotonic() + seconds
        done: dict[str, int] = {}
        ways = itertools.cycle(("stop", "hog", "step", "dead peer", "dead path"))
        while time.monotonic() < end:
            way = next(ways)
            done[way] = done.get(way, 0) + 1
            host = rng.choice(fleet.lab.hosts)
            if way == "stop":
                fleet.daemons[host.name].suspend()
                time.sleep(2)
                fleet.daemons[host.name].resume()
            elif way == "hog":
                burn = [sys.executable, "-c", "while True: pass"]
                hogs = [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]
                time.sleep(3)
                for hog in hogs:
                    hog.kill()
                    hog.wait()
            elif way == "step":
                host.clock.step(rng.choice((HOUR_NS, -HOUR_NS)))
                time.sleep(1.5)
            elif way == "dead peer":
                lost += sum(fleet.scrape(host.name).values(DISCONNECTS))
                host.crash()
                time.sleep(1.5)
                fleet.start(host.name)
            else:
                with fleet.lab.spine(rng.randrange(2)).black_hole():
                    time.sleep(3)
            fleet.wait_green(30)
        false = lost + sum(sum(fleet.scrape(name).values(DISCONNECTS)) for name in fleet.daemons)
        report(
            f"{seconds:g} s of stalls, interval 0.2 s",
            "false_disconnects",
            false,
            "disconnects",
            0,
            played=done,
        )


def to_kernel(clock: HostClock, host_ns: int) -> int:
    """The inverse of HostClock.from_kernel."""
    # From a guess on the right segment: the offset as it is now.
    kernel = host_ns - clock.truth(time.time_ns())
    for _ in range(4):
        kernel -= clock.from_kernel(kernel) - host_ns
    return kernel


def bench_owd(seconds: float) -> None:
    """One-way delays of the engine against RX minus TX kernel stamp, hosts' clocks seconds and ppm apart."""
    with fleet_of_four(0.5) as fleet:
        errors, delays = [], []
        for host in fleet.lab.hosts:
            reader = ProbeRingReader(host.run_dir / "probes")
            edges = reader.edges()
            fleet.true_clock()
            end = time.monotonic() + seconds / 4
            while time.monotonic() < end:
                time.sleep(0.2)
                for sample in reader.read():
                    if sample.direction != INBOUND or not sample.flags & FLEET_VALID:
                        continue
                    peer = fleet.lab.host(edges[sample.edge].peer)
                    both = sample.tx_valid & sample.rx_valid
                    truth = min(
                        to_kernel(host.clock, sample.rx_ns[i]) - to_kernel(peer.clock, sample.tx_ns[i])
                        for i in ((1, 2) if both & 6 else (0,))
                        if both >> i & 1
                    )
                    errors.append(float(abs(sample.owd_ns - truth)))
                    delays.append(float(truth))
        case = f"true clock, {len(errors)} trains"
        report(case, "owd_error_ns_p99", quantile(errors, 0.99), "ns", 500, max=max(errors))
        report(case, "owd_us_p50", statistics.median(delays) / 1e3, "us")


def bench_forged(count: int) -> None:
    """Fuzzed, replayed, re-keyed packets at the gate of a live session."""
    rng = random.Random(6)
    key = rng.randbytes(16)
    gate = native.Gate([key], 77)
    gate.our_train = 1000
    recording = []
    for train in range(1, 301):
        for position in range(3):
            packet = native.encode(key, 1000, train, position, 77, 1000)
            assert gate.take(packet) == "accepted"
            recording.append(packet)
    accepted = 0
    verdicts: dict[str, int] = {}
    for number in range(count):
        way = number % 4
        packet = rng.choice(recording)
        if way == 1:
            forged = bytearray(packet)
            for _ in range(rng.randrange(1, 5)):
                forged[rng.randrange(len(forged))] ^= rng.randrange(1, 256)
            packet = bytes(forged)
        elif way == 2:
            packet = native.encode(
                rng.randbytes(16), 1000, rng.randrange(301, 1 << 31), rng.randrange(3), 77, 1000
            )
        elif way == 3:
            # A recording of an earlier start of the peer, under the right key.
            packet = native.encode(
                key, rng.randrange(1, 1000), rng.randrange(1, 1 << 20), 0, 76, rng.randrange(1, 999)
            )
        verdict = gate.take(packet)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        accepted += verdict == "accepted"
    report(f"{count} forged packets", "forged_accepted", accepted, "packets", 0, refused=verdicts)


# -- side by side ----------------------------------------------------------------------------------------------------


def debian_tool(package: str, program: str) -> str | None:
    """A program on PATH, in .tools/, or unpacked there from Debian's package."""
    tools = Path(__file__).parents[2] / ".tools"
    places = ":".join(str(tools / part) for part in ("usr/bin", "usr/sbin", "bin"))
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:{places}")
    if found is None and shutil.which("apt-get") and shutil.which("dpkg"):
        with tempfile.TemporaryDirectory() as folder:
            sandbox = f"APT::Sandbox::User={os.environ.get('USER', 'root')}"
            command = ["apt-get", "-qq", "-o", sandbox, "download", package]
            done = subprocess.run(command, cwd=folder, check=False, capture_output=True)
            for deb in Path(folder).glob("*.deb") if done.returncode == 0 else ():
                tools.mkdir(exist_ok=True)
                subprocess.run(["dpkg", "-x", str(deb), str(tools)], check=True)
        found = shutil.which(program, path=places)
    return found


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
        time.sleep(random.Random(len(times)).uniform(0.1, 1.1))
        with fleet.lab.host("h1").nic("rail0").down() as fault:
            wait_for(dead, 20, "the peer to miss the link")
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
        time.sleep(10)
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
    time.sleep(20)
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
        time.sleep(max(due[0] - time.monotonic(), 0))
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
        time.sleep(1.2)
        base[0] = min(first, open_requests())
        return first == open_requests() or open_requests() <= base[0] + 1

    times = fault_times(fleet, faults, lambda: open_requests() >= base[0] + 2, alive)
    before, count = (
        cpu_seconds(rival.process.outer_pid),
        sum(rival.metrics().values("smokeping_requests_total")),
    )
    time.sleep(30)
    probes = sum(rival.metrics().values("smokeping_requests_total")) - count
    cpu = cpu_seconds(rival.process.outer_pid) - before
    rival.process.stop()
    rival_row("smokeping_prober, 1 s", times, cpu, probes, ours)


def rival_answers(rival: Rival) -> bool:
    """Whether its /metrics is there and shows requests."""
    with suppress(OSError, socket.timeout):
        return bool(rival.metrics().values("smokeping_requests_total"))
    return False


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = "cpu, exporter, detect, alert, flaps, stalls, owd, forged, side"
    parser.add_argument("--only", default="", help=f"comma separated: {names}")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--flaps", type=int, default=500)
    parser.add_argument("--stall-seconds", type=float, default=600)
    parser.add_argument("--forged", type=int, default=1_000_000)
    parser.add_argument("--scrapes", type=int, default=300)
    options = parser.parse_args()
    parts: dict[str, list[Callable[[], None]]] = {
        "cpu": [
            partial(bench_cpu, "1 NIC, 10 peers", "engine_cpu_percent", 1, 1.5),
            partial(bench_cpu, "8 NICs, 80 peers", "engine_cpu_percent_8nics", 8, 10),
        ],
        "exporter": [partial(bench_exporter, options.scrapes)],
        "detect": [
            partial(bench_detect, 1.0, options.faults, 1_200),
            partial(bench_detect, 0.2, options.faults, 350),
        ],
        "alert": [partial(bench_alert, options.faults)],
        "flaps": [partial(bench_flaps, options.flaps)],
        "stalls": [partial(bench_stalls, options.stall_seconds)],
        "owd": [partial(bench_owd, 20)],
        "forged": [partial(bench_forged, options.forged)],
        "side": [partial(bench_side_by_side, max(options.faults // 10, 5))],
    }
    wanted = set(filter(None, options.only.split(","))) or set(parts)
    if unknown := wanted - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {names}")
    for name, steps in parts.items():
        for step in steps if name in wanted else ():
            step()
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
