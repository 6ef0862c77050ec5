"""Series of a host from the telemetry of its processes: sums never fall, gauges show the present, names stay few."""

import time
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.plugin.telemetry_file import BOUNDS_NS, TelemetryFile

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.recent_delays import RecentDelays
from fabricpulse.plugin_ipc.telemetry import UNKNOWN, PluginTelemetryReader, Table, TelemetrySnapshot
from fabricpulse.qp.aggregate import Aggregator, Pair
from fabricpulse.qp.expose import expose
from fabricpulse.qp.metrics import DELAY_BUCKETS_S, METRICS, RECENT_QUANTILES
from fabricpulse.qp.progress import Heartbeat, RankProgress
from fabricpulse.qp.unmoved import UnmovedRank
from fabricpulse.qp.waiting import MOST_WAITING, Waiting

PAIR = ("train-7", "rail0", "h1", "rail0")


def read(file: TelemetryFile) -> TelemetrySnapshot:
    return PluginTelemetryReader(file.path).read()


@pytest.fixture
def aggregator() -> Aggregator:
    return Aggregator(forget_after_s=300, worst_count=2, worst_owd_s=0.005, waiting_s=1.0)


def rendered(aggregator: Aggregator) -> str:
    exposition = Exposition()
    expose(aggregator, 0, exposition)
    return exposition.render().decode()


def test_lanes_pairs_and_processes_sum_to_one_series(tmp_path: Path, aggregator: Aggregator) -> None:
    """Living lanes, closed lanes and all processes of a job count into (workload, device, peer, peer_device)."""
    first, second = TelemetryFile(tmp_path, 100), TelemetryFile(tmp_path, 200)
    first.lane(0, 0, "h1", sent_bytes=10, ecn_marked=1)
    first.lane(1, 0, "h1", sent_bytes=20)
    first.lane(2, 1, "h1", sent_bytes=1000)
    first.put(Table.PAIRS, 0, state=1, device=0, peer=b"h1", peer_device=b"rail0", sent_bytes=100)
    second.lane(0, 0, "h1", sent_bytes=5)
    aggregator.take([read(first), read(second)], [], 0.0, interval=True)
    totals = aggregator.pairs()
    assert totals[PAIR].counters["sent_bytes"] == 135
    assert totals[PAIR].counters["ecn_marked"] == 1
    assert totals["train-7", "rail1", "h1", "rail1"].counters["sent_bytes"] == 1000


def test_delays_of_the_last_minutes_are_exposed(tmp_path: Path, aggregator: Aggregator) -> None:
    """Median and quick tenth of the chunks since the scrape before; nothing of what was counted before the first."""
    file = TelemetryFile(tmp_path, 100)
    delays = RecentDelays[Pair](DELAY_BUCKETS_S, RECENT_QUANTILES)
    texts = []
    for now_s, counts in ((0.0, {0: 5}), (15.0, {0: 5, 4: 10})):
        file.lane(0, 0, "h1", counts)
        aggregator.take([read(file)], [], now_s, interval=True)
        exposition = Exposition()
        expose(aggregator, 0, exposition, delays=delays, now_s=now_s)
        texts.append(exposition.render().decode())
    assert "fabricpulse_qp_recent_owd_seconds{" not in texts[0]
    bucket = aggregator.pairs()[PAIR].owd.counts.index(10)
    lower = DELAY_BUCKETS_S[bucket - 1]
    labels = 'workload="train-7",device="rail0",peer="h1",peer_device="rail0"'
    for q in (0.1, 0.5, 0.99):
        value = lower + q * (DELAY_BUCKETS_S[bucket] - lower)
        (line,) = [line for line in texts[1].splitlines() if f'{labels},quantile="{q}"' in line]
        assert float(line.split()[1]) == pytest.approx(value)


