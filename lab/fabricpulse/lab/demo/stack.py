"""The whole stack of the demo in a lab: on every host mesh, NIC and qp exporter, clock sidecar and node agent; in the
management node coordinator, Prometheus, Alertmanager and remediation receiver."""

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from fabricpulse.core.errors import UserError
from fabricpulse.core.fleet.daemons import DAEMONS
from fabricpulse.lab import Lab
from fabricpulse.lab.demo.daemon import Daemon, start_all
from fabricpulse.lab.demo.names import (
    AGENT,
    ALERTMANAGER,
    COORDINATOR,
    MESH,
    NIC,
    ON_CALL_PORT,
    PROMETHEUS,
    QP,
    RECEIVER,
    SIDECAR,
)
from fabricpulse.lab.demo.servers import Target, alertmanager_config, prometheus_config, write_rules
from fabricpulse.lab.tools import Tools, command_line

_PORTS = {name: daemon.port for name, daemon in DAEMONS.items()} | {PROMETHEUS: 9090, ALERTMANAGER: 9093}
_COMMANDS = {
    MESH: ("mesh",),
    NIC: ("nic",),
    QP: ("qp",),
    SIDECAR: ("clocksync", "sidecar"),
    COORDINATOR: ("clocksync", "coordinator"),
    RECEIVER: ("remediation", "receiver"),
    AGENT: ("remediation", "node"),
}

# Knobs of the mixin for a scenario of a minute: three losses within 15 s flap, and the alert ends as fast as they age.
# What a fleet evaluates seldom is shown at once.
RULE_SETTINGS = {
    "flapWindow": "15s",
    "flapKeepFiringFor": "1s",
    "lastValueWindow": "10s",
    "pathLossWindow": "15s",
    "stragglerWindow": "30s",
    "faultKeepFiring": "15s",
    "slowInterval": "1s",
    "seldomInterval": "1s",
    "rareInterval": "1s",
    "flowInterval": "1s",
}


# Half of all ports lead over the wrong one of two spines: a plan must be able to draw several times within the minute
# of a scenario. A window needs reports in its first and in its last third. By itself, without an alert, remediation
# moves nothing here.
REBALANCE = {"mode": "observe", "window_s": 8, "settle_s": 1, "max_tries": 12}
REPORT_S = 1


@dataclass(frozen=True)
class StackOptions:
    """tools : Prometheus and Alertmanager. port : the first of the ports outside for what people open, 0 = any.

    hold_s : how long a NIC must be quiet before it goes back in service. diagnosis : whether the coordinator knows the
    topology and gets the evidence of flows; that costs CPU. leaves : whether the membership names the leaf of each NIC.
    rules : knobs of the mixin, beside those of every demo. repaths : whether remediation gives contended flows other
    paths.
    """

    tools: Tools
    port: int = 0
    hold_s: float = 5.0
    diagnosis: bool = False
    leaves: bool = False
    rules: Mapping[str, Any] = field(default_factory=dict)
    repaths: bool = False


# As many as Stack._shown has, each on a port outside.
SHOWN = 4


def require_free_ports(first: int) -> None:
    """Raises UserError where a port is taken that daemons are to be shown on, before a fleet is built for nothing."""
    for port in range(first, first + SHOWN) if first else ():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            raise UserError(
                f"cannot show the demo on 127.0.0.1:{port}: {error.strerror}; choose another port"
            ) from error


