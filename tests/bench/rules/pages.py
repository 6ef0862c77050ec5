"""From a fault of a NIC to the alert, and to the page: mesh exporters on real links, Prometheus and Alertmanager with
the rules and routes as shipped.

Three NICs of four hosts lose their cable, one after another at random moments, so that the phases of scrapes and of
evaluations differ. The time of the fault is taken before the link goes down, that of the alert when Alertmanager
answers with it (it is asked 20 times a second), that of the page when the receiver `on-call` has it. Only the first
alert of a group is notified after `group_wait`; the others wait for `group_interval`: each round gives one page.
"""

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml

from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.lab import Lab
from fabricpulse.lab.demo.servers import Target, alertmanager_config, prometheus_config, write_rules
from fabricpulse.lab.servers import Alertmanager, Prometheus, start_alertmanager, start_prometheus

HOSTS, RAILS = 4, 2
DISCONNECTED, FLAPPING = "FabricNicDisconnected", "FabricNicFlapping"
# Of each round. Two in one network and one in another: each has a peer left, and no network is down. None so often that
# it flaps.
VICTIMS = (
    (("h0", "rail0"), ("h1", "rail1"), ("h2", "rail0")),
    (("h1", "rail0"), ("h2", "rail1"), ("h3", "rail0")),
    (("h0", "rail1"), ("h3", "rail1"), ("h2", "rail0")),
)
# Of which three within flapWindow make a flapper: how long the link is down and up.
FLAP_S, FLAPS = 2.5, 3
_POLL_S = 0.05
_PAGER_PORT = 9800
_PATIENCE_S = 180.0
# Alertmanager looks for empty groups each half a minute. One that it has not dropped notifies a new alert only after
# `group_interval`, as a second fault, and nothing shows that it is still there.
_GROUP_DROPPED_S = 35.0

Nic = tuple[str, str]


class _Pager(HTTPServer):
    """The receiver `on-call`: when each alert was notified as firing, and which are over."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(("127.0.0.1", _PAGER_PORT), _Page, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.firing: dict[tuple[str, str, str], float] = {}
        self.over: set[tuple[str, str, str]] = set()


class _Page(BaseHTTPRequestHandler):
    server: _Pager

    def do_POST(self) -> None:
        now = time.monotonic()
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for alert in message["alerts"]:
            labels = alert["labels"]
            key = (labels["alertname"], labels.get("instance", ""), labels.get("device", ""))
            if alert["status"] == "firing":
                self.server.firing.setdefault(key, now)
                self.server.over.discard(key)
            else:
                self.server.over.add(key)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Times:
    """Seconds since the faults: until Alertmanager had each alert, and until the first page of each round."""

    notified: list[float] = field(default_factory=list)
    paged: list[float] = field(default_factory=list)


class Stand:
    """A fleet that is well."""

    def __init__(self, lab: Lab, prometheus: Prometheus, alertmanager: Alertmanager, pager: _Pager) -> None:
        self.lab, self.prometheus, self.alertmanager, self.pager = lab, prometheus, alertmanager, pager

    def link(self, nic: Nic, *, up: bool) -> None:
        """The cable of a NIC."""
        host, device = nic
        self.lab.host(host).nic(device).switch_port.set_up(up)

    def active(self, name: str) -> set[Nic]:
        """NICs of which Alertmanager has this alert."""
        return {
            (alert["labels"].get("instance", ""), alert["labels"].get("device", ""))
            for alert in self.alertmanager.alerts(f'alertname="{name}"')
        }

    def wait(self, condition: Any, what: str) -> None:
        """Until it holds. Ends the program with what did not come."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                sys.exit(f"bench rules: waited {_PATIENCE_S:.0f} s in vain for {what}")
            time.sleep(_POLL_S)

    def connected(self) -> bool:
        """Whether Prometheus has all NICs, and all are connected."""
        return len(self.prometheus.query("fabricpulse_nic_connected == 1")) == HOSTS * RAILS

    def well(self) -> bool:
        """Whether moreover Alertmanager has no lost NIC."""
        return not self.active(DISCONNECTED) and self.connected()

    def disconnect(
        self, victims: Sequence[Nic], rng: random.Random, spread_s: float, times: Times, *, pages: bool
    ) -> None:
        """One round: NICs are lost at random moments within `spread_s`; well again when it returns.

        pages : wait for the page of the first one, and until its group is gone from Alertmanager.
        """
        self.wait(self.well, "a fleet that is well")
        faults = {nic: time.monotonic() + rng.uniform(0, spread_s) for nic in victims}
        broken: dict[Nic, float] = {}
        seen: dict[Nic, float] = {}

        def all_seen() -> bool:
            now = time.monotonic()
            for nic, at in faults.items():
                if nic not in broken and now >= at:
                    broken[nic] = time.monotonic()
                    self.link(nic, up=False)
            for nic in self.active(DISCONNECTED) & broken.keys():
                seen.setdefault(nic, time.monotonic())
            return len(seen) == len(victims)

        self.wait(all_seen, DISCONNECTED)
        times.notified += [seen[nic] - broken[nic] for nic in victims]
        first = min(victims, key=lambda nic: seen[nic])
        if pages:
            key = (DISCONNECTED, *first)
            self.wait(lambda: key in self.pager.firing, "the page")
            times.paged.append(self.pager.firing[key] - broken[first])
        for nic in victims:
            self.link(nic, up=True)
        self.wait(self.well, "the end of the alerts")
        if pages:
            keys = {(DISCONNECTED, *nic) for nic in victims}
            self.wait(lambda: self.pager.firing.keys() & keys <= self.pager.over, "the end of the pages")
            time.sleep(_GROUP_DROPPED_S)
            self.pager.firing.clear()

    def flap(self, nic: Nic, times: Times, *, pages: bool) -> None:
        """From the loss that makes a NIC a flapper. pages : wait for the page."""
        for number in range(FLAPS):
            lost = time.monotonic()
            self.link(nic, up=False)
            if number < FLAPS - 1:
                time.sleep(FLAP_S)  # a flap is a time without link, and one with
                self.link(nic, up=True)
                time.sleep(FLAP_S)
        self.wait(lambda: nic in self.active(FLAPPING), FLAPPING)
        times.notified.append(time.monotonic() - lost)
        if pages:
            key = (FLAPPING, *nic)
            self.wait(lambda: key in self.pager.firing, "the page")
            times.paged.append(self.pager.firing[key] - lost)
        self.link(nic, up=True)