def test_silent_processes_are_exposed(tmp_path: Path, aggregator: Aggregator) -> None:
    """Beside the age of every heartbeat, those that are old: rules read these alone."""
    file = TelemetryFile(tmp_path, 100)
    beat_s = read(file).heartbeat_mono_ns * 1e-9
    for age_s, exposed in ((1.0, False), (7.5, True)):
        aggregator.take([read(file)], [], beat_s + age_s, interval=True)
        text = rendered(aggregator)
        assert "fabricpulse_plugin_heartbeat_age_seconds{" in text
        assert ("fabricpulse_plugin_silent_seconds{" in text) == exposed


def test_queue_pairs_lack_what_only_sockets_count(tmp_path: Path, aggregator: Aggregator) -> None:
    """Nobody says of a queue pair how much was marked or sent again: no series, rather than 0. Bytes are there."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", transport=2, sent_bytes=10)
    file.lane(1, 1, "h1", transport=1, sent_bytes=20)
    aggregator.take([read(file)], [], 0.0, interval=True)
    text = rendered(aggregator)
    for rail, sockets in (("rail0", False), ("rail1", True)):
        for name in ("ecn_marked", "retransmits"):
            assert (f'fabricpulse_qp_{name}_total{{workload="train-7",device="{rail}"' in text) == sockets
        assert f'fabricpulse_qp_sent_bytes_total{{workload="train-7",device="{rail}"' in text


def test_sums_do_not_fall_when_a_process_ends(tmp_path: Path, aggregator: Aggregator) -> None:
    """A process that is gone, and whose file is gone, stays in the sum as long as its job lives here."""
    first, second = TelemetryFile(tmp_path, 100), TelemetryFile(tmp_path, 200)
    for file in (first, second):
        file.lane(0, 0, "h1", sent_bytes=10)
    aggregator.take([read(first), read(second)], [], 0.0, interval=True)
    first.lane(0, 0, "h1", sent_bytes=12)
    aggregator.take([read(second)], [read(first)], 1.0, interval=True)
    assert aggregator.pairs()[PAIR].counters["sent_bytes"] == 22
    aggregator.take([read(second)], [], 2.0, interval=True)
    assert aggregator.pairs()[PAIR].counters["sent_bytes"] == 22
    assert aggregator.gauges.processes["train-7"] == 1


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path, aggregator: Aggregator) -> None:
    """The start time tells two processes of one pid apart; both count."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", sent_bytes=10)
    aggregator.take([read(file)], [], 0.0, interval=True)
    file.header["pid_start_ticks"] = 77
    file.lane(0, 0, "h1", sent_bytes=3)
    aggregator.take([read(file)], [], 1.0, interval=True)
    assert aggregator.pairs()[PAIR].counters["sent_bytes"] == 13


def test_two_containers_may_have_the_same_pid_and_start(tmp_path: Path, aggregator: Aggregator) -> None:
    """The first processes of two containers that began within one clock tick; both count."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        file = TelemetryFile(tmp_path / str(number), 1)
        file.header["pid_start_ticks"], file.header["start_host_ns"] = 77, number
        file.lane(0, 0, "h1", sent_bytes=10)
        aggregator.take([read(file)], [], float(number), interval=True)
    assert aggregator.pairs()[PAIR].counters["sent_bytes"] == 20


def test_a_finished_job_is_forgotten(tmp_path: Path, aggregator: Aggregator) -> None:
    """After its last process has been gone for the time set, no series of a job is left; gauges go at once."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", sent_bytes=10)
    file.put(Table.COLLECTIVES, 0, state=1, function=b"AllReduce", operations=1, bytes=8, busy_ns=4)
    aggregator.take([read(file)], [], 0.0, interval=True)
    aggregator.take([], [], 299.0, interval=True)
    assert PAIR in aggregator.pairs()
    assert not aggregator.gauges.lane_state
    aggregator.take([], [], 301.0, interval=True)
    assert not aggregator.pairs()
    assert not aggregator.collectives()
    assert "train-7" not in rendered(aggregator)


