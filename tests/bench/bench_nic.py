"""`make bench NAME=nic`: the NIC exporter beside Debian's node_exporter on the same tree, and its flaps on veth pairs.

Prints one JSON object a line and exits with 1 if a gate is missed. Needs root for network namespaces. Options:
`--only parity,rss_mb` and so on, `--flaps N`.
"""

import argparse
import heapq
import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.broken_nic import VICTIM, WAYS, permission_denied
from tests.fixtures.sys_tree import SysTree

from fabricpulse.core.log import configure_logging
from fabricpulse.exporters.nic.config import NicConfig
from fabricpulse.exporters.nic.exporter import NicExporter

NODE_PORT, NIC_PORT = 29_710, 29_711
SCRAPE_HEADERS = {"Accept-Encoding": "gzip"}
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# Every metric of node_exporter's two collectors on this tree, and what ours is called. All counters have an entry, or
# parity is missed. Gauges without one are settings that are the same on all links of a host from boot to shutdown
# (name_assign_type, addr_assign_type, link_mode, netdev_group, dev_id, type, flags, tx_queue_len, ifindex, iflink,
# dormant) and info metrics whose labels ours has elsewhere; the result names them.
SAME_AS = {
    "node_infiniband_excessive_buffer_overrun_errors_total": "excessive_buffer_overrun_errors_total",
    "node_infiniband_link_downed_total": "link_downed_total",
    "node_infiniband_link_error_recovery_total": "link_error_recovery_total",
    "node_infiniband_local_link_integrity_errors_total": "local_link_integrity_errors_total",
    "node_infiniband_multicast_packets_received_total": "multicast_packets_received_total",
    "node_infiniband_multicast_packets_transmitted_total": "multicast_packets_transmitted_total",
    "node_infiniband_physical_state_id": "port_physical_state",
    "node_infiniband_port_constraint_errors_received_total": "receive_constraint_errors_total",
    "node_infiniband_port_constraint_errors_transmitted_total": "transmit_constraint_errors_total",
    "node_infiniband_port_data_received_bytes_total": "received_bytes_total",
    "node_infiniband_port_data_transmitted_bytes_total": "transmitted_bytes_total",
    "node_infiniband_port_discards_transmitted_total": "transmit_discards_total",
    "node_infiniband_port_errors_received_total": "receive_errors_total",
    "node_infiniband_port_packets_received_total": "received_packets_total",
    "node_infiniband_port_packets_transmitted_total": "transmitted_packets_total",
    "node_infiniband_port_receive_remote_physical_errors_total": "receive_remote_physical_errors_total",
    "node_infiniband_port_receive_switch_relay_errors_total": "receive_switch_relay_errors_total",
    "node_infiniband_port_transmit_wait_total": "transmit_wait_ticks_total",
    "node_infiniband_rate_bytes_per_second": "port_rate_bytes_per_second",
    "node_infiniband_state_id": "port_state",
    "node_infiniband_symbol_error_total": "symbol_errors_total",
    "node_infiniband_unicast_packets_received_total": "unicast_packets_received_total",
    "node_infiniband_unicast_packets_transmitted_total": "unicast_packets_transmitted_total",
    "node_infiniband_vl15_dropped_total": "vl15_dropped_total",
    "node_network_carrier": "link_carrier",
    "node_network_carrier_changes_total": "carrier_changes_total",
    "node_network_carrier_down_changes_total": "carrier_down_changes_total",
    "node_network_carrier_up_changes_total": "carrier_up_changes_total",
    "node_network_mtu_bytes": "link_mtu_bytes",
    "node_network_speed_bytes": "link_speed_bytes_per_second",
    "node_network_up": "link_operational",
}

Samples = dict[str, float]
Result = dict[str, Any]
missed = False