@contextmanager
def stand(
    scrape_s: float,
    *,
    push: bool,
    rules: Mapping[str, Any] | None = None,
    nics: Callable[[str], tuple[Path, Mapping[str, Any]]] | None = None,
) -> Iterator[Stand]:
    """scrape_s : of scrapes and evaluations. push : whether mesh exporters know the Alertmanager. rules : knobs of the
    mixin. nics : of each host the `/sys` and the configuration of its NIC exporter, None for no such exporter.
    """
    with Lab(hosts=HOSTS, rails=RAILS) as lab:
        listening = lab.socket(lab.mgmt.name)
        listening.bind(("127.0.0.1", _PAGER_PORT))
        listening.listen(16)
        pager = _Pager(listening)
        threading.Thread(target=pager.serve_forever, daemon=True).start()
        config = yaml.safe_load(
            alertmanager_config("http://127.0.0.1:9/", f"http://127.0.0.1:{_PAGER_PORT}/")
        )
        alertmanager = start_alertmanager(lab, config)
        address = f"{lab.fabric.front_end_addresses[lab.mgmt.name]}:{alertmanager.port}"
        membership, port = lab.write_membership(), DAEMONS["mesh"].port
        targets = []
        for host in lab.fabric.host_names:
            settings: Mapping[str, Any] = {"host": host, "membership": {"file": str(membership)}}
            if push:
                settings = {**settings, "alerting": {"alertmanagers": [f"http://{address}"]}}
            file = lab.host(host).directory / "mesh.yaml"
            file.write_text(yaml.safe_dump(settings))
            argv: list[str | Path] = [
                "fabricpulse",
                "mesh",
                "--config",
                file,
                "--web.listen-address",
                f":{port}",
            ]
            lab.popen(host, argv, name="mesh")
            targets.append(Target("fabricpulse-mesh", host, f"{lab.resolve(host)}:{port}"))
            if nics is not None:
                sysfs, config = nics(host)
                targets.append(_nic_exporter(lab, host, sysfs, config))
        rule_files = write_rules(lab.directory / "rules", rules or {})
        read = yaml.safe_load(prometheus_config(targets, rule_files, address))
        every = f"{scrape_s:g}s"
        read["global"] = {
            "scrape_interval": every,
            "scrape_timeout": f"{min(scrape_s, 10):g}s",
            "evaluation_interval": every,
        }
        built = Stand(lab, start_prometheus(lab, read), alertmanager, pager)
        built.wait(built.connected, "a fleet that is well")
        try:
            yield built
        finally:
            pager.shutdown()


def _nic_exporter(lab: Lab, host: str, sysfs: Path, config: Mapping[str, Any]) -> Target:
    port = DAEMONS["nic"].port
    file = lab.host(host).directory / "nic.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    argv: list[str | Path] = ["fabricpulse", "nic", "--config", file, "--path.sysfs", sysfs]
    lab.popen(host, [*argv, "--web.listen-address", f":{port}"], name="nic")
    return Target("fabricpulse-nic", host, f"{lab.resolve(host)}:{port}")
