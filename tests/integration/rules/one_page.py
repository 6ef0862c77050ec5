"""Fleets with a fault each under one real Prometheus with our rules and one real Alertmanager with our route.

The faults are in fleets of their own, under one Prometheus and one Alertmanager: a page of one fleet must not mute, or
be grouped with, that of another.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.fixtures.web.loopback_http import LoopbackServer, Reply
from tests.integration.rules.fleets import MONITOR, Fleet, fleet_server

from fabricpulse.core.alerting.pusher import AlertContent, PushedAlert
from fabricpulse.diagnosis.daemon.alerts import FaultAlerting, fault_alert
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.lab.tools import command_line, find_tool
from fabricpulse.mesh.alerts import nic_alert
from fabricpulse.mesh.config import NicAlerting
from fabricpulse.rules.files import rendered_files, write
from fabricpulse.rules.mixin import compile_mixin

ROOT = Path(__file__).parents[3]
HOSTS = tuple(f"h{number}" for number in range(4))
# The rules' own times would take minutes; the relations between them stay.
SETTINGS = {
    "lastValueWindow": "20s",
    "exporterDownFor": "6s",
    "clockUnsynchronizedFor": "2s",
    "clockBoundWideFor": "2s",
    "clockCoordinatorDownFor": "2s",
    "clockSuspectFor": "4s",
    "laneDownFor": "5s",
    "slowInterval": "2s",
    "seldomInterval": "2s",
    "rareInterval": "2s",
    "flowInterval": "2s",
    "agentLostFor": "5s",
    "remediationDownFor": "10s",
    "retriesExceededFor": "6s",
}
# By fleet: alert, host and NIC.
PAGES: dict[str, set[tuple[str, str | None, str | None]]] = {
    "host": {("FabricHostDown", "h1", None)},
    # It ran the coordinator and the receiver.
    "monitor": {("FabricHostDown", "monitor", None)},
    "coordinator": {("FabricClockCoordinatorLost", None, None)},
    "leaf": {("FabricNetworkDown", None, None)},
    "known-leaf": {("FabricFaultLocated", None, None)},
    # Its NICs are up, and one of them drops large packets.
    "gray-leaf": {("FabricFaultLocated", None, None)},
    "rail": {("FabricNetworkDown", None, None)},
    "nic": {("FabricNicDisconnected", "h2", "rail1")},
    # Two faults at once: neither hides the other.
    "host-and-nic": {("FabricHostDown", "h1", None), ("FabricNicDisconnected", "h2", "rail1")},
}
# Tickets instead of pages: one alert each, too.
TICKETS: dict[str, set[tuple[str, str | None, str | None]]] = {
    "clock": {("FabricClockSuspect", "h1", None)},
    "exporter": {("FabricExporterDown", "h3", None)},
    "mtu": {("FabricMtuBlackHole", "h2", "rail1")},
}


def find(name: str) -> list[str]:
    """How a program of .tools/ (Debian's releases) or PATH is started; skips without one."""
    place = find_tool(name)
    if place is None:
        pytest.skip(f"{name} is not installed; scripts/fetch_tools.sh gets it")
    return [str(part) for part in command_line(place)]


class OnCall(LoopbackServer):
    """What on-call gets: a webhook that keeps all notifications."""

    def __init__(self) -> None:
        super().__init__(lambda _: Reply())

    @property
    def notifications(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in list(self.requests)]

    def pages(self, cluster: str | None) -> list[dict[str, str]]:
        """Labels of the critical alerts of a fleet that were notified as firing, one entry a notification."""
        return [
            alert["labels"]
            for notification in self.notifications
            for alert in notification["alerts"]
            if alert["status"] == "firing"
            and alert["labels"]["severity"] == "critical"
            and alert["labels"].get("cluster") == cluster
        ]


@contextmanager
def running(folder: Path, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server, until the end of the block."""
    argv = [*find(name), *options]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def alertmanager_config(on_call: str) -> str:
    """deploy/alertmanager.yml as shipped, with somebody on call."""
    config = yaml.safe_load((ROOT / "deploy" / "alertmanager.yml").read_text())
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": on_call}] if receiver["name"] == "on-call" else []
    return yaml.safe_dump(config)


def prometheus_config(fleets: list[Fleet], server: str, alertmanager: str, rules: Path) -> str:
    """Everything each two seconds."""
    jobs: dict[str, list[dict[str, object]]] = {}
    for fleet in fleets:
        for job, target in fleet.jobs(server):
            jobs.setdefault(job, []).append(target)
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(rules / "alerts" / "*.yaml"), str(rules / "recording" / "*.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [{"job_name": job, "static_configs": targets} for job, targets in jobs.items()],
        }
    )


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 - http of ours
        return json.load(response)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=60).close()  # noqa: S310 - http of ours
    except OSError:
        return False
    return True


def push(alertmanager: str, fleet: Fleet, host: str, device: str, now: float) -> None:
    """What the mesh exporter posts in the second in which it loses a NIC."""
    config = NicAlerting(labels={"cluster": fleet.name})
    post(alertmanager, nic_alert(config, host, device, device, fleet.leaves.get((host, device), "")), now)


def push_fault(alertmanager: str, fleet: Fleet, now: float) -> None:
    """What the coordinator posts some seconds after a leaf has died."""
    leaf = Suspect(
        "loss", "switch", fleet.dead_leaf, "", 1.0, 1.0, 9, 0.0, (), "", leaf=fleet.dead_leaf, network="rail0"
    )
    post(alertmanager, fault_alert(FaultAlerting(labels={"cluster": fleet.name}), leaf), now)


def post(alertmanager: str, content: AlertContent, now: float) -> None:
    """To Alertmanager, as firing for two minutes."""
    body = PushedAlert(content, now).body(30.0, now, now, now)
    request = urllib.request.Request(  # noqa: S310 - http of ours
        f"{alertmanager}/api/v2/alerts",
        json.dumps([body]).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - http of ours


def break_things(fleets: dict[str, Fleet]) -> None:
    """The faults. A leaf has the NICs of three hosts on a rail; of one leaf the coordinator knows the name."""
    fleets["host"].dead_hosts.add("h1")
    fleets["monitor"].dead_hosts.add(MONITOR)
    fleets["coordinator"].dead_coordinator = True
    fleets["leaf"].dead_nics |= {(host, "rail0") for host in HOSTS[:3]}
    known = fleets["known-leaf"]
    known.dead_nics |= {(host, "rail0") for host in HOSTS[:3]}
    known.dead_leaf = "leaf7"
    fleets["rail"].dead_nics |= {(host, "rail1") for host in HOSTS}
    fleets["nic"].dead_nics.add(("h2", "rail1"))
    fleets["host-and-nic"].dead_hosts.add("h1")
    fleets["host-and-nic"].dead_nics.add(("h2", "rail1"))
    fleets["clock"].suspects.add("h1")
    fleets["exporter"].dead_daemons.add(("h3", "mesh"))
    gray = fleets["gray-leaf"]
    gray.small_mtus.add(("h2", "rail1"))
    gray.dead_leaf = "leaf7"
    fleets["mtu"].small_mtus.add(("h2", "rail1"))


@dataclass(frozen=True)
class Outcome:
    """What became of the faults.

    pages : labels of the critical alerts that on-call was notified of, by fleet (None: of no fleet). early : fleets
    with a page before the faults. ended : labels of what on-call was notified of as over. tickets : labels
    of other alerts that Alertmanager does not mute. alerts : all that it has. dead_nics : how many NICs have died.
    """

    pages: dict[str | None, list[dict[str, str]]]
    early: list[str]
    ended: list[dict[str, str]]
    tickets: list[dict[str, str]]
    alerts: list[dict[str, Any]]
    dead_nics: int


def outcome(folder: Path) -> Outcome:
    """Breaks the fleets, starts Prometheus anew amid the faults, and waits until all has been notified that comes of
    them. folder : for files.
    """
    write(folder / "rules", rendered_files(compile_mixin(settings=SETTINGS)))
    fleets = {name: Fleet(name, HOSTS) for name in (*PAGES, *TICKETS, "well")}
    fleets["gray-leaf"].leaves |= {(host, "rail1"): "leaf7" for host in HOSTS[:3]}
    fleets["known-leaf"].leaves |= {(host, "rail0"): "leaf7" for host in HOSTS[:3]}
    ports = [reserved_port() for _ in range(2)]
    prometheus, alertmanager = (f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        on_call = stack.enter_context(OnCall())
        server = stack.enter_context(fleet_server(list(fleets.values())))
        (folder / "alertmanager.yml").write_text(alertmanager_config(on_call.url))
        (folder / "prometheus.yml").write_text(
            prometheus_config(
                list(fleets.values()), server.address, f"127.0.0.1:{ports[1]}", folder / "rules"
            )
        )
        start_prometheus = (
            folder,
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{ports[0]}",
        )
        servers = [
            stack.enter_context(
                running(
                    folder,
                    "alertmanager",
                    f"--config.file={folder}/alertmanager.yml",
                    f"--storage.path={folder}/alertmanager",
                    f"--web.listen-address=127.0.0.1:{ports[1]}",
                    "--cluster.listen-address=",
                )
            ),
            stack.enter_context(running(*start_prometheus)),
        ]

        def ready() -> bool:
            assert [server.poll() for server in servers] == [None, None], "a server ended: see its log"
            return answers(f"{prometheus}/-/ready") and answers(f"{alertmanager}/-/ready")

        wait_for(ready, 60, "servers")

        def query(expression: str) -> list[Any]:
            found: list[Any] = get(f"{prometheus}/api/v1/query?query={expression}")["data"]["result"]
            return found

        targets = sum(1 for fleet in fleets.values() for _ in fleet.jobs(""))
        wait_for(lambda: [r["value"][1] for r in query("sum(up)")] == [str(targets)], 60, "scrapes")
        early = [name for name in fleets if on_call.pages(name)]

        now = time.time()
        break_things(fleets)
        for fleet in fleets.values():
            for host, device in sorted(fleet.dead_nics):
                push(alertmanager, fleet, host, device, now)
            if fleet.dead_leaf:
                push_fault(alertmanager, fleet, now)
        wait_for(
            lambda: all(len(on_call.pages(n)) >= len(PAGES[n]) for n in PAGES), 90, "a page of each fault"
        )
        servers[1].terminate()
        servers[1].wait(60)
        servers[1] = stack.enter_context(running(*start_prometheus))
        wait_for(ready, 60, "Prometheus again")
        # As long again as the group's interval: whatever else becomes of the fault has been notified by then.
        done = time.time()
        wait_for(lambda: time.time() > done + 40, 400, "the next notification of each group")
        shown = get(f"{alertmanager}/api/v2/alerts?active=true&inhibited=false&silenced=false")
        return Outcome(
            {name: on_call.pages(name) for name in (*fleets, None)},
            early,
            [
                alert["labels"]
                for notification in on_call.notifications
                for alert in notification["alerts"]
                if alert["status"] == "resolved"
            ],
            [alert["labels"] for alert in shown if alert["labels"]["severity"] in {"warning", "info"}],
            get(f"{alertmanager}/api/v2/alerts"),
            sum(len(fleet.dead_nics) for fleet in fleets.values()),
        )
