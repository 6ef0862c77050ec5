"""Series of programs with the verbs interposer."""

from pathlib import Path

from tests.fixtures.plugin.verbs_file import VerbsFile
from tests.fixtures.plugin.verbs_samples import read_samples

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.plugin_ipc.telemetry_folder import VerbsFolder
from fabricpulse.plugin_ipc.verbs import VerbsTable, VerbsTelemetryReader
from fabricpulse.qp import metrics
from fabricpulse.qp.verbs_totals import VerbsTotals

PAIR = 'workload="train-7",device="rail0",rdma_device="mlx5_0",port="1",peer_gid="10.9.0.2"'
SECOND = 1_000_000_000


def exposed(totals: VerbsTotals) -> dict[str, float]:
    """Sample -> value."""
    exposition = Exposition(10_000)
    exposition.declare(metrics.METRICS)
    totals.expose(exposition, 0)
    lines = exposition.render().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def test_a_pair_is_the_sum_of_what_is_and_what_was(tmp_path: Path) -> None:
    """Queue pairs to one peer and those that are gone: one series of each counter."""
    file = VerbsFile(tmp_path)
    file.queue_pair(0, "10.9.0.2", posts=[3, 1], bytes=[300, 50], messages_sent=1, delay=(4, 8000))
    file.queue_pair(1, "10.9.0.2", posts=[2], bytes=[20], received_bytes=7, messages_received=2)
    file.total(0, "10.9.0.2", posts=[10], bytes=[1000], errors=[0] * 12 + [1])
    totals = VerbsTotals(300)
    totals.take([VerbsTelemetryReader(file.path).read()], [], 1.0, SECOND)
    found = exposed(totals)
    assert found[f'fabricpulse_verbs_posts_total{{{PAIR},opcode="write"}}'] == 15
    assert found[f'fabricpulse_verbs_sent_bytes_total{{{PAIR},opcode="write"}}'] == 1320
    assert found[f'fabricpulse_verbs_sent_bytes_total{{{PAIR},opcode="write_imm"}}'] == 50
    assert found[f"fabricpulse_verbs_received_bytes_total{{{PAIR}}}"] == 7
    assert found[f'fabricpulse_verbs_messages_total{{{PAIR},direction="received"}}'] == 2
    assert found[f'fabricpulse_verbs_completion_errors_total{{{PAIR},status="retry_exc"}}'] == 1
    assert found[f'fabricpulse_verbs_completion_errors_total{{{PAIR},status="wr_flush"}}'] == 0
    assert found[f"fabricpulse_verbs_completion_seconds_count{{{PAIR}}}"] == 4
    assert found[f"fabricpulse_verbs_queue_pairs{{{PAIR}}}"] == 2


def test_a_queue_pair_that_waits_is_seen_while_it_waits(tmp_path: Path) -> None:
    """The age of signaled work without any completion; 0 once nothing is outstanding."""
    file = VerbsFile(tmp_path)
    file.queue_pair(0, "10.9.0.2", posts=[1])
    reader = VerbsTelemetryReader(file.path)
    totals = VerbsTotals(300)
    pair = file.tables[VerbsTable.QUEUE_PAIRS][0]
    pair["outstanding"] = pair["outstanding_signaled"] = 1
    pair["oldest_post_raw_ns"] = 5 * SECOND
    totals.take([reader.read()], [], 1.0, 8 * SECOND)
    assert exposed(totals)[f"fabricpulse_verbs_waiting_seconds{{{PAIR}}}"] == 3
    pair["outstanding_signaled"] = 0
    totals.take([reader.read()], [], 2.0, 9 * SECOND)
    assert exposed(totals)[f"fabricpulse_verbs_waiting_seconds{{{PAIR}}}"] == 0


def test_what_a_dead_process_counted_stays_until_its_job_is_gone(tmp_path: Path) -> None:
    """No sum falls while a job lives; without any process of it the job is forgotten."""
    file = VerbsFile(tmp_path)
    file.queue_pair(0, "10.9.0.2", posts=[5])
    snapshot = VerbsTelemetryReader(file.path).read()
    totals = VerbsTotals(300)
    totals.take([snapshot], [], 1.0, SECOND)
    totals.take([], [snapshot], 2.0, SECOND)
    totals.take([], [], 3.0, SECOND)
    name = f'fabricpulse_verbs_posts_total{{{PAIR},opcode="write"}}'
    assert exposed(totals)[name] == 5
    totals.take([], [], 302.0, SECOND)
    assert name not in exposed(totals)


def test_what_is_not_connected_has_no_series_yet(tmp_path: Path) -> None:
    """Receives are posted before the peer is known: their series would move."""
    file = VerbsFile(tmp_path)
    file.queue_pair(0, "", receives_posted=5)
    totals = VerbsTotals(300)
    totals.take([VerbsTelemetryReader(file.path).read()], [], 1.0, SECOND)
    assert not [name for name in exposed(totals) if "peer" in name]


def test_what_passes_by_is_said(tmp_path: Path) -> None:
    """Posts on unknown queue pairs, and ways around the library."""
    file = VerbsFile(tmp_path)
    file.header["unseen_posts"], file.header["bypass"] = 3, 2
    totals = VerbsTotals(300)
    totals.take([VerbsTelemetryReader(file.path).read()], [], 1.0, SECOND)
    found = exposed(totals)
    assert found['fabricpulse_verbs_unseen_total{workload="train-7",kind="posts"}'] == 3
    assert found['fabricpulse_verbs_bypass{workload="train-7",kind="devx"}'] == 1
    assert found['fabricpulse_verbs_bypass{workload="train-7",kind="direct"}'] == 0


def test_the_lock_says_who_lives(tmp_path: Path) -> None:
    """A file without its writer is dead, and removed after a while; broken ones cost an error."""
    file = VerbsFile(tmp_path)
    (tmp_path / "200.verbs").write_bytes(b"x" * 5000)
    folder = VerbsFolder(tmp_path, cleanup_after_s=60)
    living, dead = folder.poll(1.0)
    assert (len(living), len(dead), folder.errors) == (1, 0, 1)
    file.end()
    living, dead = folder.poll(2.0)
    assert (len(living), len(dead)) == (0, 1)
    folder.poll(63.0)
    assert not file.path.exists()
    folder.close()


def test_samples_are_read_once_and_losses_are_counted(tmp_path: Path) -> None:
    """From an index on; what was written over before it was read is counted."""
    file = VerbsFile(tmp_path)
    for number in range(40):
        file.sample(message=number, direction=1, raw_ns=number)
    reader = VerbsTelemetryReader(file.path)
    samples, following, lost = read_samples(reader, 0)
    assert list(samples["message"]) == list(range(8, 40))
    assert (following, lost) == (40, 8)
    file.sample(message=40)
    samples, following, lost = read_samples(reader, following)
    assert (list(samples["message"]), following, lost) == ([40], 41, 0)
