"""`fabricpulse qp` as a daemon: over HTTP, against telemetry of processes that come, work, die and are cleaned up."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.fixtures.plugin.telemetry_file import BOUNDS_NS, TelemetryFile
from tests.fixtures.waiting import Patience, wait_for

from fabricpulse.lab.demo.scrape import Samples, parse_samples
from fabricpulse.lab.tools import find_tool
from fabricpulse.plugin_ipc.telemetry import Table
from fabricpulse.plugin_ipc.timeline import HostTimeline
from fabricpulse.qp.process_facts import UserNames

NAMES = {
    "fabricpulse_qp_sent_bytes_total",
    "fabricpulse_qp_processes",
    "fabricpulse_qp_dead_processes",
    "fabricpulse_lane_state",
    "fabricpulse_qp_worst_owd_seconds",
    "fabricpulse_qp_telemetry_errors_total",
    "fabricpulse_exporter_samples",
    "fabricpulse_exporter_dropped_samples",
}
CONFIG = """\
interval_s: 0.1
cleanup_after_s: 0.5
forget_after_s: 5
worst: {count: 3, owd_s: 0.005}
sample_cap: 500
"""


class Exporter:
    """A running exporter with a run directory of its own."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.plugin = folder / "run" / "plugin"
        self.plugin.mkdir(parents=True)
        self.log = folder / "log"
        file = folder / "qp.yaml"
        file.write_text(config)
        command: list[str | Path] = [*(sys.executable, "-m", "fabricpulse.core.cli", "qp"), "--config", file]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--web.listen-address", "127.0.0.1:0"],
                env=os.environ | {"FABRICPULSE_RUN_DIR": str(folder / "run")},
                stderr=log,
            )
        self.url = self._address()

    def _address(self) -> str:
        def listening() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log.read_text()
            return re.search(r"address=\"?(127\.0\.0\.1:\d+)", self.log.read_text())

        match = wait_for(listening, 30, "the address in the log")
        assert match is not None
        return f"http://{match.group(1)}"

    async def text(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            assert response.status == 200
            return await response.text()

    async def samples(self) -> Samples:
        return parse_samples(await self.text(), NAMES)

    async def wait_for(self, check, seconds: float = 10.0) -> Samples:
        patience = Patience(seconds)
        while not check(samples := await self.samples()):
            assert patience.left(), samples
        return samples

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    exporter = Exporter(tmp_path)
    yield exporter
    if exporter.process.poll() is None:
        exporter.process.kill()
        exporter.process.wait(60)


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a job."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


async def test_a_job_comes_works_and_goes(exporter: Exporter, job: subprocess.Popen[bytes]) -> None:
    """A new process is found, its death noticed, its counters kept a while, its files removed, its series forgotten."""
    assert (await exporter.samples()).one("fabricpulse_qp_sent_bytes_total") is None
    file = TelemetryFile(exporter.plugin, job.pid)
    file.lane(0, 0, "h1", sent_bytes=10)
    socket = exporter.plugin / f"{job.pid}.sock"
    socket.touch()
    samples = await exporter.samples()
    assert samples.one("fabricpulse_qp_sent_bytes_total", workload="train-7", device="rail0", peer="h1") == 10
    assert samples.one("fabricpulse_lane_state", device="rail0") == 1
    job.kill()
    job.wait()
    file.beat(seconds_ago=60)
    samples = await exporter.wait_for(lambda s: s.one("fabricpulse_qp_processes") is None)
    assert samples.one("fabricpulse_qp_dead_processes", workload="train-7") == 1
    assert samples.one("fabricpulse_qp_sent_bytes_total") == 10
    assert samples.one("fabricpulse_lane_state") is None
    await exporter.wait_for(lambda s: s.one("fabricpulse_qp_sent_bytes_total") is None)
    assert not file.path.exists()
    assert not socket.exists()
    assert exporter.stop() == 0


async def test_a_stopped_job_is_alive(exporter: Exporter, job: subprocess.Popen[bytes]) -> None:
    """A process that a debugger holds does not beat, but it exists: nothing of it is removed."""
    file = TelemetryFile(exporter.plugin, job.pid)
    file.lane(0, 0, "h1", sent_bytes=10)
    file.beat(seconds_ago=60)
    job.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.0)  # twice the time after which the files of a dead process are removed
    assert (await exporter.samples()).one("fabricpulse_qp_processes") == 1
    assert file.path.exists()


