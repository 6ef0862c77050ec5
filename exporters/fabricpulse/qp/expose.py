"""Writes the series of a host into an exposition, what matters most first: the sample cap cuts from the end."""

import dataclasses
from itertools import islice

from fabricpulse.core.metrics.exposition import DEFAULT_SAMPLE_CAP, Exposition, format_value, render_labels
from fabricpulse.core.metrics.recent_delays import RecentDelays
from fabricpulse.qp import metrics
from fabricpulse.qp.aggregate import SOCKET_COUNTERS, Aggregator, Pair, PairTotals
from fabricpulse.qp.metrics import DELAY_BUCKETS_S, RECENT_QUANTILES
from fabricpulse.qp.progress import Heartbeat, RankProgress
from fabricpulse.qp.waiting import largest

_PAIR_COUNTERS = (
    (metrics.SENT_BYTES, "sent_bytes"),
    (metrics.RECEIVED_BYTES, "received_bytes"),
    (metrics.ECN_MARKED, "ecn_marked"),
    (metrics.RETRANSMITS, "retransmits"),
    (metrics.RESENT_CHUNKS, "resent_chunks"),
)
_DEVICE_COUNTERS = (
    (metrics.LANE_FAILOVERS, "failovers"),
    (metrics.LANE_STALLS, "stalls"),
    (metrics.LANE_REPATHS, "repaths"),
    (metrics.LANE_CORRUPT_FRAMES, "corrupt_frames"),
)
_COLLECTIVE_COUNTERS = (
    (metrics.COLLECTIVE_OPERATIONS, "operations", 1.0),
    (metrics.COLLECTIVE_BYTES, "bytes", 1.0),
    (metrics.COLLECTIVE_BUSY, "busy_ns", 1e-9),
)


_OF = {q: f'quantile="{q:g}"' for q in RECENT_QUANTILES}
# A process that is alive gives a sign of life each second.
SILENT_S = 2.0
# Samples of a pair: its counters, quantiles and two histograms.
SAMPLES_PER_PAIR = len(_PAIR_COUNTERS) + len(RECENT_QUANTILES) + 2 * (len(DELAY_BUCKETS_S) + 3)