def test_delays_count_for_the_source_that_holds(tmp_path: Path, aggregator: Aggregator) -> None:
    """Delays on fleet time and half round trips never mix, also when a lane gains or loses fleet time."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", {0: 5}, delay_source=2)
    aggregator.take([read(file)], [], 0.0, interval=True)
    file.lane(0, 0, "h1", {0: 5, 4: 3}, delay_source=1)
    aggregator.take([read(file)], [], 1.0, interval=True)
    total = aggregator.pairs()[PAIR]
    assert sum(total.half_rtt.counts) == 5
    assert sum(total.owd.counts) == 3
    assert total.owd.sum_s == pytest.approx(3 * BOUNDS_NS[4] * 1e-9)
    # 20 us: the third exported bucket ends there.
    assert total.owd.counts[2] == 3


def test_a_lane_without_fleet_time_hides_no_delay_of_another(tmp_path: Path, aggregator: Aggregator) -> None:
    """In an all-to-all two NICs send to one another. What a moment without fleet time has left in the sending lane
    stays there; the receiving lane has one-way delays before and after.
    """
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", {4: 5}, delay_source=1)
    file.lane(1, 0, "h1", {2: 1}, delay_source=2)
    aggregator.take([read(file)], [], 0.0, interval=True)
    file.lane(0, 0, "h1", {4: 8}, delay_source=1)
    aggregator.take([read(file)], [], 1.0, interval=True)
    total = aggregator.pairs()[PAIR]
    assert (sum(total.owd.counts), sum(total.half_rtt.counts)) == (8, 1)
    assert total.owd.sum_s == pytest.approx(8 * BOUNDS_NS[4] * 1e-9)
    assert total.half_rtt.sum_s == pytest.approx(BOUNDS_NS[2] * 1e-9)


def test_closing_a_lane_moves_its_delays_and_counts_none_twice(
    tmp_path: Path, aggregator: Aggregator
) -> None:
    """When a lane's totals move into its pair's record, nothing is added and nothing lost."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", {3: 7}, sent_bytes=70)
    aggregator.take([read(file)], [], 0.0, interval=True)
    delay = file.tables[Table.LANES]["delay"][0]
    file.put(
        Table.PAIRS,
        0,
        state=1,
        device=0,
        peer=b"h1",
        peer_device=b"rail0",
        sent_bytes=70,
        delay=delay,
        delay_source=1,
    )
    file.put(Table.LANES, 0, state=0)
    aggregator.take([read(file)], [], 1.0, interval=True)
    total = aggregator.pairs()[PAIR]
    assert total.counters["sent_bytes"] == 70
    assert sum(total.owd.counts) == 7


