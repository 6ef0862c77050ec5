"""What the probe mesh costs: CPU of the engine, memory, a scrape and what it does to the engine.

One host under test, its peers played by engines in another.
"""

import http.client
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.bench.mesh_report import quantile, report
from tests.integration.mesh.mesh_fleet import MeshFleet, wait_for

from fabricpulse.lab import Host, Lab, LabProcess

ENGINES = (sys.executable, "-m", "tests.bench.mesh_engine")


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
            # In memory, as in production: pages of a disk's file system fault anew after each write-back.
            "settings": {"ring_path": "/dev/shm/ring"},  # noqa: S108 - the node's own
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