def report(
    case: str, metric: str, value: float, unit: str, gate: Callable[[float], bool] | None = None, **more: Any
) -> None:
    """Prints one line; a gate that is missed fails the run."""
    global missed  # noqa: PLW0603 - the exit code of the program
    line = {"bench": "nic", "case": case, "metric": metric, "value": round(value, 4), "unit": unit, **more}
    if gate is not None:
        line["ok"] = bool(gate(value))
        missed |= not line["ok"]
    print(json.dumps(line), flush=True)


# -- processes ----------------------------------------------------------------------------------------------------


def node_exporter() -> str | None:
    """The reference: on PATH, in .tools/, or fetched there."""
    tools = Path(__file__).parents[2] / ".tools"
    found = shutil.which("prometheus-node-exporter", path=f"{os.environ['PATH']}:{tools}/usr/bin")
    if found is None and shutil.which("apt-get") and shutil.which("dpkg"):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            done = subprocess.run(
                ["apt-get", "download", "-qq", "prometheus-node-exporter"], cwd=folder, check=False
            )
            for package in Path(folder).glob("*.deb") if done.returncode == 0 else ():
                tools.mkdir(exist_ok=True)
                subprocess.run(["dpkg", "-x", str(package), str(tools)], check=True)
        found = shutil.which("prometheus-node-exporter", path=f"{tools}/usr/bin")
    return found