def test_lane_state_says_whether_any_lane_carries(tmp_path: Path, aggregator: Aggregator) -> None:
    """1 while a lane over the NIC is up or in slow start, 0 when all are failed or out of service."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", state=5)
    file.lane(1, 0, "h2", state=3)
    file.lane(2, 1, "h1", state=7)
    aggregator.take([read(file)], [], 0.0, interval=False)
    assert aggregator.gauges.lane_state == {("train-7", "rail0"): 1, ("train-7", "rail1"): 0}
    assert aggregator.gauges.lanes["train-7", "rail1", "disabled"] == 1


def test_tcp_as_a_last_resort_hides_no_dead_queue_pair(tmp_path: Path, aggregator: Aggregator) -> None:
    """Lanes of last resort count by their own states; a NIC carries traffic by its queue pairs, or not at all."""
    file = TelemetryFile(tmp_path, 100)
    file.lane(0, 0, "h1", state=5)
    file.lane(1, 0, "h1", state=8, transport=1)
    file.lane(2, 1, "h1", state=9, transport=1)
    aggregator.take([read(file)], [], 0.0, interval=False)
    assert aggregator.gauges.lane_state == {("train-7", "rail0"): 0}
    assert aggregator.gauges.lanes == {
        ("train-7", "rail0", "down"): 1,
        ("train-7", "rail0", "last_resort"): 1,
        ("train-7", "rail1", "spare"): 1,
    }


def test_only_the_worst_few_are_named_and_only_while_bad(tmp_path: Path, aggregator: Aggregator) -> None:
    """A queue pair has a series while its mean delay of the last interval is bad, at most as many as allowed."""
    file = TelemetryFile(tmp_path, 100)
    slow = next(i for i, bound in enumerate(BOUNDS_NS) if bound == 20_000_000)
    for slot in range(4):
        file.lane(slot, 0, f"h{slot + 1}", {0: 1})
    aggregator.take([read(file)], [], 0.0, interval=True)
    for slot in range(3):
        file.lane(slot, 0, f"h{slot + 1}", {0: 1, slow: 10 + slot, slow + 1: slot})
    aggregator.take([read(file)], [], 1.0, interval=True)
    assert [worst.qp for worst in aggregator.gauges.worst] == ["1002", "1001"]
    aggregator.take([read(file)], [], 1.5, interval=False)
    assert len(aggregator.gauges.worst) == 2
    aggregator.take([read(file)], [], 2.0, interval=True)
    assert not aggregator.gauges.worst
    assert "worst" not in rendered(aggregator).replace("# ", "")


def test_what_connections_carry(tmp_path: Path, aggregator: Aggregator) -> None:
    """Golden: connections by collective, algorithm and protocol; the ranks of a GPU pair only with a queue pair that is
    bad. A connection of unknown flow, and one that is closing, count nowhere."""
    file = TelemetryFile(tmp_path, 100)
    for slot, algorithm in enumerate((b"RING", b"TREE")):
        file.put(
            Table.COLLECTIVES, slot, state=1, function=b"AllReduce", algorithm=algorithm, protocol=b"LL128"
        )
    for slot, (state, collective, channel) in enumerate(
        ((1, 0, 5), (1, 1, UNKNOWN), (1, UNKNOWN, 5), (3, 0, 5), (1, 1, 6), (1, 7, 6))
    ):
        file.put(
            Table.CONNECTIONS, slot, state=state, peer=b"h1", flow_collective=collective, flow_rank=1, flow_peer=3,
            flow_channel=channel,
        )  # fmt: skip
    slow = next(i for i, bound in enumerate(BOUNDS_NS) if bound == 20_000_000)
    for slot, connection in enumerate((1, 2)):
        file.lane(slot, 0, f"h{slot + 1}", {0: 1}, connection=connection)
    aggregator.take([read(file)], [], 0.0, interval=True)
    for slot, connection in enumerate((1, 2)):
        file.lane(slot, 0, f"h{slot + 1}", {0: 1, slow: 10}, connection=connection)
    aggregator.take([read(file)], [], 1.0, interval=True)
    assert [line for line in rendered(aggregator).splitlines() if "flow" in line and line[0] != "#"] == [
        'fabricpulse_flow_connections{workload="train-7",collective="AllReduce",algorithm="RING",protocol="LL128"} 1',
        'fabricpulse_flow_connections{workload="train-7",collective="AllReduce",algorithm="TREE",protocol="LL128"} 2',
        'fabricpulse_qp_worst_flow_info{workload="train-7",device="rail0",peer="h1",peer_device="rail0",qp="1000",'
        'collective="AllReduce",algorithm="TREE",protocol="LL128",rank="1",peer_rank="3",channel=""} 1',
    ]
    aggregator.take([], [], 2.0, interval=True)
    assert "flow" not in "".join(line for line in rendered(aggregator).splitlines() if line[0] != "#")


def test_collective_bandwidth_is_that_of_the_last_interval(tmp_path: Path, aggregator: Aggregator) -> None:
    """Payload by duration of the operations that ended since the last interval; gone when there was none."""
    file = TelemetryFile(tmp_path, 100)
    file.put(Table.COLLECTIVES, 0, state=1, function=b"AllReduce", operations=1, bytes=100, busy_ns=10**9)
    aggregator.take([read(file)], [], 0.0, interval=True)
    assert not aggregator.bandwidth()
    file.put(Table.COLLECTIVES, 0, operations=3, bytes=100 + 4000, busy_ns=3 * 10**9)
    aggregator.take([read(file)], [], 1.0, interval=True)
    assert aggregator.bandwidth() == {("train-7", "AllReduce"): 2000.0}
    aggregator.take([read(file)], [], 2.0, interval=True)
    assert not aggregator.bandwidth()


def test_an_old_request_names_who_waits_for_whom(tmp_path: Path, aggregator: Aggregator) -> None:
    """A request without progress for longer than set is shown with rank, peer, peer's rank and what it waits for."""
    file = TelemetryFile(tmp_path, 100, rank=3)
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    posted = int((now - 8) * 1e9)
    file.put(
        Table.CONNECTIONS, 0, state=1, peer=b"h1", peer_rank=4, waits_for=3, oldest_request_mono_ns=posted,
        last_progress_mono_ns=posted, flow_channel=2, missing_bytes=4096,
    )  # fmt: skip
    file.put(
        Table.CONNECTIONS,
        1,
        state=1,
        peer=b"h2",
        peer_rank=5,
        waits_for=2,
        oldest_request_mono_ns=int(now * 1e9),
    )
    aggregator.take([read(file)], [], now, interval=False)
    (waiting,) = aggregator.gauges.waiting
    assert (waiting.rank, waiting.peer, waiting.peer_rank, waiting.waits_for) == ("3", "h1", "4", "peer_send")
    assert waiting.age_s == pytest.approx(8, abs=0.1)
    missing = [
        line for line in rendered(aggregator).splitlines() if line.startswith("fabricpulse_request_missing")
    ]
    assert missing == [
        'fabricpulse_request_missing_bytes{workload="train-7",rank="3",peer="h1",peer_rank="4",'
        'waits_for="peer_send",channel="2",uid="0"} 4096'
    ]
    file.put(Table.CONNECTIONS, 0, missing_bytes=0, flow_channel=UNKNOWN)
    aggregator.take([read(file)], [], now, interval=False)
    assert "request_missing_bytes{" not in rendered(aggregator)