async def test_a_beating_job_of_another_pid_namespace_is_alive(exporter: Exporter) -> None:
    """A container's process is not in our process table; its heartbeat proves it."""
    file = TelemetryFile(exporter.plugin, 999_999_999)
    file.lane(0, 0, "h1", sent_bytes=10)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        file.beat()
        assert (await exporter.samples()).one("fabricpulse_qp_processes") == 1


async def test_a_timeline_and_a_workload_s_names(exporter: Exporter, job: subprocess.Popen[bytes]) -> None:
    """What a process did lately, of the workload asked for; which Slurm job it says it is, and its true user."""
    file = TelemetryFile(exporter.plugin, job.pid)
    file.put(Table.JOB, 0, state=1, nodes=2, slurm_job=b"4711", account=b"physics")
    now_ns = time.time_ns()
    file.enter(Table.OPERATIONS, 0, function=b"AllReduce", end_host_ns=now_ns, took_ns=5)
    file.enter(Table.OPERATIONS, 1, function=b"AllReduce", end_host_ns=now_ns - 400 * 10**9)
    async with aiohttp.ClientSession() as session:
        url = f"{exporter.url}/api/v1/timeline"
        async with session.get(url, params={"workload": "train-7", "seconds": "300"}) as response:
            timeline = msgspec.json.decode(await response.read(), type=HostTimeline)
        async with session.get(url, params={"workload": "train-8"}) as response:
            assert (await response.json())["processes"] == []
        async with session.get(url, params={"seconds": "0"}) as response:
            assert response.status == 400
    (process,) = timeline.processes
    assert [o.end_ns for o in process.operations] == [now_ns]
    text = await exporter.text()
    line = next(line for line in text.splitlines() if line.startswith("fabricpulse_workload_info{"))
    for label in (
        'slurm_job="4711"',
        'account="physics"',
        'nodes="2"',
        f'user="{UserNames().name(os.getuid())}"',
    ):
        assert label in line
    assert 'fabricpulse_workload_start_timestamp_seconds{workload="train-7"}' in text


async def test_broken_files_do_not_hide_good_ones(exporter: Exporter) -> None:
    """Another layout, an empty file, a folder, and a writer that died in a change are counted and passed over."""
    good = TelemetryFile(exporter.plugin)
    good.lane(0, 0, "h1", sent_bytes=10)
    (exporter.plugin / "1.telemetry").write_bytes(b"not this layout" * 1000)
    (exporter.plugin / "2.telemetry").touch()
    (exporter.plugin / "3.telemetry").mkdir()
    torn = TelemetryFile(exporter.plugin, 4)
    torn.header["tables_sequence"] = 1
    samples = await exporter.samples()
    assert samples.one("fabricpulse_qp_sent_bytes_total") == 10
    assert (samples.one("fabricpulse_qp_telemetry_errors_total") or 0) >= 4


async def test_files_that_turn_hostile_under_the_daemon_cost_only_themselves(exporter: Exporter) -> None:
    """A FIFO, a file that is truncated and one whose tables grow, all after the daemon has read them: it answers."""
    good = TelemetryFile(exporter.plugin)
    good.lane(0, 0, "h1", sent_bytes=10)
    files = [TelemetryFile(exporter.plugin, 5_000_000 + number, f"bad-{number}") for number in range(3)]
    assert len(list((await exporter.samples()).all("fabricpulse_qp_processes"))) == 4
    os.truncate(files[0].path, 4096)
    files[1].header["tables"]["capacity"][0][Table.LANES] = 2**32 - 1
    files[2].path.unlink()
    os.mkfifo(files[2].path)
    samples = await exporter.samples()
    assert {labels["workload"] for labels, _ in samples.all("fabricpulse_qp_processes")} == {"train-7"}
    assert samples.one("fabricpulse_qp_sent_bytes_total") == 10
    assert (samples.one("fabricpulse_qp_telemetry_errors_total") or 0) >= 3
    assert exporter.stop() == 0