def expose(
    aggregator: Aggregator,
    telemetry_errors: int,
    exposition: Exposition,
    sample_cap: int = DEFAULT_SAMPLE_CAP,
    delays: RecentDelays[Pair] | None = None,
    now_s: float = 0.0,
) -> None:
    """Adds all series. Where several users' pairs do not fit under the cap, those of the largest one are cut first.

    delays : keeps what the delays were lately from scrape to scrape. now_s : CLOCK_MONOTONIC in seconds.
    """
    exposition.declare(metrics.METRICS)
    gauges = aggregator.gauges
    for device, carries in sorted(gauges.lane_state.items()):
        exposition.add(metrics.LANE_STATE, device, carries)
    for lane_key, count in sorted(gauges.lanes.items()):
        exposition.add(metrics.LANES, lane_key, count)
    for device, count in sorted(gauges.avoided.items()):
        exposition.add(metrics.NIC_AVOIDED, device, count)
    for workload, count in sorted(gauges.processes.items()):
        exposition.add(metrics.PROCESSES, (workload,), count)
    for workload, count in sorted(gauges.dead.items()):
        exposition.add(metrics.DEAD_PROCESSES, (workload,), count)
    exposition.add(metrics.TELEMETRY_ERRORS, (), telemetry_errors)
    exposition.add(metrics.DROPPED_RECORDS, (), aggregator.dropped_records)
    for key, bandwidth in sorted(aggregator.bandwidth().items()):
        exposition.add(metrics.COLLECTIVE_BANDWIDTH, key, bandwidth)
    for key, counters in sorted(aggregator.collectives().items()):
        for spec, name, factor in _COLLECTIVE_COUNTERS:
            exposition.add(spec, key, counters[name] * factor)
    # Users may use the same names: one of those that would be one series is shown.
    ranks = largest(gauges.ranks, _rank_key, lambda r: r.operations, len(gauges.ranks))
    for rank in sorted(ranks, key=_rank_key):
        rank_key = (rank.workload, rank.communicator, str(rank.rank))
        exposition.add(metrics.RANK_OPERATIONS, rank_key, rank.operations)
        exposition.add(metrics.RANK_BUSY, rank_key, rank.busy_ns * 1e-9)
        exposition.add(metrics.RANK_IN_PROGRESS, rank_key, rank.in_progress)
    for unmoved in gauges.unmoved:
        rank_key, uid = (unmoved.workload, unmoved.communicator, str(unmoved.rank)), str(unmoved.owner)
        exposition.add(metrics.RANK_UNMOVED, (*rank_key, unmoved.state, uid), unmoved.operations)
        if unmoved.state == "inside":
            exposition.add(metrics.RANK_STALLED, (*rank_key, uid), unmoved.for_s)
    # Of processes in containers, which may have the same number, the one that is silent for longest.
    beats = largest(gauges.heartbeats, _process_key, lambda h: h.age_s, len(gauges.heartbeats))
    for beat in sorted(beats, key=_process_key):
        process = (beat.workload, beat.rank, str(beat.pid))
        exposition.add(metrics.HEARTBEAT_AGE, process, beat.age_s)
        if beat.age_s > SILENT_S:
            exposition.add(metrics.PLUGIN_SILENT, process, beat.age_s)
    for flow_key, count in sorted(gauges.flows.items()):
        exposition.add(metrics.FLOW_CONNECTIONS, flow_key, count)
    for waiting in gauges.waiting:
        labels = (waiting.workload, waiting.rank, waiting.peer, waiting.peer_rank, waiting.waits_for)
        uid = str(waiting.owner)
        exposition.add(metrics.REQUEST_WAITING, (*labels, uid), waiting.age_s)
        if waiting.missing_bytes:
            exposition.add(metrics.REQUEST_MISSING, (*labels, waiting.channel, uid), waiting.missing_bytes)
    for waited, seconds in sorted(aggregator.waited.ranks().items()):
        exposition.add(metrics.RANK_WAITED, waited, seconds)
    for waited_for, seconds in sorted(aggregator.waited.peers().items()):
        exposition.add(metrics.PEER_WAITED, waited_for, seconds)
    for worst in gauges.worst:
        exposition.add(metrics.WORST_OWD, (*worst.pair, worst.qp), worst.owd_s)
        if worst.flow is not None:
            flow = dataclasses.astuple(worst.flow)
            exposition.add(metrics.WORST_FLOW, (*worst.pair, worst.qp, *flow), 1)
    most = sample_cap // SAMPLES_PER_PAIR
    pairs = fair_pairs(aggregator, most)
    _expose_pairs(pairs, exposition)
    if delays is not None:
        # Not of more pairs than have room: what is kept of each has a bound.
        lately = delays.take(now_s, {pair: totals.owd.counts for pair, totals in islice(pairs.items(), most)})
        lines = [
            f"{metrics.RECENT_OWD.name}{render_labels(metrics.RECENT_OWD, pair, _OF[q])} {format_value(value)}\n"
            for pair, found in lately.items()
            for q, value in zip(delays.quantiles, found, strict=True)
        ]
        exposition.add_block(metrics.RECENT_OWD, "".join(lines), len(lines))


def _rank_key(rank: RankProgress) -> tuple[str, str, int]:
    return (rank.workload, rank.communicator, rank.rank)


def _process_key(beat: Heartbeat) -> tuple[str, str, int]:
    return (beat.workload, beat.rank, beat.pid)


def fair_pairs(aggregator: Aggregator, count: int) -> dict[Pair, PairTotals]:
    """The pairs to export, in order.

    All of them while there is one user, whom the sample cap cuts from the end. Of several, as many of each as leave
    room for the others, `count` together: one user's flood costs no other user a series.
    """
    pairs, owners = aggregator.pairs(), aggregator.owners()
    by_owner: dict[int, list[Pair]] = {}
    for pair in sorted(pairs):
        by_owner.setdefault(owners[pair], []).append(pair)
    if len(by_owner) < 2 or len(pairs) <= count:
        return dict(sorted(pairs.items()))
    taken: list[Pair] = []
    smallest_first = sorted(by_owner.values(), key=len)
    for number, own in enumerate(smallest_first):
        share = (count - len(taken)) // (len(smallest_first) - number)
        taken += own[:share]
    return {pair: pairs[pair] for pair in sorted(taken)}


def _expose_pairs(pairs: dict[Pair, PairTotals], exposition: Exposition) -> None:
    devices: dict[tuple[str, str], dict[str, int]] = {}
    for pair, totals in pairs.items():
        for spec, name in _PAIR_COUNTERS:
            if name in totals.counters or name not in SOCKET_COUNTERS:
                exposition.add(spec, pair, totals.counters[name])
        sums = devices.setdefault(pair[:2], {})
        for _, name in _DEVICE_COUNTERS:
            sums[name] = sums.get(name, 0) + totals.counters[name]
        exposition.add_histogram(metrics.OWD, pair, totals.owd.counts, totals.owd.sum_s)
        if any(totals.half_rtt.counts):
            exposition.add_histogram(metrics.HALF_RTT, pair, totals.half_rtt.counts, totals.half_rtt.sum_s)
    for device, sums in devices.items():
        for spec, name in _DEVICE_COUNTERS:
            exposition.add(spec, device, sums[name])