class Stack:
    """All daemons of a lab, by name and node."""

    def __init__(self, lab: Lab, options: StackOptions) -> None:
        self._lab = lab
        self._options = options
        self._folder = lab.directory / "demo"
        self._folder.mkdir(exist_ok=True)
        self._membership = lab.write_membership(leaves=options.diagnosis or options.leaves)
        self._daemons: dict[tuple[str, str], Daemon] = {}
        mgmt = lab.mgmt.name
        self._mgmt = lab.fabric.front_end_addresses[mgmt]
        for host in lab.fabric.host_names:
            self._fabricpulse(host, MESH, self._mesh_config(host))
            self._fabricpulse(host, NIC, {})
            self._fabricpulse(host, QP, self._qp_config())
            self._fabricpulse(host, SIDECAR, self._sidecar_config(host))
            self._fabricpulse(host, AGENT, self._agent_config(host))
        self._fabricpulse(mgmt, COORDINATOR, self._coordinator_config())
        self._fabricpulse(mgmt, RECEIVER, self._receiver_config())
        self._prometheus(mgmt)
        self._alertmanager(mgmt)
        for number, (_, daemon) in enumerate(self._shown()):
            daemon.show(options.port + number if options.port else 0)

    @property
    def daemons(self) -> list[Daemon]:
        """All of them."""
        return list(self._daemons.values())

    def daemon(self, name: str, node: str = "mgmt") -> Daemon:
        """The daemon `name` in `node`."""
        return self._daemons[name, node]

    def named(self, *names: str) -> list[Daemon]:
        """The daemons of these names in all nodes."""
        return [daemon for daemon in self.daemons if daemon.name in names]

    def pids(self, *names: str) -> dict[str, int]:
        """`mesh on h0` -> PID outside the lab, of the daemons of these names that run."""
        return {
            daemon.label: daemon.process.outer_pid
            for daemon in self.named(*names)
            if daemon.process is not None and daemon.ended is None
        }

    def urls(self) -> list[tuple[str, str]]:
        """What to look at, from outside the lab."""
        return [(what, daemon.url) for what, daemon in self._shown()]

    def _shown(self) -> list[tuple[str, Daemon]]:
        first = self._lab.fabric.host_names[0]
        return [
            ("Prometheus", self.daemon(PROMETHEUS)),
            ("Alertmanager", self.daemon(ALERTMANAGER)),
            ("remediation", self.daemon(RECEIVER)),
            (f"mesh exporter of {first}", self.daemon(MESH, first)),
        ]

    async def start(self, session: aiohttp.ClientSession, progress: Callable[[str], None]) -> None:
        """Starts everything. Raises UserError naming the daemon that does not come up, with its last words."""
        for names in ((COORDINATOR, MESH, ALERTMANAGER), (SIDECAR, NIC, QP, RECEIVER), (AGENT, PROMETHEUS)):
            await start_all(self.named(*names), session, progress)

    def ended(self) -> list[Daemon]:
        """Daemons that have been started and are gone."""
        return [daemon for daemon in self.daemons if daemon.ended is not None]

    # How each is started.

    def _fabricpulse(self, node: str, name: str, config: dict[str, Any]) -> None:
        path = self._write(f"{node}-{name}.yaml", yaml.safe_dump(config, sort_keys=False))
        port = _PORTS[name]
        argv: list[str | Path] = [
            *(sys.executable, "-m", "fabricpulse.core.cli", *_COMMANDS[name]),
            *("--config", path, "--web.listen-address", f"0.0.0.0:{port}"),
        ]
        self._add(node, name, argv)

    def _prometheus(self, node: str) -> None:
        rule_files = write_rules(self._folder / "rules", {**RULE_SETTINGS, **self._options.rules})
        targets = [
            Target(f"fabricpulse-{daemon.name}", daemon.node, daemon.address)
            for daemon in self.daemons
            if daemon.name in _COMMANDS
        ]
        alertmanager = f"{self._mgmt}:{_PORTS[ALERTMANAGER]}"
        config = self._write("prometheus.yml", prometheus_config(targets, rule_files, alertmanager))
        data = self._folder / "prometheus"
        argv: list[str | Path] = [
            *command_line(self._options.tools.prometheus),
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address=0.0.0.0:{_PORTS[PROMETHEUS]}",
        ]
        self._add(node, PROMETHEUS, argv)

    def _alertmanager(self, node: str) -> None:
        webhook = f"http://{self._mgmt}:{_PORTS[RECEIVER]}/api/v1/alertmanager"
        config = self._write(
            "alertmanager.yml",
            alertmanager_config(webhook, f"http://127.0.0.1:{ON_CALL_PORT}/", self._options.repaths),
        )
        argv: list[str | Path] = [
            *command_line(self._options.tools.alertmanager),
            f"--config.file={config}",
            f"--storage.path={self._folder / 'alertmanager'}",
            f"--web.listen-address=0.0.0.0:{_PORTS[ALERTMANAGER]}",
            "--cluster.listen-address=",
        ]
        self._add(node, ALERTMANAGER, argv)

    def _add(self, node: str, name: str, argv: Sequence[str | Path]) -> None:
        self._daemons[name, node] = Daemon(self._lab, node, name, argv, _PORTS[name])

    def _write(self, name: str, content: str) -> Path:
        path = self._folder / name
        path.write_text(content, encoding="utf-8")
        return path

    # Settings of each daemon.

    def _coordinator_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"membership": str(self._membership)}
        if self._options.diagnosis:
            topology = yaml.safe_dump(self._lab.topology(), sort_keys=False)
            config["topology"] = str(self._write("topology.yaml", topology))
            config["alerting"] = {
                "alertmanagers": [f"http://{self._mgmt}:{_PORTS[ALERTMANAGER]}"],
                # The rule keeps it firing for faultKeepFiring, and is a scrape and an evaluation behind.
                "resolve_hold_s": 17.5,
            }
        return config

    def _mesh_config(self, host: str) -> dict[str, Any]:
        diagnosis = {"evidence": {"url": f"http://{self._mgmt}:{_PORTS[COORDINATOR]}"}}
        return {
            **(diagnosis if self._options.diagnosis else {}),
            "host": host,
            "membership": {"file": str(self._membership)},
            # A NIC is down after 0.4 s of silence; the rates leave the two cores to the ring.
            "probe": {"down_after_s": 0.4, "trains_per_s": 20, "peers": 4, "cross_peers": 1, "paths": 2},
            # These links are moved by the cores that everything else runs on: what is below this is their doing.
            "latency": {"slack_s": 0.004},
            "alerting": {
                "alertmanagers": [f"http://{self._mgmt}:{_PORTS[ALERTMANAGER]}"],
                "labels": {"instance": host, "job": f"fabricpulse-{MESH}"},
                # Prometheus scrapes and evaluates each second.
                "resolve_hold_s": 2.5,
                # flapWindow and flapKeepFiringFor above.
                "flap_window_s": 15,
                "flap_keep_firing_s": 1,
            },
        }

    def _qp_config(self) -> dict[str, Any]:
        """The window of delays is that of the rules, where these have a quick one."""
        window = self._options.rules.get("rateWindow")
        return {} if window is None else {"delay_window_s": float(window.removesuffix("s"))}

    def _sidecar_config(self, host: str) -> dict[str, Any]:
        return {
            "host": host,
            "coordinators": [f"http://{self._mgmt}:{_PORTS[COORDINATOR]}"],
            "membership": str(self._membership),
            "advertise_url": f"http://{self._lab.address(host, 'fe0')}:{_PORTS[SIDECAR]}",
        }

    def _agent_config(self, host: str) -> dict[str, Any]:
        return {
            "receiver": f"http://{self._mgmt}:{_PORTS[RECEIVER]}",
            "host": host,
            "journal": str(self._lab.host(host).directory / "remediation-node.db"),
            "mesh_url": f"http://127.0.0.1:{_PORTS[MESH]}/metrics",
            **({"report_interval_s": REPORT_S} if self._options.repaths else {}),
        }

    def _receiver_config(self) -> dict[str, Any]:
        rules = [{"alert": "FabricNicFlapping", "mode": "auto"}]
        if self._options.repaths:
            rules.append({"alert": "FabricPathContended", "action": "lane.repath", "mode": "auto"})
        return {
            "journal": str(self._folder / "remediation.db"),
            "alertmanagers": [f"http://{self._mgmt}:{_PORTS[ALERTMANAGER]}"],
            "rules": rules,
            **({"rebalance": REBALANCE} if self._options.repaths else {}),
            "hold": {"initial_s": self._options.hold_s, "cap_s": self._options.hold_s * 8, "jitter": 0.0},
            "alertmanager_poll_s": 5.0,
            # One switch port fails at a time here: nothing to wait for. What a failover brings is measured before
            # its NIC is back.
            "guards": {"settle_s": 0.5, "recovery_window_s": 8},
        }