def test_no_rank_that_waits_is_left_out(tmp_path: Path, aggregator: Aggregator) -> None:
    """On a host of 8 ranks that all wait each is shown, whatever the limit of the worst: one that is not would look as
    if it made the others wait. Of one user's processes those that wait longest, so that a flood has an end."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    snapshots = []
    for rank in range(MOST_WAITING + 6):
        file = TelemetryFile(tmp_path, 100 + rank, rank=rank)
        for slot in range(6):
            posted = int((now - 500 + rank - slot) * 1e9)
            file.put(
                Table.CONNECTIONS, slot, state=1, peer=b"h1", peer_rank=slot, waits_for=3,
                oldest_request_mono_ns=posted, last_progress_mono_ns=posted,
            )  # fmt: skip
        snapshots.append(TelemetrySnapshot(**(vars(read(file)) | {"owner": 1000})))
    aggregator.take(snapshots[:8], [], now, interval=False)
    assert {w.owner for w in aggregator.gauges.waiting} == {1000}
    assert {w.rank for w in aggregator.gauges.waiting} == {str(rank) for rank in range(8)}
    # The oldest few of each, oldest first.
    assert len(aggregator.gauges.waiting) == 8 * 4
    assert (aggregator.gauges.waiting[0].rank, aggregator.gauges.waiting[0].peer_rank) == ("0", "5")
    aggregator.take(snapshots, [], now, interval=False)
    assert {w.rank for w in aggregator.gauges.waiting} == {str(rank) for rank in range(MOST_WAITING)}


def test_no_series_comes_twice_and_each_is_in_the_catalogue(tmp_path: Path, aggregator: Aggregator) -> None:
    """Two processes that show the same thing give one series; every family is declared."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    files = [TelemetryFile(tmp_path, pid) for pid in (100, 200)]
    for file in files:
        file.lane(0, 0, "h1", {0: 1}, queue_pair=5)
        file.put(
            Table.CONNECTIONS, 0, state=1, peer=b"h1", waits_for=3, peer_rank=1, oldest_request_mono_ns=1,
            last_progress_mono_ns=1,
        )  # fmt: skip
    aggregator.take([read(file) for file in files], [], now, interval=True)
    slow = next(i for i, bound in enumerate(BOUNDS_NS) if bound == 20_000_000)
    for file in files:
        file.lane(0, 0, "h1", {0: 1, slow: 4}, queue_pair=5)
    aggregator.take([read(file) for file in files], [], now, interval=True)
    lines = [line for line in rendered(aggregator).splitlines() if not line.startswith("#")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert sum("request_waiting" in line for line in series) == 1
    assert sum("worst_owd" in line for line in series) == 1
    names = {spec.name for spec in METRICS}
    for line in series:
        name = line.partition("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert name in names or name.startswith("fabricpulse_exporter_")


def test_random_lives_never_make_a_counter_fall(tmp_path: Path, aggregator: Aggregator) -> None:
    """Lanes grow, close and are replaced, processes come and go: the series only rises and loses nothing."""
    random = np.random.default_rng(7)
    files: dict[int, TelemetryFile] = {}
    truth = last = 0
    keeper = TelemetryFile(tmp_path, 1)
    for step in range(200):
        action = random.integers(4)
        if action == 0 and len(files) < 5:
            pid = 100 + step
            files[pid] = TelemetryFile(tmp_path, pid)
        elif action == 1 and files:
            files.pop(int(random.choice(list(files)))).path.unlink()
        for file in files.values():
            lane = file.tables[Table.LANES][0]
            grown = int(random.integers(100))
            truth += grown
            file.lane(0, 0, "h1", sent_bytes=int(lane["sent_bytes"]) + grown)
            if random.random() < 0.2:
                pair = file.tables[Table.PAIRS][0]
                moved = int(pair["sent_bytes"]) + int(file.tables[Table.LANES][0]["sent_bytes"])
                file.put(
                    Table.PAIRS,
                    0,
                    state=1,
                    device=0,
                    peer=b"h1",
                    peer_device=b"rail0",
                    sent_bytes=moved,
                    delay_source=1,
                )
                file.put(Table.LANES, 0, sent_bytes=0, generation=int(lane["generation"]) + 1)
        aggregator.take([read(file) for file in (keeper, *files.values())], [], float(step), interval=True)
        total = aggregator.pairs()[PAIR].counters["sent_bytes"] if PAIR in aggregator.pairs() else 0
        assert total >= last
        last = total
    assert last == truth


def test_ranks_of_two_users_with_the_same_names(aggregator: Aggregator) -> None:
    """Each has his series."""
    aggregator.gauges.unmoved = [
        UnmovedRank("job", "a1", 0, "inside", 6, s, owner) for owner, s in ((7, 9.0), (8, 6.0))
    ]
    lines = [
        line
        for line in rendered(aggregator).splitlines()
        if line.startswith("fabricpulse_rank_stalled_seconds{")
    ]
    assert sorted(line.split("uid=")[1] for line in lines) == ['"7"} 9', '"8"} 6']


def test_what_two_users_call_alike_is_no_series_twice(aggregator: Aggregator) -> None:
    """A rank of the same communicator, and processes in containers that have the same number."""
    aggregator.gauges.ranks = [RankProgress("job", "a1", 0, n, 0, 0, owner) for n, owner in ((6, 7), (9, 8))]
    aggregator.gauges.heartbeats = [
        Heartbeat("job", "0", 1, s, owner) for s, owner in ((0.2, 7), (4.0, 8), (0.1, 9))
    ]
    aggregator.gauges.waiting = [
        Waiting("job", "0", "h1", "1", "peer_send", 9.0, "", 4, owner) for owner in (7, 8)
    ]
    lines = [line for line in rendered(aggregator).splitlines() if not line.startswith("#")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert 'fabricpulse_plugin_silent_seconds{workload="job",rank="0",pid="1"} 4' in lines
    assert sum(line.startswith("fabricpulse_request_waiting_seconds{") for line in lines) == 2
