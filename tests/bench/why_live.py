"""`fabricpulse why` about a job that really runs: faults on real links of the lab, real exporters, Prometheus.

One run: the ring runs undisturbed for as long as the baseline needs, a fault is played for a while, the command is
asked, the fault is undone. The job is a ring of the plugin over TCP lanes, a rank a host; the mesh and qp exporters
of four hosts are scraped each second. Without clocks in step: one-way delays are not known, causes that need them are
not played.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from tests.fixtures.waiting import wait_for
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault
from fabricpulse.lab.servers import Alertmanager, Prometheus, start_alertmanager, start_prometheus
from fabricpulse.lab.tools import find_tools
from fabricpulse.rules.files import rendered_files, write
from fabricpulse.rules.mixin import compile_mixin
from fabricpulse.why.command import command

WORKLOAD = "ring"
HOSTS = 4
WINDOW_S = 35
FAULT_S = 45
# The baseline ends where the window and a minute are over, and must lie before the fault.
QUIET_S = 2 * WINDOW_S + 60 - FAULT_S + 5
STARTED_S = 60.0


@dataclass
class Stand:
    """What a fault is played on."""

    lab: Lab
    ring: Ring
    prometheus: Prometheus
    alertmanager: Alertmanager
    rng: random.Random

    def nic(self) -> tuple[str, str]:
        return f"h{self.rng.randrange(HOSTS)}", self.rng.choice(("rail0", "rail1"))


# One of these is the right first answer; (None, "") is: nothing is wrong.
Truth = list[tuple[str | None, str]]
Play = Callable[[Stand, ExitStack], Truth]


def _until_end(stack: ExitStack, fault: Fault) -> None:
    stack.callback(fault.undo)


def healthy(_: Stand, __: ExitStack) -> Truth:
    return [(None, "")]


def dead_rail(stand: Stand, stack: ExitStack) -> Truth:
    host, device = stand.nic()
    _until_end(stack, stand.lab.host(host).nic(device).down())
    return [("nic_flap", f"{device} of {host}")]


def flapping_nic(stand: Stand, stack: ExitStack) -> Truth:
    host, device = stand.nic()
    _until_end(stack, stand.lab.host(host).nic(device).flap(0.1))
    return [("nic_flap", f"{device} of {host}")]


def silent_nic(stand: Stand, stack: ExitStack) -> Truth:
    """Carrier stays, packets do not."""
    host, device = stand.nic()
    _until_end(stack, stand.lab.host(host).nic(device).black_hole())
    return [("nic_flap", f"{device} of {host}")]


def lossy_nic(stand: Stand, stack: ExitStack) -> Truth:
    host, device = stand.nic()
    _until_end(stack, stand.lab.host(host).nic(device).loss(5))
    return [("nic_loss", f"{device} of {host}")]


def stopped_rank(stand: Stand, stack: ExitStack) -> Truth:
    number = stand.rng.randrange(HOSTS)
    rank = stand.ring.ranks[number]
    rank.process.suspend()
    stack.callback(rank.process.resume)
    return [("hang", f"rank {number} on {rank.host}")]


def dead_network(stand: Stand, stack: ExitStack) -> Truth:
    """Nothing gets through to or from one host, on any rail."""
    host = stand.nic()[0]
    for rail in ("rail0", "rail1"):
        _until_end(stack, stand.lab.host(host).nic(rail).black_hole())
    # Both are what a person must be told first: which NICs are cut off, or which link the job waits for.
    return [("hang", host), ("nic_flap", host)]


PLAYS: tuple[Play, ...] = (
    dead_rail,
    stopped_rank,
    healthy,
    flapping_nic,
    lossy_nic,
    dead_network,
    silent_nic,
)
STALLS = (stopped_rank, dead_network)


@dataclass(frozen=True)
class Live:
    """One run. alert_s : from the fault to FabricCollectiveStalled in Alertmanager, None where it never came."""

    play: str
    truth: Truth
    document: dict[str, Any]
    alert_s: float | None
    stalls: bool
    answer_s: float

    @property
    def right(self) -> bool:
        """Whether the first cause, or that there is none, is what was played."""
        first = self.document["causes"][0] if self.document["causes"] else None
        if first is None:
            return any(cause is None for cause, _ in self.truth)
        return any(cause == first["cause"] and place in first["where"] for cause, place in self.truth)

    def write(self, folder: Path, number: int) -> None:
        """The whole answer, for who wants to know why it is wrong."""
        (folder / f"{number}-{self.play}.json").write_text(json.dumps(self.document, indent=1))

    @property
    def said(self) -> str:
        """The answer in short."""
        causes = [f"{c['cause']} {c['where']} {c['confidence']:.2f}" for c in self.document["causes"][:3]]
        return f"{self.document['state']}: {causes}"


def live_runs(count: int, seed: int = 0, scrape_s: float = 1.0, only: tuple[str, ...] = ()) -> Iterator[Live]:
    """Plays faults in turn, with random places. scrape_s : of the qp exporter. only : names of faults; () for all."""
    plays = [play for play in PLAYS if not only or play.__name__ in only]
    with _stand(random.Random(seed), scrape_s) as stand:
        for number in range(count):
            yield _run(stand, plays[number % len(plays)])


@contextmanager
def _stand(rng: random.Random, scrape_s: float) -> Iterator[Stand]:
    tools = find_tools()
    with Lab(hosts=HOSTS).start() as lab:
        alertmanager = start_alertmanager(
            lab,
            {"route": {"receiver": "none", "group_wait": "0s"}, "receivers": [{"name": "none"}]},
            tools=tools,
        )
        mgmt = lab.fabric.front_end_addresses["mgmt"]
        members = lab.write_membership()
        jobs = []
        for host in lab.fabric.host_names:
            front = lab.host(host).front_end
            mesh = {
                "host": host,
                "membership": {"file": str(members)},
                "probe": {"down_after_s": 0.4, "trains_per_s": 20, "peers": 3, "cross_peers": 1, "paths": 2},
            }
            for name, port, config in (("mesh", 9610, mesh), ("qp", 9612, _qp(host, mgmt))):
                file = lab.host(host).directory / f"{name}.yaml"
                file.write_text(yaml.safe_dump(config))
                lab.popen(
                    host,
                    ["fabricpulse", name, "--config", str(file), "--web.listen-address", f":{port}"],
                    name=name,
                )
                jobs.append((name, host, f"{front}:{port}"))
        rules = lab.directory / "rules"
        write(rules, rendered_files(compile_mixin()))
        prometheus = start_prometheus(
            lab,
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(p) for p in sorted(rules.glob("*/*.yaml"))],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{mgmt}:9093"]}]}]},
                "scrape_configs": [
                    {
                        "job_name": f"fabricpulse-{job}",
                        "scrape_interval": f"{scrape_s if job == 'qp' else 1:g}s",
                        "static_configs": [
                            {"targets": [address], "labels": {"instance": host}}
                            for name, host, address in jobs
                            if name == job
                        ],
                    }
                    for job in ("mesh", "qp")
                ],
            },
            tools=tools,
        )
        ring = Ring(
            lab,
            HOSTS,
            ["--bytes", "1M", "--channels", "2", "--compute-ms", "20"],
            env={"FABRICPULSE_WORKLOAD": WORKLOAD},
        )
        ring.wait_running(STARTED_S)
        wait_for(
            lambda: len(prometheus.query("fabricpulse_qp_processes > 0")) == HOSTS,
            STARTED_S,
            "all processes to be scraped",
        )
        yield Stand(lab, ring, prometheus, alertmanager, rng)
        for rank in ring.ranks:
            rank.process.kill()


def _qp(host: str, mgmt: str) -> dict[str, Any]:
    """Of the qp exporter: it finds its peers by their names on the front-end network."""
    return {"host": host, "alerting": {"alertmanagers": [f"http://{mgmt}:9093"]}}


def _stalled(stand: Stand) -> bool:
    alerts = stand.alertmanager.alerts('alertname="FabricCollectiveStalled"')
    return any(alert["status"]["state"] == "active" for alert in alerts)


def _run(stand: Stand, play: Play) -> Live:
    wait_for(lambda: not _stalled(stand), 120, "the last stall to be over")
    time.sleep(QUIET_S)  # what is measured is time: of rates before the fault, and with it
    with ExitStack() as stack:
        truth = play(stand, stack)
        begun, alert_s = time.monotonic(), None
        while time.monotonic() - begun < FAULT_S:
            if alert_s is None and _stalled(stand):
                alert_s = time.monotonic() - begun
            time.sleep(0.1)
        now_s = time.time()
        asked = time.monotonic()
        result = CliRunner().invoke(
            command,
            [
                *(WORKLOAD, "--prometheus", stand.prometheus.forward(), "--output", "json"),
                *("--between", f"{now_s - WINDOW_S:.3f}", f"{now_s:.3f}", "--baseline", "60"),
            ],
            catch_exceptions=False,
        )
        took = time.monotonic() - asked
    return Live(play.__name__, truth, json.loads(result.stdout), alert_s, play in STALLS, took)
