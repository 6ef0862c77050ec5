"""Writes the series of a host into an exposition, what matters most first: the sample cap cuts from the end."""

import dataclasses

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.qp import metrics
from fabricpulse.qp.aggregate import Aggregator

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
)
_COLLECTIVE_COUNTERS = (
    (metrics.COLLECTIVE_OPERATIONS, "operations", 1.0),
    (metrics.COLLECTIVE_BYTES, "bytes", 1.0),
    (metrics.COLLECTIVE_BUSY, "busy_ns", 1e-9),
)


def expose(aggregator: Aggregator, telemetry_errors: int, exposition: Exposition) -> None:
    """Adds all series."""
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
    exposition.add(metrics.TELEMETRY_ERRORS, (), telemetry_errors)
    exposition.add(metrics.DROPPED_RECORDS, (), aggregator.dropped_records)
    for key, bandwidth in sorted(aggregator.bandwidth().items()):
        exposition.add(metrics.COLLECTIVE_BANDWIDTH, key, bandwidth)
    for key, counters in sorted(aggregator.collectives().items()):
        for spec, name, factor in _COLLECTIVE_COUNTERS:
            exposition.add(spec, key, counters[name] * factor)
    for flow_key, count in sorted(gauges.flows.items()):
        exposition.add(metrics.FLOW_CONNECTIONS, flow_key, count)
    for waiting in gauges.waiting:
        labels = (waiting.workload, waiting.rank, waiting.peer, waiting.peer_rank, waiting.waits_for)
        exposition.add(metrics.REQUEST_WAITING, labels, waiting.age_s)
    for worst in gauges.worst:
        exposition.add(metrics.WORST_OWD, (*worst.pair, worst.qp), worst.owd_s)
        if worst.flow is not None:
            flow = dataclasses.astuple(worst.flow)
            exposition.add(metrics.WORST_FLOW, (*worst.pair, worst.qp, *flow), 1)
    _expose_pairs(aggregator, exposition)


def _expose_pairs(aggregator: Aggregator, exposition: Exposition) -> None:
    devices: dict[tuple[str, str], dict[str, int]] = {}
    for pair, totals in sorted(aggregator.pairs().items()):
        for spec, name in _PAIR_COUNTERS:
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
