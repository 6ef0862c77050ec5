"""What the probe mesh costs beside the CPU of its engine (mesh_cpu): memory, a scrape and what it does to the engine.

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
from tests.bench.mesh.rows import report
from tests.bench.rows import quantile
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Host, Lab, LabProcess

ENGINES = (sys.executable, "-m", "tests.bench.mesh.engine")


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


def engine_file(
    lab: Lab, name: str, plans: list[dict[str, Any]], seconds: float | None, warmup: float
) -> Path:
    """Writes the plans of tests.bench.mesh.engine. seconds : None = as standard input says."""
    path = lab.directory / f"{name}.json"
    length = {} if seconds is None else {"seconds": seconds}
    path.write_text(json.dumps({"plans": plans, "warmup": warmup} | length))
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


@contextmanager
def exporter_under_test(rails: int, peers: int, rate: float) -> Iterator[tuple[MeshFleet, LabProcess]]:
    """`fabricpulse mesh` on h0 with `peers` peers on each rail, all answering, on fleet time."""
    with peer_lab(rails, peers) as (lab, addresses):
        fleet = MeshFleet(
            lab,
            {
                "trains_per_s": rate,
                "peers": min(peers, 64),
                "cross_peers": 0,
                "down_after_s": max(1.0, 6 / rate),
            },
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
            time.sleep(0.5)  # seldom: each look is a scrape of the exporter under test
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
        report("8 NICs x 10 peers", "rss_mb", rss / 1024, "MB", "<= 60")
        report("8 NICs x 10 peers", "series", series, "series", "<= 2000")
    with exporter_under_test(8, 64, 2) as (fleet, _):
        idle_start = lateness(fleet)
        time.sleep(10)  # the measurement without scrapes: 600 turns of the engine
        idle_end = lateness(fleet)
        connection = http.client.HTTPConnection("h0", 9610, timeout=10)
        connection.sock = fleet.lab.connect("h0", "127.0.0.1", 9610)
        times = []
        for _ in range(scrapes):
            start = time.perf_counter()
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            body = connection.getresponse().read()
            times.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.02)  # some 30 scrapes a second; back to back would measure a full core
        busy_end = lateness(fleet)
        connection.close()
        series = len(fleet.scrape("h0").samples)
        report(
            "8 NICs x 64 peers, gzip",
            "scrape_ms_p99",
            quantile(times, 0.99),
            "ms",
            "<= 15",
            series=series,
            p50=round(statistics.median(times), 2),
            compressed_bytes=len(body),
        )
        before, during = (
            late_quantile(a, b, 0.99) for a, b in ((idle_start, idle_end), (idle_end, busy_end))
        )
        report("without scrapes", "lateness_p99_s", before, "s (bucket)")
        report(
            "scraped 30 times a second",
            "lateness_p99_s",
            during,
            "s (bucket)",
            f"<= {max(2 * before, 1e-3):g}",
        )
