"""A real Prometheus finds the fleet at the coordinator, scrapes it, and raises the alerts on its clocks."""

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.ports import reserved_port
from tests.fixtures.waiting import wait_for
from tests.integration.clocksync.daemons import HOSTS, Daemons, Watch, all_have, disagreement
from tests.integration.clocksync.synthetic_fleet import SyntheticFleet

from fabricpulse.core.shm.clock_page import ClockStatus
from fabricpulse.lab.tools import find_tool
from fabricpulse.rules.command import command as rules_command

pytestmark = pytest.mark.prometheus

# Alerts wait for minutes, so that nobody is called for what mends itself; here for a second.
_KNOBS = [
    "clockUnsynchronizedFor=1s",
    "clockSuspectFor=1s",
    "clockBoundWideFor=1s",
    "clockBoundSeconds=0.00005",
    "slowInterval=1s",
]


class Prometheus:
    """A server that discovers its targets at `sd_url`, with our rules."""

    def __init__(self, directory: Path, sd_url: str) -> None:
        program = find_tool("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed")
        place = directory / "prometheus"
        arguments = [word for knob in _KNOBS for word in ("--set", knob)]
        rules_command.main(["render", "--output-dir", str(place), *arguments], standalone_mode=False)
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(place / "alerts" / "clock.yaml")],
            "scrape_configs": [
                {
                    "job_name": "fabricpulse-clocksync",
                    "http_sd_configs": [{"url": sd_url, "refresh_interval": "500ms"}],
                    "relabel_configs": [{"source_labels": ["fabricpulse_host"], "target_label": "instance"}],
                }
            ],
        }
        (place / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._url = f"http://127.0.0.1:{reserved_port()}"
        with (place / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={place}/prometheus.yml",
                    f"--storage.tsdb.path={place}/data",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=60) as response:  # noqa: S310 - our own
            return json.loads(response.read())["data"]

    def up(self) -> set[str]:
        """Hosts that are scraped with success."""
        try:
            targets = self.get("targets?state=active")["activeTargets"]
        except OSError:
            return set()  # it has not started yet
        return {target["labels"]["instance"] for target in targets if target["health"] == "up"}

    def listed(self) -> set[str]:
        """Hosts that are targets."""
        return {target["labels"]["instance"] for target in self.get("targets?state=active")["activeTargets"]}

    def firing(self) -> set[tuple[str, str]]:
        """(alert, host)."""
        alerts = self.get("alerts")["alerts"]
        return {(a["labels"]["alertname"], a["labels"]["instance"]) for a in alerts if a["state"] == "firing"}


@pytest.fixture
def prometheus(daemons: Daemons, fleet: SyntheticFleet, tmp_path: Path) -> Iterator[Prometheus]:
    """With a coordinator and four sidecars that are synchronized and scraped."""
    (tmp_path / "coordinator.yaml").write_text("lease_s: 2\n")
    daemons.coordinator_arguments = ["--config", str(tmp_path / "coordinator.yaml")]
    server = Prometheus(tmp_path, f"{daemons.url()}/api/v1/http_sd")
    try:
        daemons.coordinator()
        for host in HOSTS:
            daemons.sidecar(host)
        wait_for(lambda: all_have(fleet, HOSTS, ClockStatus.SYNCHRONIZED), 20, "all synchronized")
        wait_for(lambda: disagreement(fleet, HOSTS)[0] < 1_000, 10, "agreement within 1 us")
        wait_for(lambda: server.up() == set(HOSTS), 30, "all are targets and up")
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)


def test_targets_come_and_go_with_membership(prometheus: Prometheus, daemons: Daemons) -> None:
    """A host that has died leaves with its lease and is back when it reports; a new coordinator loses nobody."""
    daemons.kill("h3")
    wait_for(lambda: prometheus.listed() == set(HOSTS[:3]), 15, "h3 has left")
    daemons.sidecar("h3")
    wait_for(lambda: prometheus.up() == set(HOSTS), 15, "h3 is back")

    daemons.kill("coordinator")
    daemons.coordinator()
    seen = []

    def answers() -> bool:
        seen.append(prometheus.listed())
        try:
            return len(json.loads(daemons.get(f"{daemons.url()}/api/v1/http_sd"))) == len(HOSTS)
        except urllib.error.HTTPError as error:
            assert error.code == 503
            return False
        except OSError:
            return False

    wait_for(answers, 15, "the new coordinator lists all")
    assert all(hosts == set(HOSTS) for hosts in seen), seen


def test_a_faulty_host_and_a_host_without_edges_are_alerts_by_name(
    prometheus: Prometheus, daemons: Daemons, fleet: SyntheticFleet
) -> None:
    """h2 stamps what it receives too late, on each edge by another amount: it is named, and nobody else.

    Then h1 loses all of its paths. (Stamps that are all off by the same amount are no lasting fault: to its peers such
    a host is one that was paused, and it sets its clock anew.)
    """
    assert prometheus.firing() == set()
    watch = Watch(fleet, ["h0", "h1", "h3"])
    fleet.late_ns |= {("h2", "h0"): 20_000, ("h2", "h3"): 40_000}

    def others_agree_and(condition: Callable[[], bool]) -> Callable[[], bool]:
        def check() -> bool:
            # Half of the fleet's edges end at h2: while their fits move, the others are pulled by a part of it.
            assert watch.once() < 10_000, "the others agree all the time"
            return condition()

        return check

    named = 'fabricpulse_clocksync_suspect{peer="h2"} 1'
    metrics = f"{daemons.url()}/metrics"
    wait_for(others_agree_and(lambda: named in daemons.get(metrics)), 60, "h2 is named")
    alert = ("FabricClockSuspect", "h2")
    wait_for(others_agree_and(lambda: alert in prometheus.firing()), 60, "the alert names h2")
    assert {host for name, host in prometheus.firing() if name == "FabricClockSuspect"} == {"h2"}

    for link in fleet.links:
        link.up = link.up and "h1" not in (link.a, link.b)
    lost = {("FabricClockUnsynchronized", "h1"), ("FabricClockBoundWide", "h1")}
    wait_for(
        others_agree_and(lambda: lost <= prometheus.firing()),
        60,
        "h1 has lost sync, and its bound grows too wide",
    )
    others = {host for name, host in prometheus.firing() if name != "FabricClockSuspect"}
    assert others <= {"h1", "h2"}, prometheus.firing()
