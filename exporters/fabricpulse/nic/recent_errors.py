"""Which counters of a NIC indicate a fault, and how much they have grown lately (recent_growth.py)."""

import re
from collections.abc import Iterator, Mapping, Sequence

from fabricpulse.core.metrics.exposition import format_value
from fabricpulse.nic.metric_spec import PORT, gauge
from fabricpulse.nic.recent_growth import Key, RecentGrowth

_LABELS = (*PORT, "priority", "kind")
RECENT_INCREASE = gauge(
    "recent_increase",
    "By how much an error or congestion counter (fabricpulse_nic_COUNTER_total) has grown within the last 15 minutes, "
    "since the exporter started at most. A series exists only while it has grown within 20. Its other labels are the "
    "counter's.",
    (*_LABELS, "counter"),
)
RECENT_RATE = gauge(
    "recent_rate",
    "How much an error or congestion counter has grown a second, over the last 2 minutes. Where "
    "fabricpulse_nic_recent_increase has a series; of received_packets where ecn_marked_packets_received has one.",
    (*_LABELS, "counter"),
)

COUNTERS = (
    "out_of_buffer_drops",
    "rnr_nak_packets_sent",
    "phy_discards",
    "priority_discards",
    "pcie_outbound_buffer_overflows",
    "pfc_pause_transmitted_seconds",
    "pfc_pause_received_seconds",
    "pfc_pause_frames_received",
    "global_pause_received_seconds",
    "pause_storm_warning_events",
    "pause_storm_error_events",
    "cnp_packets_handled",
    "ecn_marked_packets_received",
    "transport_retries_exceeded",
    "rnr_retries_exceeded",
    "fec_uncorrectable_blocks",
    "phy_pcs_symbol_errors",
    "symbol_errors",
    "link_crc_errors",
    "phy_crc_errors",
    "icrc_errors",
    "link_error_recovery",
    "link_downed",
    "gid_index_moves",
    "kernel_messages",
    "transmit_wait_ticks",
)
# Always grows: exposed beside the counter of which it is the whole.
_WHOLE = {"received_packets": "ecn_marked_packets_received"}
_FAMILIES = {f"fabricpulse_nic_{name}_total": name for name in (*COUNTERS, *_WHOLE)}
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Line = tuple[str, str]


class RecentErrors:
    """Takes in what the exporter is about to export."""

    def __init__(self) -> None:
        self._growth = RecentGrowth()

    def take(self, now: float, lines: Mapping[str, Sequence[str]]) -> None:
        """The rendered samples of one scrape by family. now : seconds of one clock."""
        self._growth.take(now, dict(_parsed(lines)))

    def lines(self) -> Iterator[Line]:
        """Family and line of each sample."""
        grown = self._growth.recent()
        marked = {(_WHOLE_OF.get(key[-1]), key[0]) for key in grown}
        for key, growth in grown.items():
            counter, device = key[-1], key[0]
            if counter in _WHOLE:
                if (counter, device) in marked:
                    yield RECENT_RATE.name, _line(RECENT_RATE.name, key, growth.rate)
                continue
            yield RECENT_INCREASE.name, _line(RECENT_INCREASE.name, key, growth.increase)
            yield RECENT_RATE.name, _line(RECENT_RATE.name, key, growth.rate)


_WHOLE_OF = {part: whole for whole, part in _WHOLE.items()}


def _line(family: str, key: Key, value: float) -> str:
    # The labels are escaped as they were; empty ones are none to Prometheus.
    labels = ",".join(f'{name}="{text}"' for name, text in zip((*_LABELS, "counter"), key, strict=True))
    return f"{family}{{{labels}}} {format_value(value)}\n"


def _parsed(lines: Mapping[str, Sequence[str]]) -> Iterator[tuple[Key, float]]:
    for family, name in _FAMILIES.items():
        for line in lines.get(family, ()):
            start, _, value = line.rpartition(" ")
            labels = dict(_LABEL.findall(start))
            yield (*(labels.get(label, "") for label in _LABELS), name), float(value)
