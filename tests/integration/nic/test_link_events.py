"""`fabricpulse nic` on real links: veth pairs in a network namespace of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for

pytestmark = pytest.mark.root

NAMESPACE = f"nictest{os.getpid()}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", "-n", NAMESPACE, *arguments], check=True)


@pytest.fixture
def namespace():
    """A namespace with the link rail0, whose carrier follows its peer."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a network namespace")
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    try:
        ip("link", "set", "lo", "up")
        ip("link", "add", "rail0", "type", "veth", "peer", "name", "vethpeer0")
        ip("link", "set", "rail0", "up")
        ip("link", "set", "vethpeer0", "up")
        yield NAMESPACE
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


class Exporter:
    """The daemon in the namespace; `ip netns exec` gives it the namespace's own /sys."""

    def __init__(self, run_dir: Path, *arguments: str) -> None:
        self.run_dir = run_dir
        self.socket = run_dir / "ready"
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(self.socket))
        notify.settimeout(60)
        environment = os.environ | {"FABRICPULSE_RUN_DIR": str(run_dir), "NOTIFY_SOCKET": str(self.socket)}
        command = [
            sys.executable,
            "-m",
            "fabricpulse.core.cli",
            "nic",
            "--web.listen-address",
            "127.0.0.1:29611",
        ]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", NAMESPACE, *command, *arguments],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert notify.recv(64) == b"READY=1"
        except BaseException:
            self.process.kill()
            raise
        finally:
            notify.close()
            self.socket.unlink()

    def scrape(self) -> str:
        script = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:29611/metrics').read().decode())"
        done = subprocess.run(
            ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def value(self, name: str) -> float:
        for line in self.scrape().splitlines():
            if line.startswith(f'{name}{{device="rail0"'):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no {name} for rail0")

    def stop(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)


def until(check) -> None:
    wait_for(check, 30, "what the test waits for")


DOWNS = "fabricpulse_nic_port_down_transitions_total"


def test_flaps_are_counted_while_running_and_while_not(namespace, tmp_path):
    """Every flap counts: before the start, live, during a clean restart and after a kill."""
    ip("link", "set", "vethpeer0", "down")
    ip("link", "set", "vethpeer0", "up")
    exporter = Exporter(tmp_path)
    try:
        base = exporter.value(DOWNS)
        assert base >= 1
        # Each change is reported before the next one is made: on a busy machine the exporter would find two at a time.
        log = tmp_path / "nic-events.jsonl"

        def reported(event: str) -> int:
            return log.read_text().count(f'"event":"{event}"') if log.exists() else 0

        for number in range(10):
            ip("link", "set", "vethpeer0", "down")
            until(lambda wanted=number + 1: reported("link_down") == wanted)
            ip("link", "set", "vethpeer0", "up")
            until(lambda wanted=number + 1: reported("link_up") == wanted)
        assert exporter.value(DOWNS) == base + 10
        assert exporter.value("fabricpulse_nic_port_down_transitions_unobserved_total") == base
        assert exporter.value("fabricpulse_nic_flap_duration_seconds_count") == 10
        assert exporter.stop() == 0
        for _ in range(3):
            ip("link", "set", "vethpeer0", "down")
            ip("link", "set", "vethpeer0", "up")
        exporter = Exporter(tmp_path)
        assert exporter.value(DOWNS) == base + 13
        assert exporter.value("fabricpulse_nic_flap_duration_seconds_count") == 10
        exporter.stop(signal.SIGKILL)
        ip("link", "set", "vethpeer0", "down")
        exporter = Exporter(tmp_path)
        assert exporter.value(DOWNS) == base + 14
        assert exporter.value("fabricpulse_nic_link_carrier") == 0
    finally:
        if exporter.process.poll() is None:
            exporter.stop()


def test_the_event_log_tells_each_change(namespace, tmp_path):
    """Down and up are lines of JSON with time, labels and the length of the outage."""
    exporter = Exporter(tmp_path)
    try:
        ip("link", "set", "vethpeer0", "down")
        log = tmp_path / "nic-events.jsonl"
        until(lambda: log.exists() and "link_down" in log.read_text())
        ip("link", "set", "vethpeer0", "up")
        until(lambda: "link_up" in log.read_text())
    finally:
        exporter.stop()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    down, up = (next(e for e in events if e["event"] == kind) for kind in ("link_down", "link_up"))
    assert (down["device"], down["rdma_device"], down["port"], down["source"]) == (
        "rail0",
        "",
        "",
        "rtnetlink",
    )
    assert 0 < up["down_s"] < 30
    assert down["time"] < up["time"]


def test_changes_that_others_ask_for_are_reported(namespace, tmp_path):
    """`ip link set rail0 down`: the message carries the number of ip's request, and is an event all the same."""
    exporter = Exporter(tmp_path)
    log = tmp_path / "nic-events.jsonl"
    try:
        ip("link", "set", "rail0", "down")
        until(lambda: log.exists() and "link_down" in log.read_text())
        ip("link", "add", "rail1", "type", "veth", "peer", "name", "vethpeer1")
        until(lambda: DOWNS + '{device="rail1"' in exporter.scrape())
    finally:
        exporter.stop()
    down = next(e for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "link_down")
    assert down["admin_up"] is False


def test_a_link_that_leaves_a_bridge_is_not_gone(namespace, tmp_path):
    """The bridge's own message that a port was deleted is not about the link."""
    ip("link", "add", "br-test", "type", "bridge")
    ip("link", "set", "rail0", "master", "br-test")
    exporter = Exporter(tmp_path)
    try:
        before = exporter.value(DOWNS)
        ip("link", "set", "rail0", "nomaster")
        ip("link", "set", "vethpeer0", "down")
        until(lambda: exporter.value(DOWNS) == before + 1)
        log = (tmp_path / "nic-events.jsonl").read_text()
    finally:
        exporter.stop()
    assert "link_removed" not in log


def test_a_deleted_link_vanishes_from_the_exposition(namespace, tmp_path):
    """Series of links that are gone are gone; their total is kept for their return."""
    exporter = Exporter(tmp_path)
    try:
        ip("link", "set", "vethpeer0", "down")
        until(lambda: exporter.value(DOWNS) >= 1)
        before = exporter.value(DOWNS)
        ip("link", "del", "rail0")
        until(lambda: "rail0" not in exporter.scrape())
        ip("link", "add", "rail0", "type", "veth", "peer", "name", "vethpeer0")
        until(lambda: DOWNS + '{device="rail0"' in exporter.scrape())
        assert exporter.value(DOWNS) >= before
    finally:
        exporter.stop()


def test_a_storm_that_overruns_the_socket_is_counted_exactly(namespace, tmp_path):
    """The exporter is stopped while the link flaps thousands of times: messages are lost, flaps are not."""
    exporter = Exporter(tmp_path)
    flaps = 15_000
    try:
        base = exporter.value(DOWNS)
        exporter.process.send_signal(signal.SIGSTOP)
        script = (
            "from tests.bench.nic.flaps import Links\n"
            "links = Links()\n"
            f"for _ in range({flaps}): links.set('vethpeer0', False); links.set('vethpeer0', True)\n"
        )
        root = Path(__file__).parents[3]
        subprocess.run(["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", script], check=True, cwd=root)
        exporter.process.send_signal(signal.SIGCONT)
        until(lambda: exporter.value(DOWNS) == base + flaps)
        overruns = 'fabricpulse_nic_event_overruns_total{source="rtnetlink"} '
        line = next(line for line in exporter.scrape().splitlines() if line.startswith(overruns))
        assert int(line.removeprefix(overruns)) >= 1
    finally:
        exporter.process.send_signal(signal.SIGCONT)
        exporter.stop()


def test_a_reload_takes_the_new_configuration_and_keeps_the_counts(namespace, tmp_path):
    """SIGHUP: the new filter holds, a bad file is refused, and no flap is lost over either."""
    config = tmp_path / "nic.yaml"
    config.write_text("collectors: {pcie: true}\n")
    exporter = Exporter(tmp_path, "--config", str(config))
    try:
        start = exporter.value(DOWNS)
        ip("link", "set", "vethpeer0", "down")
        # The kernel makes one event of an end that comes at once: then nobody knows how long it was.
        until(lambda: exporter.value(DOWNS) == start + 1)
        ip("link", "set", "vethpeer0", "up")
        until(lambda: exporter.value("fabricpulse_nic_flap_duration_seconds_count") == 1)
        before = exporter.value(DOWNS)
        config.write_text("collectors: {pcie: false}\n")
        exporter.process.send_signal(signal.SIGHUP)
        until(lambda: 'collector="pcie"' not in exporter.scrape())
        config.write_text("colectors: {}\n")
        exporter.process.send_signal(signal.SIGHUP)
        ip("link", "set", "vethpeer0", "down")
        until(lambda: exporter.value(DOWNS) == before + 1)
        assert exporter.value("fabricpulse_nic_flap_duration_seconds_count") == 1
        assert 'collector="pcie"' not in exporter.scrape()
    finally:
        assert exporter.stop() == 0
