"""Flaps of veth pairs in a network namespace: are all counted, and how soon."""

import heapq
import http.client
import json
import math
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.nic.daemons import NIC_PORT, Daemon, nic_command, parse, rows
from tests.bench.rows import quantile


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
    return {labels["device"]: value for n, labels, value in parse(body) if n == name}


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

    def come_back() -> None:
        """Started again, after a second away, while the flaps go on."""
        nic.process.wait(10)
        nic.connection.close()
        nic.process = subprocess.Popen(
            nic.command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        nic.connection = http.client.HTTPConnection("127.0.0.1", NIC_PORT, timeout=20)

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
            absent = 0.0
            come_back()
    if absent:
        come_back()
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
    timed = sum(1 for event in log if event["event"] == "link_up" and "down_s" in event)
    rows.report(
        f"{begun} flaps, 2 restarts",
        "flaps_counted",
        counted,
        "flaps",
        f"== {begun}",
        flaps=begun,
        timed=timed,
    )
    wrong = sum(1 for name, count in truth.items() if after.get(name, -1) - base[name] != count)
    rows.report(f"{begun} flaps, 2 restarts", "links_miscounted", wrong, "links", "== 0")


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
    rows.report(
        f"storm of {flaps} flaps", "flaps_counted", counted, "flaps", f"== {flaps}", overruns=overruns
    )
    rows.report(f"storm of {flaps} flaps", "socket_overruns", overruns, "overruns", ">= 1")


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
        time.sleep(0.02)  # the link's return is reported too, and is not what is timed
    nic.stop()
    metric_p99, log_p99 = quantile(in_metric, 0.99), quantile(in_log, 0.99)
    rows.report(
        f"{changes} downs",
        "event_latency_ms_p99",
        max(metric_p99, log_p99),
        "ms",
        "<= 20",
        metric_p50=round(statistics.median(in_metric), 3),
        log_p50=round(statistics.median(in_log), 3),
        metric_p99=round(metric_p99, 3),
        log_p99=round(log_p99, 3),
    )


INNER: dict[str, Callable[[int], None]] = {
    "flaps": inner_flaps,
    "storm": inner_storm,
    "latency": inner_latency,
}