async def test_the_exporter_forgets_nothing_of_a_job_when_it_is_killed(tmp_path: Path) -> None:
    """After kill -9 of the exporter the counters go on where they were: they live in the job's memory."""
    first = Exporter(tmp_path / "first")
    file = TelemetryFile(first.plugin)
    file.lane(0, 0, "h1", sent_bytes=10)
    assert (await first.samples()).one("fabricpulse_qp_sent_bytes_total") == 10
    first.process.kill()
    first.process.wait(60)
    file.lane(0, 0, "h1", sent_bytes=25)
    second = Exporter(tmp_path / "second")
    shutil.copy(file.path, second.plugin)
    try:
        samples = await second.wait_for(lambda s: s.one("fabricpulse_qp_sent_bytes_total") is not None)
        assert samples.one("fabricpulse_qp_sent_bytes_total") == 25
    finally:
        assert second.stop() == 0


async def test_many_peers_stay_within_the_cap(exporter: Exporter) -> None:
    """The cap cuts the histograms of the last, never the scrape, and says what it cut."""
    files = [TelemetryFile(exporter.plugin, 1_000_000 + number) for number in range(2)]
    for number, file in enumerate(files):
        for slot in range(30):
            file.lane(slot, slot % 2, f"h{number * 100 + slot}", {3: 1}, sent_bytes=1)
    samples = await exporter.samples()
    assert (samples.one("fabricpulse_exporter_samples") or 0) > 500
    dropped = {labels["family"] for labels, _ in samples.all("fabricpulse_exporter_dropped_samples")}
    assert "fabricpulse_qp_owd_seconds" in dropped
    assert samples.one("fabricpulse_lane_state", device="rail0") == 1
    assert len(list(samples.all("fabricpulse_qp_sent_bytes_total"))) == 60


async def test_the_worst_queue_pairs_are_named_only_while_bad(exporter: Exporter) -> None:
    """At most as many as configured, and none once the delays are good again."""
    file = TelemetryFile(exporter.plugin)
    slow = next(index for index, bound in enumerate(BOUNDS_NS) if bound >= 20_000_000)
    chunks = 0
    patience = Patience(10)
    while True:
        chunks += 5
        for slot in range(6):
            file.lane(slot, 0, f"h{slot}", {slow: chunks})
        worst = list((await exporter.samples()).all("fabricpulse_qp_worst_owd_seconds"))
        if len(worst) == 3:
            break
        assert patience.left()
    assert all(value > 0.005 for _, value in worst)
    await exporter.wait_for(lambda s: s.one("fabricpulse_qp_worst_owd_seconds") is None)


def check_metrics(promtool: Path, text: str) -> subprocess.CompletedProcess[str]:
    """`promtool check metrics` on an exposition."""
    return subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )


@pytest.mark.prometheus
async def test_promtool_finds_nothing_wrong(exporter: Exporter) -> None:
    """Names, types, units and the text itself pass `promtool check metrics`."""
    promtool = find_tool("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    file = TelemetryFile(exporter.plugin)
    file.lane(0, 0, "h1", {3: 5}, sent_bytes=10)
    file.lane(1, 1, "h1", {3: 5}, sent_bytes=10, delay_source=2)
    file.put(Table.COLLECTIVES, 0, state=1, function=b"AllReduce", operations=1, bytes=8, busy_ns=4)
    done = await asyncio.to_thread(check_metrics, promtool, await exporter.text())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("worst: {cuont: 3}", "did you mean 'count'"),
        ("interval_s: 0", "interval_s"),
        ("sample_cap: many", "sample_cap"),
    ],
)
def test_bad_configuration_is_one_sentence(tmp_path: Path, config: str, message: str) -> None:
    """An unknown or wrong key ends the start with exit code 2 and one sentence that names it."""
    file = tmp_path / "qp.yaml"
    file.write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "fabricpulse.core.cli", "qp", "--config", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    sentence, *place = done.stderr.strip().splitlines()
    assert message in sentence
    # The line of the file, and a caret under the key.
    assert len(place) in (0, 2)


def test_a_port_in_use_is_one_sentence(exporter: Exporter, tmp_path: Path) -> None:
    """The second exporter on a port says so and ends."""
    address = exporter.url.removeprefix("http://")
    done = subprocess.run(
        [*(sys.executable, "-m", "fabricpulse.core.cli", "qp"), "--web.listen-address", address],
        env=os.environ | {"FABRICPULSE_RUN_DIR": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1  # it may be free when systemd tries again
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "already in use" in line
    assert "Traceback" not in done.stderr
