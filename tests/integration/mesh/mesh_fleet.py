"""A lab whose hosts all run `fabricpulse mesh`: for the integration tests and the benchmark."""

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import yaml
from tests.fixtures.waiting import wait_for

from fabricpulse.clocksync._cross_timestamp import cross_timestamp
from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus
from fabricpulse.lab import Lab, LabProcess

PORT = 9610
DISCONNECTS = "fabricpulse_nic_disconnects_total"
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """One exposition, taken apart."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match:
                labels = dict(_LABEL.findall(match.group(2) or ""))
                self.samples.append((match.group(1), labels, float(match.group(3))))

    def values(self, name: str, **labels: str) -> list[float]:
        """Values of all samples of `name` that have these labels."""
        return [v for n, got, v in self.samples if n == name and labels.items() <= got.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample, or None."""
        found = self.values(name, **labels)
        assert len(found) <= 1, f"{name}{labels} is not one sample"
        return found[0] if found else None

    def labels(self, name: str) -> list[dict[str, str]]:
        """Label sets of a metric."""
        return [got for n, got, _ in self.samples if n == name]


def grown(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    """By how much a counter has grown, over all edges with these labels."""
    return sum(after.values(name, **labels)) - sum(before.values(name, **labels))


def events(fleet: "MeshFleet", kind: str) -> dict[str, float | None]:
    """How often each host has reported `kind`."""
    return {
        name: fleet.scrape(name).value("fabricpulse_mesh_events_total", kind=kind) for name in fleet.daemons
    }


class MeshFleet:
    """`fabricpulse mesh` on every host of a lab, with fleet keys and the given probe settings."""

    def __init__(self, lab: Lab, probe: Mapping[str, Any] | None = None, **config: Any) -> None:
        self.lab = lab
        self.membership = lab.write_membership()
        self.key_file = lab.directory / "keys"
        self.key_file.write_text("0123456789abcdef0123456789abcdef\n")
        self.probe = {"down_after_s": 0.5, **(probe or {})}
        self.config = config
        self.without_key = False
        self.environments: dict[str, Mapping[str, str]] = {}
        """By host, on top of the environment of every process in the lab."""
        self.daemons: dict[str, LabProcess] = {}
        self._pages: dict[str, ClockPageWriter] = {}

    def start(self, *names: str) -> "MeshFleet":
        """Starts the exporter on these hosts (all by default) and waits until they listen."""
        names = names or tuple(host.name for host in self.lab.hosts)
        for name in names:
            self.daemons[name] = self.launch(name)
        for name in names:
            self.daemons[name].wait_for_output("event=listening")
        return self

    def launch(self, name: str) -> LabProcess:
        """Starts one exporter without waiting."""
        document = {
            "host": name,
            "membership": {"file": str(self.membership), "refresh_s": 0.2},
            "key_file": str(self.key_file),
            "probe": self.probe,
            "event_log": {"path": str(self.lab.host(name).directory / "events.jsonl")},
            **self.config,
        }
        if self.without_key:
            del document["key_file"]
        path = self.lab.host(name).directory / "mesh.yaml"
        path.write_text(yaml.safe_dump(document))
        return self.lab.popen(
            name,
            ["fabricpulse", "mesh", "--config", path, "--web.listen-address", f":{PORT}"],
            name=f"mesh-{time.monotonic_ns()}",
            env=self.environments.get(name),
        )

    def true_clock(self, bound_ns: int = 500, behind_ns: Mapping[str, int] | None = None) -> None:
        """Gives every host the perfect clock page: fleet time is the kernel's time.

        bound_ns : also of what a stamp may be late (stamp_clock.h), as that of a sidecar.
        behind_ns : hosts whose fleet time is wrong by that, as after a pause of the machine that nobody has noticed.
        """
        for host in self.lab.hosts:
            if host.name not in self._pages:
                self._pages[host.name] = ClockPageWriter(host.run_dir / "clock")
            writer = self._pages[host.name]
            now, kernel_raw, _ = cross_timestamp(40)
            host_ns, raw = host.clock.from_kernel(now), host.clock.raw_from_kernel(kernel_raw)
            stamps = ClockLine(host_ns, raw, 0)
            # fleet = kernel: the inverse of raw = kernel * (1 + rate). Nothing steers this machine's clock: it runs as
            # fast as its raw one.
            rate = host.clock.drift_ppm * 1e-6
            line = ClockLine(raw, now - (behind_ns or {}).get(host.name, 0), round(-rate / (1 + rate) * 1e12))
            page = ClockPage(
                *(ClockStatus.SYNCHRONIZED, line, line, raw, bound_ns, 0, raw + 3600 * 10**9),
                *(stamps, stamps, host_ns, 0, 0),
            )
            writer.write(page)

    def scrape(self, name: str) -> Scrape:
        """`/metrics` of a host."""
        return Scrape(self.lab.http_get(name, f"http://127.0.0.1:{PORT}/metrics"))

    def get(self, name: str, path: str) -> Any:
        """A JSON document of a host."""
        return json.loads(self.lab.http_get(name, f"http://127.0.0.1:{PORT}{path}"))

    def edges(self, name: str) -> dict[tuple[str, str, str], dict[str, Any]]:
        """`/api/v1/edges` by device, peer, peer device."""
        found = self.get(name, "/api/v1/edges")["edges"]
        return {(edge["device"], edge["peer"], edge["peer_device"]): edge for edge in found}

    def connected(self, name: str, device: str) -> float | None:
        """`fabricpulse_nic_connected`."""
        return self.scrape(name).value("fabricpulse_nic_connected", device=device)

    def wait_probing(self, intervals: float = 1.2, timeout: float = 15.0) -> None:
        """Returns once every host has probed on for some intervals: what would be an outage by now, has been reported.

        Counted in probes and not in seconds, as health counts only the time in which the engine runs.
        """

        def sent() -> dict[tuple[str, str], float]:
            return {
                (name, str(labels)): value
                for name in self.daemons
                for metric, labels, value in self.scrape(name).samples
                if metric == "fabricpulse_edge_probes_sent_total"
            }

        before = sent()
        probes = intervals * self.probe["down_after_s"] * 3 * 50  # trains of three packets, 50 a second

        def enough() -> bool:
            now = sent()
            return all(now.get(key, 0) >= count + probes for key, count in before.items())

        wait_for(enough, timeout, f"{intervals:g} intervals of probing")

    def wait_green(self, timeout: float = 15.0) -> None:
        """Returns once every edge of every host is up."""

        def green() -> bool:
            for name in self.daemons:
                scrape = self.scrape(name)
                states = scrape.values("fabricpulse_edge_up")
                if set(states) != {1.0} or len(states) != len(
                    scrape.labels("fabricpulse_edge_probes_sent_total")
                ):
                    return False
            return True

        wait_for(green, timeout, "all edges up")
