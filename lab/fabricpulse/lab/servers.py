"""Real Prometheus and Alertmanager servers in a node of the lab."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from fabricpulse.core.errors import UserError
from fabricpulse.core.files import atomic_write
from fabricpulse.lab.lab import Lab
from fabricpulse.lab.process import LabProcess
from fabricpulse.lab.tools import Tools, command_line, find_tools

START_TIMEOUT_S = 30.0


class Server:
    """A started server: `process`, `url` as seen inside the lab, `forward()` for the world outside."""

    ready_path = "/-/ready"

    def __init__(self, lab: Lab, node: str, port: int, process: LabProcess, config_file: Path) -> None:
        self.lab = lab
        self.node = node
        self.port = port
        self.process = process
        self.config_file = config_file

    @property
    def url(self) -> str:
        """For programs in the lab."""
        return f"http://{self.node}:{self.port}"

    def forward(self, outside_port: int = 0) -> str:
        """A URL for a browser outside the lab."""
        return f"http://127.0.0.1:{self.lab.forward(self.node, self.port, outside_port=outside_port)}"

    def get(self, path: str, **query: str) -> Any:
        """GET of its API, as parsed JSON."""
        return json.loads(self.lab.http_get(self.node, self._inside(path, query), timeout=10))

    def reload(self) -> None:
        """Reads its configuration again. Raises UserError if the server refuses it."""
        status, body = self.lab.http(self.node, self._inside("/-/reload"), method="POST", timeout=10)
        if status != 200:
            raise UserError(f"{self.process.describe()} refuses {self.config_file}: {body.strip()}")

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Returns once it serves. Raises UserError with the end of its log."""
        deadline = time.monotonic() + timeout
        while True:
            if self.process.poll() is not None:
                raise UserError(f"{self.process.describe()} ended while it started: {self.process.tail(600)}")
            try:
                if self.lab.http(self.node, self._inside(self.ready_path), timeout=1)[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise UserError(
                    f"{self.process.describe()} is not ready after {timeout:g} s: {self.process.tail(600)}"
                )
            time.sleep(0.02)

    def stop(self) -> int:
        """Ends it; returns its exit code."""
        return self.process.stop()

    def _inside(self, path: str, query: Mapping[str, str] | None = None) -> str:
        # By loopback: the server must answer its owner also while the front-end network is broken.
        return f"http://127.0.0.1:{self.port}{path}" + (f"?{urlencode(query)}" if query else "")


class Prometheus(Server):
    """A Prometheus."""

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Result of an instant query: [{"metric": {...}, "value": [time, "text"]}, …]."""
        return list(self.get("/api/v1/query", query=expression)["data"]["result"])

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing alerts."""
        return list(self.get("/api/v1/alerts")["data"]["alerts"])

    def targets(self) -> list[dict[str, Any]]:
        """Active scrape targets."""
        return list(self.get("/api/v1/targets")["data"]["activeTargets"])


class Alertmanager(Server):
    """An Alertmanager."""

    def alerts(self, *matchers: str) -> list[dict[str, Any]]:
        """Alerts, such as `alertname="FabricNicFlapping"`."""
        query = urlencode([("filter", matcher) for matcher in matchers])
        path = "/api/v2/alerts" + (f"?{query}" if query else "")
        return list(json.loads(self.lab.http_get(self.node, self._inside(path), timeout=10)))

    def post(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Posts alerts to API v2. Raises UserError if they are refused."""
        status, body = self.lab.http(
            self.node,
            self._inside("/api/v2/alerts"),
            method="POST",
            body=json.dumps(list(alerts)),
            headers={"Content-Type": "application/json"},
        )
        if status != 200:
            raise UserError(f"{self.process.describe()} refuses the alerts: {body.strip()}")


def start_prometheus(
    lab: Lab,
    config: Mapping[str, Any],
    *,
    node: str = "mgmt",
    port: int = 9090,
    tools: Tools | None = None,
    flags: Sequence[str] = (),
) -> Prometheus:
    """Starts a Prometheus with this configuration and returns it ready.

    rule_files must be absolute paths. Raises UserError when it is not found or refuses the configuration.
    """
    program = (tools or find_tools()).prometheus
    place = lab.node(node).directory / f"prometheus-{port}"
    place.mkdir(exist_ok=True)
    config_file = write_config(place / "prometheus.yml", config)
    process = lab.popen(
        node,
        [
            program,
            f"--config.file={config_file}",
            f"--storage.tsdb.path={place / 'data'}",
            f"--web.listen-address=0.0.0.0:{port}",
            "--web.enable-lifecycle",
            "--storage.tsdb.min-block-duration=2h",
            *flags,
        ],
        name=place.name,
        cwd=place,
    )
    server = Prometheus(lab, node, port, process, config_file)
    server.wait_ready()
    return server


def start_alertmanager(
    lab: Lab,
    config: Mapping[str, Any],
    *,
    node: str = "mgmt",
    port: int = 9093,
    tools: Tools | None = None,
    flags: Sequence[str] = (),
) -> Alertmanager:
    """Starts an Alertmanager with this configuration and returns it ready. Raises UserError as `start_prometheus`."""
    program = (tools or find_tools()).alertmanager
    place = lab.node(node).directory / f"alertmanager-{port}"
    place.mkdir(exist_ok=True)
    config_file = write_config(place / "alertmanager.yml", config)
    process = lab.popen(
        node,
        [
            *command_line(program),
            f"--config.file={config_file}",
            f"--storage.path={place / 'data'}",
            f"--web.listen-address=0.0.0.0:{port}",
            "--cluster.listen-address=",  # one of its own: no gossip
            *flags,
        ],
        name=place.name,
        cwd=place,
    )
    server = Alertmanager(lab, node, port, process, config_file)
    server.wait_ready()
    return server


def write_config(path: Path, config: Mapping[str, Any]) -> Path:
    """Writes a YAML configuration whole or not at all."""
    atomic_write(path, yaml.safe_dump(dict(config), sort_keys=False), durable=False)
    return path
