"""The folder of telemetry is everybody's: whatever a local user puts there costs its own series and nobody else's."""

import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.fixtures.plugin import telemetry_file
from tests.fixtures.plugin.telemetry_file import TelemetryFile

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.shm.mapping import ChangedFileError, LayoutError
from fabricpulse.core.subordinate_ids import SubordinateIds
from fabricpulse.plugin_ipc import table_file, telemetry, telemetry_folder
from fabricpulse.plugin_ipc.telemetry import PluginTelemetryReader, Table, TelemetrySnapshot
from fabricpulse.plugin_ipc.telemetry_folder import TelemetryFolder, monotonic_s
from fabricpulse.qp import aggregate
from fabricpulse.qp.aggregate import Aggregator
from fabricpulse.qp.expose import SAMPLES_PER_PAIR, expose
from fabricpulse.qp.process_facts import Users

GOOD, BAD = 4_000_001, 4_000_002
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make files of other users")


def good_file(folder: Path) -> TelemetryFile:
    file = TelemetryFile(folder, GOOD, "good")
    file.lane(0, 0, "h1", sent_bytes=7)
    return file


def workloads(folder: TelemetryFolder) -> list[str]:
    living, _ = folder.poll(monotonic_s())
    return [snapshot.workload for snapshot in living]


class Clock(SimpleNamespace):
    """Stands for the module `time`: sleeping takes no time and is counted."""

    def __init__(self) -> None:
        super().__init__(now=1000.0, slept=0)

    def monotonic(self) -> float:
        return float(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(table_file, "time", fake)
    monkeypatch.setattr(telemetry_folder, "time", fake)
    return fake


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind", ["fifo", "symlink", "directory", "socket", "two names", "sparse giant", "empty"]
)
def test_what_is_no_telemetry_file_is_logged_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    """A FIFO would be waited for, a link would lead elsewhere: an error each poll, and the good file is read."""
    good_file(tmp_path)
    path = tmp_path / "bad.telemetry"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "symlink":
        path.symlink_to(tmp_path / f"{GOOD}.telemetry")
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, 0o140644)
    elif kind == "two names":
        other = TelemetryFile(tmp_path / "..", BAD, "linked")
        path.hardlink_to(other.path)
    elif kind == "sparse giant":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.touch()
    folder = TelemetryFolder(tmp_path, 60)
    assert workloads(folder) == ["good"]
    assert workloads(folder) == ["good"]
    assert folder.errors == 2


def test_absurdly_many_records_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is some series before any cap: a file with more than a host can have is none of the plugin's."""
    good_file(tmp_path)
    monkeypatch.setattr(telemetry_file, "CAPACITY", telemetry_file.CAPACITY | {Table.DEVICES: 129})
    TelemetryFile(tmp_path, BAD, "bad")
    folder = TelemetryFolder(tmp_path, 60)
    assert workloads(folder) == ["good"]
    assert folder.errors == 1


@pytest.mark.parametrize("length", [0, 100, telemetry.HEADER.itemsize, telemetry.HEADER.itemsize + 500])
def test_a_file_that_is_truncated_under_the_reader(tmp_path: Path, length: int) -> None:
    """A mapping of it would be SIGBUS, the end of the daemon; a copy is short, which is an error of this file."""
    good_file(tmp_path)
    bad = TelemetryFile(tmp_path, BAD, "bad")
    bad.lane(0, 0, "h1")
    folder = TelemetryFolder(tmp_path, 60)
    assert workloads(folder) == ["good", "bad"]
    reader = PluginTelemetryReader(bad.path)
    os.truncate(bad.path, length)
    with pytest.raises(ChangedFileError, match="truncated"):
        reader.read()
    assert workloads(folder) == ["good"]
    assert folder.errors == 1
    assert workloads(folder) == ["good"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("capacity", 2**32 - 1), ("capacity", 1), ("record_size", 8), ("offset", 2**64 - 8), ("offset", 3)],
)
def test_tables_that_move_under_the_reader(tmp_path: Path, field: str, value: int) -> None:
    """Sizes and places are those that were checked; others are an error of this file, at this poll and at the next."""
    good_file(tmp_path)
    bad = TelemetryFile(tmp_path, BAD, "bad")
    folder = TelemetryFolder(tmp_path, 60)
    assert workloads(folder) == ["good", "bad"]
    reader = PluginTelemetryReader(bad.path)
    before = int(bad.header["tables"][field][0][Table.LANES])
    bad.header["tables"][field][0][Table.LANES] = value
    with pytest.raises(LayoutError, match="have moved"):
        reader.read()
    assert workloads(folder) == ["good"]
    bad.header["tables"][field][0][Table.LANES] = before
    assert workloads(folder) == ["good", "bad"]