class Daemon:
    """A running exporter that answers."""

    def __init__(self, command: list[str], port: int, **environment: str) -> None:
        self.command, self.port, self.environment = command, port, environment
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        end = time.monotonic() + 20
        while True:
            try:
                self.scrape()
            except OSError:
                self.connection.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    self.stop()
                    raise
                time.sleep(0.05)
            else:
                return

    def scrape(self, headers: dict[str, str] | None = None) -> bytes:
        self.connection.request("GET", "/metrics", headers=headers or {})
        return self.connection.getresponse().read()

    def cpu_s(self) -> float:
        """CPU time so far, of all threads, to the nanosecond (/proc/PID/stat counts ticks of 10 ms)."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(20)
        self.connection.close()


@contextmanager
def running(command: list[str], port: int, **environment: str) -> Iterator[Daemon]:
    daemon = Daemon(command, port, **environment)
    try:
        yield daemon
    finally:
        daemon.stop()


def nic_command(sysfs: Path, *more: str) -> list[str]:
    address = f"127.0.0.1:{NIC_PORT}"
    command = [sys.executable, "-m", "fabricpulse.core.cli", "nic", "--path.sysfs", str(sysfs)]
    return [*command, "--web.listen-address", address, *more]


def node_command(binary: str, sysfs: Path) -> list[str]:
    return [binary, f"--path.sysfs={sysfs}", "--collector.disable-defaults", "--collector.infiniband",
            "--collector.netclass", f"--web.listen-address=127.0.0.1:{NODE_PORT}", "--log.level=error"]  # fmt: skip


def parse(body: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in body.decode().splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match:
            yield match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])


# -- beside node_exporter -----------------------------------------------------------------------------------------


def bench_parity(root: Path, binary: str) -> None:
    """Every counter of node_exporter, and every gauge that ours has a name for, has the equal value."""
    SysTree(root).gpu_host(gid_slots=255)
    with running(node_command(binary, root), NODE_PORT) as node:
        theirs = list(parse(node.scrape()))
    with running(nic_command(root), NIC_PORT, FABRICPULSE_RUN_DIR=str(root.parent / "run")) as nic:
        ours = {
            (
                name,
                labels.get("netdev") if "netdev" in labels else labels.get("device"),
                labels.get("port"),
            ): value
            for name, labels, value in parse(nic.scrape())
        }
    compared, equal, counters = 0, 0, 0
    left_out: set[str] = set()
    for name, labels, value in theirs:
        is_counter = name.endswith("_total") and name.startswith(("node_infiniband_", "node_network_"))
        if name not in SAME_AS and not is_counter:
            if name.startswith(("node_infiniband_", "node_network_")):
                left_out.add(name)
            continue
        compared += 1
        counters += is_counter
        mine = "fabricpulse_nic_" + SAME_AS.get(name, "?")
        found = [
            v for (n, device, port), v in ours.items()
            if n == mine and device == labels["device"] and labels.get("port", port) == port
        ]  # fmt: skip
        if name == "node_network_speed_bytes" and value < 0:
            # A link that is down has no speed: node_exporter prints -125000, we print nothing.
            equal += not found
        elif found == [value]:
            equal += 1
        else:
            print(f"differs: {name} {labels} {value}: {found}", file=sys.stderr)
    report(
        "10 NICs",
        "parity",
        equal / compared,
        "ratio",
        lambda v: v == 1,
        compared=compared,
        counters=counters,
        left_out=sorted(left_out),
    )


def bench_broken(root: Path, binary: str | None) -> None:
    """One NIC of ten broken in each way, before the start and under a running exporter."""
    worst, worst_way, worst_peer, peer_zero = 1.0, "", 1.0, 0
    for way in [*(way for way, _ in WAYS), permission_denied]:
        kept = min(_kept(root, way, live) for live in (False, True))
        if kept < worst:
            worst, worst_way = kept, way.__name__
        if binary is not None and way is not permission_denied:
            peer = _kept_by_node(root, binary, way)
            worst_peer = min(worst_peer, peer)
            peer_zero += peer == 0
    kept, peer_kept = _kept_in_a_race(root, binary)
    if kept < worst:
        worst, worst_way = kept, "disappearing_during_the_read"
    worst_peer = min(worst_peer, peer_kept)
    peer_zero += peer_kept == 0
    more: Result = (
        {"peer": "node_exporter", "peer_value": worst_peer, "peer_lost_all": peer_zero} if binary else {}
    )
    more |= {"worst_way": worst_way} if worst_way else {}
    report(f"{len(WAYS) + 2} ways", "broken_nic_series_kept", worst, "ratio", lambda v: v == 1, **more)


def _others(samples: Iterator[tuple[str, dict[str, str], float]]) -> dict[tuple[str, ...], float]:
    found = {}
    for name, labels, value in samples:
        device = labels.get("device", "")
        if device not in ("", VICTIM, "eth3np0") and not name.startswith("fabricpulse_scrape"):
            found[(name, *sorted(labels.values()))] = value
    return found


def _fresh(root: Path) -> SysTree:
    shutil.rmtree(root, ignore_errors=True)
    tree = SysTree(root)
    tree.gpu_host(gid_slots=16)
    return tree


def _kept(root: Path, way: Callable[[SysTree], None], live: bool) -> float:
    tree = _fresh(root)
    as_nobody = way is permission_denied
    if as_nobody:
        subprocess.run(["chown", "-R", "65534", str(root)], check=True)
        os.seteuid(65534)
    try:
        exporter = NicExporter(NicConfig(), sysfs=root)
        healthy = _others(parse(exporter.collect_once()))
        if not live:
            exporter.close()
        way(tree)
        if not live:
            exporter = NicExporter(NicConfig(), sysfs=root)
        broken = _others(parse(exporter.collect_once()))
        exporter.close()
    finally:
        if as_nobody:
            os.seteuid(0)
    return sum(1 for key, value in healthy.items() if broken.get(key) == value) / len(healthy)


def _kept_in_a_race(root: Path, binary: str | None, scrapes: int = 150) -> tuple[float, float]:
    """The worst scrape of ours and of node_exporter while the device's directory goes and comes back all the time."""
    tree = _fresh(root)
    device = tree.ib(VICTIM)
    away = device.with_name("away")
    over = threading.Event()

    def unbind_and_bind() -> None:
        rng = random.Random(5)
        while not over.wait(0.001 * rng.random()):
            device.rename(away)
            over.wait(0.001 * rng.random())
            away.rename(device)

    def kept(
        samples: Iterator[tuple[str, dict[str, str], float]], healthy: dict[tuple[str, ...], float]
    ) -> float:
        found = _others(samples)
        return sum(1 for key, value in healthy.items() if found.get(key) == value) / len(healthy)

    exporter = NicExporter(NicConfig(), sysfs=root)
    healthy = _others(parse(exporter.collect_once()))
    with ExitStack() as stack:
        node = stack.enter_context(running(node_command(binary, root), NODE_PORT)) if binary else None
        theirs = _others(parse(node.scrape())) if node else {}
        theirs = {key: value for key, value in theirs.items() if key[0].startswith("node_infiniband")}
        thread = threading.Thread(target=unbind_and_bind)
        thread.start()
        try:
            worst = min(kept(parse(exporter.collect_once()), healthy) for _ in range(scrapes))
            worst_peer = min(kept(parse(node.scrape()), theirs) for _ in range(scrapes)) if node else 1.0
        finally:
            over.set()
            thread.join()
    exporter.close()
    return worst, worst_peer


