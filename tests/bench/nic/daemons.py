"""The two exporters of the comparison as running daemons: ours and Debian's node_exporter."""

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.rows import Rows, cpu_seconds
from tests.fixtures.debian_tool import debian_tool

NODE_PORT, NIC_PORT = 29_710, 29_711
SCRAPE_HEADERS = {"Accept-Encoding": "gzip"}
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
rows = Rows("nic")


def node_exporter() -> str | None:
    """The reference."""
    return debian_tool("prometheus-node-exporter", "prometheus-node-exporter")


class Daemon:
    """A running exporter that answers."""

    def __init__(self, command: list[str], port: int, **environment: str) -> None:
        self.command, self.port, self.environment = command, port, environment
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        end = time.monotonic() + 20
        while True:
            try:
                self.scrape()
            except OSError:
                self.connection.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    self.stop()
                    raise
                time.sleep(0.05)
            else:
                return

    def scrape(self, headers: dict[str, str] | None = None) -> bytes:
        self.connection.request("GET", "/metrics", headers=headers or {})
        return self.connection.getresponse().read()

    def cpu_s(self) -> float:
        """CPU time so far, of all threads."""
        return cpu_seconds(self.process.pid)

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(20)
        self.connection.close()


@contextmanager
def running(command: list[str], port: int, **environment: str) -> Iterator[Daemon]:
    daemon = Daemon(command, port, **environment)
    try:
        yield daemon
    finally:
        daemon.stop()


def nic_command(sysfs: Path, *more: str) -> list[str]:
    address = f"127.0.0.1:{NIC_PORT}"
    command = [sys.executable, "-m", "fabricpulse.core.cli", "nic", "--path.sysfs", str(sysfs)]
    return [*command, "--web.listen-address", address, *more]


def node_command(binary: str, sysfs: Path) -> list[str]:
    return [binary, f"--path.sysfs={sysfs}", "--collector.disable-defaults", "--collector.infiniband",
            "--collector.netclass", f"--web.listen-address=127.0.0.1:{NODE_PORT}", "--log.level=error"]  # fmt: skip


def parse(body: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in body.decode().splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match:
            yield match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])