def test_files_in_the_middle_of_a_change_are_waited_for_once(tmp_path: Path, clock: Clock) -> None:
    """However many there are: all together for one patience, and at the next poll not at all."""
    good_file(tmp_path)
    for number in range(20):
        file = TelemetryFile(tmp_path, number, "torn")
        file.lane(0, 0, "h1")
        if number % 2:
            file.header["tables_sequence"] = 5
        else:
            file.tables[Table.LANES]["sequence"][0] = 5
    folder = TelemetryFolder(tmp_path, 60)
    began = clock.now
    living, dead = folder.poll(monotonic_of_machine())
    assert [snapshot.workload for snapshot in (*living, *dead)] == ["good"]
    assert clock.now - began < telemetry_folder.POLL_PATIENCE_S + 0.01
    slept = clock.slept
    living, dead = folder.poll(monotonic_of_machine())
    assert [snapshot.workload for snapshot in (*living, *dead)] == ["good"]
    assert clock.slept == slept
    assert folder.errors == 40


def monotonic_of_machine() -> float:
    """The clock of the heartbeats, whatever `time` is replaced by."""
    return float(Path("/proc/uptime").read_text().split()[0])


def test_a_heartbeat_of_the_future_proves_nothing(tmp_path: Path) -> None:
    """Or a file without a process would stay for ever."""
    bad = TelemetryFile(tmp_path, BAD, "bad")
    bad.header["heartbeat_mono_ns"] = 2**63
    folder = TelemetryFolder(tmp_path, 0)
    living, dead = folder.poll(monotonic_s())
    assert (len(living), len(dead)) == (0, 1)
    assert not bad.path.exists()


@as_root
def test_a_made_up_file_does_not_remove_the_socket_of_another_user(tmp_path: Path) -> None:
    """What is left behind is removed with its owner's files alone."""
    bad = TelemetryFile(tmp_path, BAD, "bad")
    bad.beat(seconds_ago=60)
    os.chown(bad.path, 1234, 1234)
    socket = tmp_path / f"{BAD}.sock"
    socket.touch()
    TelemetryFolder(tmp_path, 0).poll(monotonic_s())
    assert not bad.path.exists()
    assert socket.exists()


@as_root
def test_a_user_with_very_many_files_crowds_out_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many files of each user are read, those that are known already first; the others are counted."""
    monkeypatch.setattr(telemetry_folder, "FILES_PER_OWNER", 3)
    good_file(tmp_path)
    folder = TelemetryFolder(tmp_path, 60)
    files = [TelemetryFile(tmp_path, 5_000_000 + number, f"w{number}") for number in range(3)]
    for file in files:
        os.chown(file.path, 1234, 1234)
    assert sorted(workloads(folder)) == ["good", "w0", "w1", "w2"]
    for number in range(10):
        os.chown(TelemetryFile(tmp_path, number, "crowd").path, 1234, 1234)
    assert sorted(workloads(folder)) == ["good", "w0", "w1", "w2"]
    assert folder.errors == 10


def snapshot(folder: Path, owner: int, pid: int, workload: str, peers: list[str]) -> TelemetrySnapshot:
    file = TelemetryFile(folder, pid, workload)
    for slot, peer in enumerate(peers):
        file.lane(slot, 0, peer, sent_bytes=1)
    read = PluginTelemetryReader(file.path).read()
    file.path.unlink()
    return telemetry.TelemetrySnapshot(**(vars(read) | {"owner": owner}))


def test_totals_of_one_user_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are new at each poll do not fill our memory, nor do they cost another user's job anything."""
    monkeypatch.setattr(aggregate, "KEPT_PER_OWNER", 5)
    aggregator = Aggregator(10.0, 5, 1.0, 1.0)
    for now in range(8):
        flood = snapshot(tmp_path, 1234, BAD, "flood", [f"h{now}-{i}" for i in range(4)])
        honest = snapshot(tmp_path, 0, GOOD, "honest", ["h1", "h2"])
        aggregator.take([flood, honest], [], float(now), interval=True)
    found = aggregator.pairs()
    assert sum(pair[0] == "flood" for pair in found) == 5
    assert sum(pair[0] == "honest" for pair in found) == 2
    assert aggregator.dropped_records == 3 + 6 * 4
    # Once the flood is forgotten there is room again.
    aggregator.take([honest], [], 100.0, interval=True)
    aggregator.take([snapshot(tmp_path, 1234, BAD, "later", ["h1"])], [], 101.0, interval=True)
    assert sum(pair[0] == "later" for pair in aggregator.pairs()) == 1


