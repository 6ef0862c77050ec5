"""The profiler symbols, driven as NCCL drives them (tests/native/hosts/profiler.cc)."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.native.programs import native
from tests.fixtures.plugin.telemetry_file import TelemetryFile
from tests.fixtures.waiting import wait_for

from fabricpulse.core.shm.clock_page import ClockLine, ClockPage, ClockPageWriter, ClockStatus, raw_now_ns
from fabricpulse.lab import Lab
from fabricpulse.plugin.jobs import find_jobs
from fabricpulse.plugin.locate import library
from fabricpulse.plugin_ipc.control import ControlClient, ControlError
from fabricpulse.plugin_ipc.process import own_namespace
from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table, text
from fabricpulse.plugin_ipc.telemetry_folder import TelemetryFolder, monotonic_s
from fabricpulse.qp.process_facts import ProcessTable

ROOT = Path(__file__).parents[3]


def listening(pid: int) -> list[str]:
    """TCP sockets on which the process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since, as the control socket of a client
            name = str(entry.readlink())
            if name.startswith("socket:["):
                inodes.add(name.removeprefix("socket:[").removesuffix("]"))
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and line[9] in inodes]


@pytest.mark.parametrize("version", ["v4", "v5", "v6", "v7"])
def test_collectives_are_counted(profiler_host: Path, tmp_path: Path, version: str) -> None:
    """Each all-reduce counts once, with its bytes, and lasts until its last child has ended; detail follows the control
    socket at once, and everything is gone when the job is. It needs no NIC."""
    begun_ns = time.time_ns()
    process = subprocess.Popen(
        [profiler_host, library(), version, "5", "20"],
        env={
            "FABRICPULSE_RUN_DIR": str(tmp_path),
            "FABRICPULSE_DETAIL": "2",
            "FABRICPULSE_NICS": "none-such",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_ACCOUNT": "physics",
            "SLURM_NNODES": "16",
            "POD_NAME": "p" * 300,
            "SLURM_JOB_NUM_NODES": "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        mask = int(first.split()[1])
        assert mask == 2 | 4 | 8 | 16 | 64 | 128
        assert process.stdout.readline() == "played\n"
        assert listening(process.pid) == []  # NCCL's own transport carries the data
        (path,) = (tmp_path / "plugin").glob("*.telemetry")
        reader = PluginTelemetryReader(path)
        snapshot = reader.read()
        records = snapshot.tables[Table.COLLECTIVES]
        (record,) = records
        assert (text(record["function"]), text(record["algorithm"])) == ("AllReduce", "RING")
        assert (int(record["operations"]), int(record["bytes"])) == (5, 5 << 20)
        assert (int(record["rank"]), int(record["ranks"]), int(record["communicator"])) == (1, 2, 77)
        assert int(record["in_progress"]) == 0
        (job,) = snapshot.tables[Table.JOB]
        assert (snapshot.workload, text(job["slurm_job"]), text(job["account"])) == (
            "4711",
            "4711",
            "physics",
        )
        assert (int(job["nodes"]), text(job["pod_name"]), text(job["pod_uid"])) == (16, "p" * 255, "")
        assert np.uint64(5_000_000) <= record["busy_ns"] < np.uint64(2_000_000_000)
        assert np.uint64(5_000_000) <= record["proxy_wait_ns"] <= record["busy_ns"]
        operations = reader.ring(Table.OPERATIONS)
        assert [int(o["bytes"]) for o in operations] == [1 << 20] * 5
        assert {text(o["function"]) for o in operations} == {"AllReduce"}
        assert np.uint64(sum(int(o["took_ns"]) for o in operations)) == record["busy_ns"]
        assert all(begun_ns < int(o["end_host_ns"]) < time.time_ns() for o in operations)
        assert {int(o["end_fleet_ns"]) for o in operations} == {0}  # there is no clock page here
        reader.close()
        (path,) = (tmp_path / "plugin").glob("*.sock")
        with ControlClient(path) as client:
            answer = client.call({"op": "detail", "op_id": "x", "generation": 1, "level": 0})
            assert answer["ok"]
            assert client.call({"op": "status"})["detail"] == 0
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@contextmanager
def played(
    profiler_host: Path, run_dir: Path, *arguments: str, said: list[str] | None = None
) -> Iterator[PluginTelemetryReader]:
    """The telemetry of a host that has played what it is asked, and still lives.

    said : gets the lines that it prints meanwhile.
    """
    with subprocess.Popen(
        [profiler_host, library(), *arguments],
        env={
            "FABRICPULSE_RUN_DIR": str(run_dir),
            "FABRICPULSE_DETAIL": "1",
            "FABRICPULSE_NICS": "none-such",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        lines = list(iter(process.stdout.readline, "played\n"))
        assert said is not None or lines == []
        if said is not None:
            said += lines
        (path,) = (run_dir / "plugin").glob("*.telemetry")
        reader = PluginTelemetryReader(path)
        try:
            yield reader
        finally:
            reader.close()
            process.kill()


@pytest.mark.parametrize(
    ("version", "gpu_us", "believed"),
    [("v4", 900, True), ("v5", 900, True), ("v7", 900, True), ("v5", 10**9, False)],
)
def test_kernels_are_timed_by_the_gpu(
    profiler_host: Path, tmp_path: Path, version: str, gpu_us: int, believed: bool
) -> None:
    """NCCL's proxy sees their start and end at once, 1 ms after they were enqueued. A start before that, as of an
    earlier replay of a graph, counts for nothing: then the proxy operation does, which lasts as long."""
    with played(profiler_host, tmp_path, version, "20", "20", str(gpu_us)) as reader:
        (record,) = reader.read().tables[Table.COLLECTIVES]
        assert (int(record["operations"]), int(record["in_progress"])) == (20, 0)
        took_us = sorted(int(o["took_ns"]) / 1000 for o in reader.ring(Table.OPERATIONS))
        assert took_us[0] >= 900
        assert believed or took_us[-1] < gpu_us


def test_an_operation_ends_with_its_kernels(profiler_host: Path, tmp_path: Path) -> None:
    """Also where its last event, the end of the proxy operation, comes 200 ms later; its fleet time is right within its
    bound, which covers what a daemon may have done to the clock meanwhile."""
    now, raw, ahead_ns = time.time_ns(), raw_now_ns(), 5_000_000_000
    line, host = ClockLine(raw, now + ahead_ns, 0), ClockLine(now, raw, 0)
    writer = ClockPageWriter(tmp_path / "clock")
    writer.write(
        ClockPage(
            *(ClockStatus.SYNCHRONIZED, line, line, raw, 1_000, 0, raw + 60_000_000_000),
            *(host, host, now, 0, 0),
        )
    )
    ended: list[str] = []
    with played(profiler_host, tmp_path, "v5", "5", "20", "900", "late", said=ended) as reader:
        operations = reader.ring(Table.OPERATIONS)
    assert len(operations) == len(ended) == 5
    for operation, words in zip(operations, ended, strict=True):
        earliest_ns, latest_ns, earliest_raw_ns, latest_raw_ns = map(int, words.split()[1:])
        assert earliest_ns - 50_000_000 <= int(operation["end_host_ns"]) <= latest_ns + 50_000_000
        bound_ns = int(operation["fleet_bound_ns"])
        end_ns = int(operation["end_fleet_ns"])
        assert line.at(earliest_raw_ns) - bound_ns <= end_ns <= line.at(latest_raw_ns) + bound_ns
        # Of 200 ms that CLOCK_MONOTONIC has gone on since.
        assert bound_ns >= 1_000 + 25_000_000


def test_another_operations_kernels_alone_give_no_time(profiler_host: Path, tmp_path: Path) -> None:
    """As of a captured graph inside one host, without proxy operations: the operations count, and how long they took
    is unknown, not the few microseconds between their kernels' events."""
    with played(profiler_host, tmp_path, "v5", "20", "20", str(10**9), "inside") as reader:
        (record,) = reader.read().tables[Table.COLLECTIVES]
        assert (int(record["operations"]), int(record["in_progress"])) == (20, 0)
        assert (int(record["busy_ns"]), int(record["last_bandwidth"])) == (0, 0)
        assert len(reader.ring(Table.OPERATIONS)) == 0


def test_sends_end_although_parts_of_them_never_start(profiler_host: Path, tmp_path: Path) -> None:
    """Of each NCCL starts one kernel channel of two, of every fourth none. Later ones that run show that they are over;
    the last ones are in progress. Their time is that of what was reported, and unknown where nothing was."""
    with played(profiler_host, tmp_path, "v5", "40", "20", "900", "sends") as reader:
        (record,) = reader.read().tables[Table.COLLECTIVES]
        assert text(record["function"]) == "Send"
        assert int(record["operations"]) + int(record["in_progress"]) == 40
        assert int(record["in_progress"]) <= 5
        took_us = [int(o["took_ns"]) / 1000 for o in reader.ring(Table.OPERATIONS)]
        assert int(record["operations"]) * 0.7 < len(took_us) < int(record["operations"]) * 0.8
        assert all(900 <= us < 1000 for us in took_us)


def test_a_killed_jobs_files_go_with_the_next_job(profiler_host: Path, tmp_path: Path) -> None:
    """Files of a process that could not clean up are removed when another one starts; not those of a living one, nor
    of one in another PID namespace that still beats, or does not since it is stopped, but has its control socket. A
    process here with the same number is not that one."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    nobody, elsewhere = 999_999_998, 999_999_999  # no process has them
    TelemetryFile(folder, nobody).beat(seconds_ago=60)
    TelemetryFile(folder, elsewhere)
    TelemetryFile(folder, os.getpid()).beat(seconds_ago=60)  # stopped by a debugger
    (folder / "999999997.telemetry").write_bytes(b"not whole")
    for pid in (nobody, elsewhere, os.getpid()):
        (folder / f"{pid}.sock").touch()
    stopped, dead = f"{os.getpid()}-1", f"{os.getpid()}-2"  # of other namespaces
    for name in (stopped, dead):
        file = TelemetryFile(folder, 999_999_996)
        file.beat(seconds_ago=60)
        file.path.rename(folder / f"{name}.telemetry")
    (folder / f"{dead}.sock").touch()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / f"{stopped}.sock"))
    listener.listen()
    with (
        listener,
        subprocess.Popen(
            [profiler_host, library(), "v7", "1", "30"],
            env={"FABRICPULSE_RUN_DIR": str(tmp_path), "FABRICPULSE_NICS": "none-such"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("mask ")
        left = {path.name for path in folder.iterdir()}
        process.kill()
    living = (elsewhere, os.getpid(), stopped, f"{process.pid}-{own_namespace():x}")
    assert left == {f"{name}.{kind}" for name in living for kind in ("telemetry", "sock")}


@pytest.mark.root
def test_a_full_run_directory_is_named(profiler_host: Path, tmp_path: Path) -> None:
    """No room for telemetry: the job hears why, goes on without, and nothing half made stays behind."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    script = 'mount -t tmpfs -o size=16k none "$1" && "$2" "$3" v7 1 && ls -A "$1/plugin"'
    result = subprocess.run(
        [unshare, "--mount", "bash", "-c", script, "script", tmp_path, profiler_host, library()],
        env=os.environ | {"FABRICPULSE_RUN_DIR": str(tmp_path), "FABRICPULSE_NICS": "none-such"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (said,) = (line for line in result.stderr.splitlines() if "no telemetry" in line)
    assert re.search(
        rf"cannot write {tmp_path}/plugin/\S+\.telemetry: No space left on device; make room", said
    )
    assert ".telemetry" not in result.stdout


@pytest.mark.root
def test_containers_share_the_run_directory(profiler_host: Path, tmp_path: Path) -> None:
    """Each has a process 1; each has its own files, answers for itself, and is seen from outside."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    environment = {"FABRICPULSE_RUN_DIR": str(tmp_path), "FABRICPULSE_NICS": "none-such"}
    container = [unshare, "--pid", "--fork", "--kill-child", "--mount-proc"]
    container += [str(profiler_host), str(library()), "v7", "1", "60"]
    with ExitStack() as stack:
        for number in (1, 2):
            process = stack.enter_context(
                subprocess.Popen(
                    container,
                    env={**environment, "FABRICPULSE_WORKLOAD": f"job-{number}"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("mask ")
        assert len(list((tmp_path / "plugin").glob("1-*.telemetry"))) == 2
        jobs = find_jobs(tmp_path / "plugin")
        assert [job.pid for job in jobs] == [1, 1]
        assert {job.status()["workload"] for job in jobs} == {"job-1", "job-2"}
        folder = TelemetryFolder(tmp_path / "plugin", cleanup_after_s=60)

        def workloads() -> set[str]:
            # What is being written as it is read is read again at the next poll.
            snapshots, dead = folder.poll(monotonic_s())
            assert dead == []
            return {snapshot.workload for snapshot in snapshots}

        wait_for(lambda: workloads() == {"job-1", "job-2"}, 5, "both jobs")
        # Which of our processes they are, too, though each calls itself 1.
        snapshots, _ = folder.poll(monotonic_s())
        known = ProcessTable().facts(snapshots, 0.0)
        assert [known[snapshot.process].start_s is not None for snapshot in snapshots] == [True, True]
    assert len(list((tmp_path / "plugin").glob("1-*.sock"))) == 2  # they were killed
    wait_for(lambda: find_jobs(tmp_path / "plugin") == [], 10, "jobs gone")


@pytest.mark.build
@pytest.mark.slow  # it builds the plugin with the sanitizer
@pytest.mark.timeout(900)
def test_detail_changes_while_collectives_run(tmp_path: Path) -> None:
    """The activation mask is written while NCCL reads it: no data race under ThreadSanitizer."""
    process = subprocess.Popen(
        [
            native("plugin_profiler_host", "thread"),
            native("nccl-net-fabricpulse", "thread"),
            "v7",
            "1000",
            "0",
        ],
        env={
            "FABRICPULSE_RUN_DIR": str(tmp_path),
            "FABRICPULSE_DETAIL": "2",
            "FABRICPULSE_NICS": "none-such",
            "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("mask ")
        (path,) = (tmp_path / "plugin").glob("*.sock")
        changes = 0
        # It ends by itself: the socket is gone then.
        with suppress(ControlError, OSError), ControlClient(path) as client:
            while process.poll() is None:
                change = {"op_id": f"x-{changes}", "generation": changes + 1, "level": 1 + changes % 2}
                assert client.call({"op": "detail", **change})["ok"]
                changes += 1
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    assert changes > 5  # some, however late this process was beside it
    assert "WARNING: ThreadSanitizer" not in said


@pytest.mark.root
def test_a_connection_knows_what_it_carries() -> None:
    """Collective, algorithm, protocol and the ranks at both ends, from the handle that NCCL gives with a request;
    asked seldom, however many requests there are. Attributes follow setNetAttr."""
    program = native("plugin_flow_host")
    with Lab(hosts=1, rails=1) as lab:
        host = lab.host(0)
        process = host.popen(
            [str(program), str(library()), "200"],
            env={"FABRICPULSE_DETAIL": "2", "FABRICPULSE_NICS": "rail*"},
        )
        process.wait_for_output("played ", 60)
        asked = int(process.output().rsplit("played ", 1)[1])
        assert 2 <= asked < 100
        (path,) = (host.run_dir / "plugin").glob("*.telemetry")
        reader = PluginTelemetryReader(path)
        snapshot = reader.read()
        collectives = snapshot.tables[Table.COLLECTIVES]
        for record in snapshot.tables[Table.CONNECTIONS]:
            collective = collectives[int(record["flow_collective"])]
            assert text(collective["function"]) == "AllReduce"
            assert [int(record[f"flow_{name}"]) for name in ("rank", "peer", "channel")] == [1, 3, 5]
            expected = 8 if int(record["direction"]) == 1 else 4  # the receiver was not used since it changed
            assert (int(record["net_operations"]), int(record["net_protocols"])) == (expected, 1)
        reader.close()
        with ControlClient(path.with_suffix(".sock")) as client:
            flows = [connection["flow"] for connection in client.call({"op": "status"})["connections"]]
        expected_flow = {
            "collective": "AllReduce", "algorithm": "RING", "protocol": "LL128", "rank": 1, "peer": 3, "channel": 5
        }  # fmt: skip
        assert flows == [expected_flow] * 2
        process.terminate()
        process.wait(60)