def _kept_by_node(root: Path, binary: str, way: Callable[[SysTree], None]) -> float:
    tree = _fresh(root)
    with running(node_command(binary, root), NODE_PORT) as node:
        healthy = {
            k: v for k, v in _others(parse(node.scrape())).items() if k[0].startswith("node_infiniband")
        }
        way(tree)
        try:
            broken = _others(parse(node.scrape()))
        except TimeoutError:
            # It waits for the FIFO's writer; so would Prometheus.
            broken = {}
            node.process.kill()
    return sum(1 for key, value in healthy.items() if broken.get(key) == value) / len(healthy)


def bench_cost(root: Path, binary: str | None, scrapes: int) -> None:
    """CPU and time of a scrape over HTTP with gzip, as Prometheus does it.

    Two runs of ours: the command as it is on this tree (sysfs only, more than node_exporter's two collectors read), and
    all collectors with stand-ins for ethtool, DCB, modules and RDMA netlink. Each GID table is read every 20th time,
    which is the default of 300 s at a scrape interval of 15 s.
    """
    SysTree(root).gpu_host(gid_slots=255)
    pace_s = 0.03
    config = root.parent / "nic.yaml"
    config.write_text(
        f"gid: {{refresh_seconds: {20 * pace_s}}}\ncollectors: {{module: true, queue_pairs: true}}\n"
    )
    full = [sys.executable, "-m", "tests.fixtures.nic_daemon", str(root), str(NIC_PORT + 1), str(config)]
    with ExitStack() as stack:
        meters = [
            Meter(
                stack.enter_context(
                    running(command, port, FABRICPULSE_RUN_DIR=str(root.parent / f"run{port}"))
                )
            )
            for command, port in (
                (nic_command(root, "--config", str(config)), NIC_PORT),
                (full, NIC_PORT + 1),
                *([(node_command(binary, root), NODE_PORT)] if binary is not None else []),
            )
        ]
        # In turns, so that a neighbour's load meets all of them.
        for _ in range(scrapes // BLOCK):
            for meter in meters:
                meter.block(pace_s)
        plain, everything = meters[:2]
        rss = everything.daemon.rss_mb()
        samples = sum(1 for _ in parse(everything.daemon.scrape()))
    if binary is not None:
        theirs = meters[2].cpu_ms()
        for case, meter in (("10 NICs", plain), ("10 NICs, all collectors", everything)):
            peer: Result = {"peer": "node_exporter", "peer_value": round(theirs, 3)}
            report(case, "scrape_cpu_ms", meter.cpu_ms(), "ms", **peer)
            report(case, "scrape_cpu_ratio", meter.cpu_ms() / theirs, "ratio", lambda v: v <= 1.5)
            peer["peer_value"] = round(percentile(meters[2].took_ms, 0.5), 3)
            report(case, "scrape_ms_p50", percentile(meter.took_ms, 0.5), "ms", **peer)
    report(
        "10 NICs, all collectors",
        "scrape_ms_p99",
        percentile(everything.took_ms, 0.99),
        "ms",
        lambda v: v <= 50,
    )
    report("10 NICs, all collectors", "rss_mb", rss, "MB", lambda v: v <= 60, samples=samples)


BLOCK = 30


class Meter:
    """CPU and time of one daemon's scrapes, block by block."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.took_ms: list[float] = []
        self._cpu_s = 0.0
        for _ in range(10):
            daemon.scrape(SCRAPE_HEADERS)

    def block(self, pace_s: float) -> None:
        before = self.daemon.cpu_s()
        for _ in range(BLOCK):
            began = time.perf_counter()
            self.daemon.scrape(SCRAPE_HEADERS)
            took = time.perf_counter() - began
            self.took_ms.append(took * 1e3)
            time.sleep(max(0.0, pace_s - took))
        self._cpu_s += self.daemon.cpu_s() - before

    def cpu_ms(self) -> float:
        """Per scrape."""
        return self._cpu_s / len(self.took_ms) * 1e3


def percentile(values: list[float], q: float) -> float:
    return sorted(values)[int(len(values) * q)]


def bench_soak(root: Path, scrapes: int) -> None:
    """As many scrapes as a day and a half has, on a tree whose devices come, go and change meanwhile: nothing grows."""
    tree = SysTree(root)
    tree.gpu_host(gid_slots=16)
    with running(nic_command(root), NIC_PORT, FABRICPULSE_RUN_DIR=str(root.parent / "run")) as nic:
        sizes, files = [], []
        for number in range(1, scrapes + 1):
            nic.scrape(SCRAPE_HEADERS)
            if number % 100 == 0:
                path = tree.port("mlx5_1") / "counters/port_rcv_data"
                path.unlink()
                tree.write(path, number)
                shutil.rmtree(tree.ib("mlx5_2").parents[1])
                nic.scrape(SCRAPE_HEADERS)
                for folder in ("class/infiniband/mlx5_2", "class/net/eth2np0", "bus/pci/devices/0000:30:00.0",
                               "bus/pci/devices/0000:31:00.0"):  # fmt: skip
                    (root / folder).unlink()
                shutil.rmtree(root / "devices/pci0000:30")
                tree.mlx5_roce(2, gid_slots=16)
            if number in (scrapes // 10, scrapes):
                sizes.append(nic.rss_mb())
                files.append(nic.descriptors())
    report(
        f"{scrapes} scrapes",
        "rss_growth_mb",
        sizes[1] - sizes[0],
        "MB",
        lambda v: v <= 2,
        rss_mb=round(sizes[1], 1),
    )
    report(f"{scrapes} scrapes", "descriptors_growth", files[1] - files[0], "files", lambda v: v <= 2)


# -- flaps, inside a namespace ------------------------------------------------------------------------------------


class Links:
    """Sets links up and down by rtnetlink: 20 us a change, where `ip` takes milliseconds."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self.socket.bind((0, 0))

    def set(self, name: str, up: bool) -> None:
        """Flips IFF_UP of a link and waits for the kernel's answer."""
        body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 1 if up else 0, 1)
        self.socket.send(struct.pack("=IHHII", 16 + len(body), 16, 1 | 4, 1, 0) + body)
        error = struct.unpack_from("=i", self.socket.recv(4096), 16)[0]
        if error:
            raise OSError(-error, os.strerror(-error))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def make_pairs(count: int) -> None:
    for i in range(count):
        ip("link", "add", f"rail{i}", "type", "veth", "peer", "name", f"vethpeer{i}")
        ip("link", "set", f"rail{i}", "up")
        ip("link", "set", f"vethpeer{i}", "up")