def test_ranks_in_rootless_containers_are_of_one_job(tmp_path: Path) -> None:
    """Their files have ids that /etc/subuid gives to a user, on each host others: the user's own is compared. A user
    without an account here, and ids that the file does not have, stay as they are.
    """
    subuid = tmp_path / "subuid"
    subuid.write_text("ann:100000:65536\nbob:165536:65536\ngone:300000:65536\n")
    users = Users(SubordinateIds(subuid), {"ann": 1000, "bob": 1001}.get)
    aggregator = Aggregator(10.0, 5, 1.0, 0.0, user_of=users.of)
    owners = {100_000: 1000, 100_999: 1000, 1000: 1000, 165_536: 1001, 300_000: 300_000, 900_000: 900_000}
    files = [snapshot(tmp_path, owner, BAD + n, f"job{n}", []) for n, owner in enumerate(owners)]
    aggregator.take(files, [], 5.0, interval=True)
    assert [h.owner for h in aggregator.gauges.heartbeats] == list(owners.values())
    # The kernel's own id goes on telling processes apart: nobody poses as another's by it.
    assert {s.process[0] for s in files} == set(owners)


def test_a_flood_of_pairs_costs_no_other_user_a_series(tmp_path: Path) -> None:
    """The sample cap is shared: smaller users are whole, the largest one gets what is left."""
    aggregator = Aggregator(10.0, 5, 1.0, 1.0)
    flood = [snapshot(tmp_path, 1234, BAD + i, f"a{i}", [f"h{i}-{n}" for n in range(30)]) for i in range(20)]
    honest = snapshot(tmp_path, 0, GOOD, "z-honest", [f"h{n}" for n in range(10)])
    aggregator.take([*flood, honest], [], 0.0, interval=True)
    cap = 40 * SAMPLES_PER_PAIR
    exposition = Exposition(cap)
    expose(aggregator, 0, exposition, cap)
    text = exposition.render().decode()
    for metric in ("fabricpulse_qp_sent_bytes_total", "fabricpulse_qp_retransmits_total"):
        assert text.count(f'{metric}{{workload="z-honest"') == 10
        assert text.count(f"{metric}{{") == 40
    # Alone, a user has the whole cap, cut from the end.
    alone = Aggregator(10.0, 5, 1.0, 1.0)
    alone.take(flood, [], 0.0, interval=True)
    exposition = Exposition(cap)
    expose(alone, 0, exposition, cap)
    assert exposition.render().decode().count("fabricpulse_qp_sent_bytes_total{") == 600


def test_nobody_speaks_for_the_process_of_another_user(tmp_path: Path) -> None:
    """A file with the numbers of another user's process is a process of its own: nothing is overwritten."""
    mine = snapshot(tmp_path, 1000, GOOD, "job", ["h1"])
    theirs = snapshot(tmp_path, 1234, GOOD, "fake", [])
    assert mine.pid_start_ticks == theirs.pid_start_ticks
    aggregator = Aggregator(10.0, 5, 1.0, 1.0)
    aggregator.take([mine], [], 0.0, interval=True)
    aggregator.take([mine, theirs], [], 1.0, interval=True)
    assert [totals.counters["sent_bytes"] for totals in aggregator.pairs().values()] == [1]


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_garbage_in_any_place(tmp_path: Path, clock: Clock) -> None:
    """Random bytes anywhere in a file, also under the reader: never an exception, and the good file's series stay."""
    good = good_file(tmp_path)
    expected = (
        b'fabricpulse_qp_sent_bytes_total{workload="good",device="rail0",peer="h1",peer_device="rail0"} 7\n'
    )
    for seed in range(200):
        rng = np.random.default_rng(seed)
        bad = TelemetryFile(tmp_path, BAD, "bad")
        for slot in range(3):
            bad.lane(slot, slot % 2, f"h{slot}", {3: 4}, sent_bytes=100, connection=slot)
            bad.put(Table.CONNECTIONS, slot, state=1, direction=1, oldest_request_mono_ns=1, waits_for=2)
            bad.put(Table.COLLECTIVES, slot, state=1, function=b"AllReduce", operations=3, bytes=9, busy_ns=1)
        folder = TelemetryFolder(tmp_path, 60)
        aggregator = Aggregator(10.0, 5, 1e-9, 0.1)
        for poll in range(3):
            good.beat()
            living, dead = folder.poll(monotonic_of_machine())
            aggregator.take(living, dead, 100.0 + poll, interval=True)
            exposition = Exposition()
            expose(aggregator, folder.errors, exposition)
            assert expected in exposition.render(), f"seed {seed}"
            places = rng.integers(0, len(bad._map), 60)
            bad._map[places] = rng.integers(0, 256, 60, dtype=np.uint8)
            if random.Random(seed + poll).random() < 0.2:
                os.truncate(bad.path, int(rng.integers(0, len(bad._map))))
                break
        folder.close()
        bad.path.unlink(missing_ok=True)