def downs(body: bytes) -> dict[str, float]:
    name = "fabricpulse_nic_port_down_transitions_total"
    return {labels["netdev"]: value for n, labels, value in parse(body) if n == name}


def inner_flaps(flaps: int) -> None:
    """Random flaps of 5 ms to 2 s on 20 links at once; the exporter is restarted once and killed once meanwhile."""
    pairs = 20
    make_pairs(pairs)
    rng, links = random.Random(7), Links()
    run = os.environ["FABRICPULSE_RUN_DIR"]
    nic = Daemon(nic_command(Path("/sys")), NIC_PORT)
    base = downs(nic.scrape())
    truth = dict.fromkeys(base, 0)

    def length() -> float:
        return 0.005 * math.exp(math.log(400) * rng.random())

    due = [(time.monotonic() + length(), i, False) for i in range(pairs)]
    heapq.heapify(due)
    begun = ended = 0
    restarts = [(flaps // 3, signal.SIGTERM), (2 * flaps // 3, signal.SIGKILL)]
    absent = 0.0
    while due:
        when, i, up = heapq.heappop(due)
        time.sleep(max(0.0, when - time.monotonic()))
        links.set(f"vethpeer{i}", up)
        if up:
            ended += 1
        else:
            begun += 1
            truth[f"rail{i}"] += 1
        if up and begun + len([1 for _, _, is_up in due if not is_up]) >= flaps:
            continue
        heapq.heappush(due, (time.monotonic() + length(), i, not up))
        if restarts and begun >= restarts[0][0] and nic.process.poll() is None:
            nic.process.send_signal(restarts.pop(0)[1])
            absent = time.monotonic() + 1.0
        if absent and time.monotonic() > absent:
            # Away for a second of flaps; then it starts while they go on.
            absent = 0.0
            nic.process.wait(10)
            nic.connection.close()
            starter = subprocess.Popen(
                nic.command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            nic.process = starter
            nic.connection = http.client.HTTPConnection("127.0.0.1", NIC_PORT, timeout=20)
    end = time.monotonic() + 10
    while True:
        try:
            after = downs(nic.scrape())
        except OSError:
            nic.connection.close()
            after = {}
        exact = all(after.get(name, -1) - base[name] == count for name, count in truth.items())
        if exact or time.monotonic() > end:
            break
        time.sleep(0.1)
    nic.stop()
    counted = sum(after.get(name, 0) - base[name] for name in base)
    log = [json.loads(line) for line in (Path(run) / "nic-events.jsonl").read_text().splitlines()]
    timed = sum(1 for event in log if event["event"] == "link_up" and "down_seconds" in event)
    report(
        f"{begun} flaps, 2 restarts",
        "flaps_counted",
        counted,
        "flaps",
        lambda v: v == begun and exact and begun >= flaps,
        flaps=begun,
        exact_on_each_link=exact,
        timed=timed,
    )


def inner_storm(flaps: int) -> None:
    """As many flaps as the kernel can do, with the exporter stopped by SIGSTOP meanwhile: its socket overruns."""
    make_pairs(1)
    links = Links()
    nic = Daemon(nic_command(Path("/sys")), NIC_PORT)
    base = downs(nic.scrape())["rail0"]
    nic.process.send_signal(signal.SIGSTOP)
    for _ in range(flaps):
        links.set("vethpeer0", False)
        links.set("vethpeer0", True)
    nic.process.send_signal(signal.SIGCONT)
    end = time.monotonic() + 20
    counted, overruns = 0.0, 0.0
    while time.monotonic() < end:
        body = nic.scrape()
        counted = downs(body)["rail0"] - base
        overruns = next(
            v
            for n, ls, v in parse(body)
            if n.endswith("event_overruns_total") and ls["source"] == "rtnetlink"
        )
        if counted == flaps:
            break
    nic.stop()
    report(f"storm of {flaps} flaps", "flaps_counted", counted, "flaps", lambda v: v == flaps and overruns > 0,
           overruns=overruns)  # fmt: skip


def inner_latency(changes: int) -> None:
    """From the order to take the link down until the metric and the event log show it."""
    make_pairs(10)
    links = Links()
    log = Path(os.environ["FABRICPULSE_RUN_DIR"]) / "nic-events.jsonl"
    nic = Daemon(nic_command(Path("/sys")), NIC_PORT)
    rng = random.Random(3)
    in_metric, in_log = [], []
    for _ in range(changes):
        name = f"rail{rng.randrange(10)}"
        before = downs(nic.scrape())[name]
        size = log.stat().st_size if log.exists() else 0
        began = time.perf_counter()
        links.set(name.replace("rail", "vethpeer"), False)
        logged = metric = 0.0
        while not (logged and metric):
            if not logged and log.exists() and log.stat().st_size > size:
                logged = time.perf_counter() - began
            if not metric and downs(nic.scrape())[name] > before:
                metric = time.perf_counter() - began
            if time.perf_counter() - began > 5:
                raise RuntimeError("the exporter does not show that the link is down")
        in_metric.append(metric * 1e3)
        in_log.append(logged * 1e3)
        links.set(name.replace("rail", "vethpeer"), True)
        time.sleep(0.02)
    nic.stop()
    for values in (in_metric, in_log):
        values.sort()
    p99 = max(in_metric[int(changes * 0.99)], in_log[int(changes * 0.99)])
    report(
        f"{changes} downs",
        "event_latency_ms_p99",
        p99,
        "ms",
        lambda v: v <= 20,
        metric_p50=round(statistics.median(in_metric), 3),
        log_p50=round(statistics.median(in_log), 3),
        metric_p99=round(in_metric[int(changes * 0.99)], 3),
        log_p99=round(in_log[int(changes * 0.99)], 3),
    )


OVERRUNS = "fabricpulse_nic_event_overruns_total"
INNER: dict[str, Callable[[int], None]] = {
    "flaps": inner_flaps,
    "storm": inner_storm,
    "latency": inner_latency,
}


def in_namespace(what: str, count: int, folder: Path) -> None:
    """Runs a part of this program in a network namespace of its own; its lines and its verdict are ours."""
    global missed  # noqa: PLW0603 - the exit code of the program
    name = f"nicbench{os.getpid()}"
    run = folder / f"run-{what}"
    run.mkdir()
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        command = [
            "ip",
            "netns",
            "exec",
            name,
            sys.executable,
            "-m",
            "tests.bench.bench_nic",
            "--inner",
            what,
            str(count),
        ]
        done = subprocess.run(command, env=os.environ | {"FABRICPULSE_RUN_DIR": str(run)}, check=False)
        missed |= done.returncode != 0
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="comma separated: parity, broken, cost, soak, flaps, storm, latency"
    )
    parser.add_argument("--flaps", type=int, default=1000)
    parser.add_argument("--scrapes", type=int, default=300)
    parser.add_argument("--soak-scrapes", type=int, default=10_000)
    parser.add_argument("--inner", nargs=2, metavar=("PART", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure_logging("error")
    if options.inner:
        INNER[options.inner[0]](int(options.inner[1]))
        sys.exit(int(missed))
    wanted = set(filter(None, options.only.split(",")))
    binary = node_exporter()
    if binary is None:
        print(
            "bench nic: prometheus-node-exporter is not installed and cannot be fetched; no comparison",
            file=sys.stderr,
        )

    def asked(part: str) -> bool:
        return not wanted or part in wanted

    with tempfile.TemporaryDirectory(prefix="bench-nic-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        if asked("parity") and binary is not None:
            bench_parity(folder / "parity", binary)
        if asked("broken"):
            bench_broken(folder / "broken", binary)
        if asked("cost"):
            bench_cost(folder / "cost", binary, options.scrapes)
        if asked("soak"):
            bench_soak(folder / "soak", options.soak_scrapes)
        if os.geteuid() != 0:
            print("bench nic: flaps need root for network namespaces", file=sys.stderr)
            sys.exit(1)
        for part, count in (("flaps", options.flaps), ("storm", 20_000), ("latency", 200)):
            if asked(part):
                in_namespace(part, count, folder)
    if binary is None:
        sys.exit(1)
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
