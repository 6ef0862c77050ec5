"""Which metric each statistic of a driver is (ethtool), and in which unit.

Names as the drivers write them: mlx5 Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst,
bnxt_en drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c, ice .../intel/ice/ice_ethtool.c, hns3
.../hisilicon/hns3/hns3pf/hclge_main.c.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic import ethtool_counters as c


@dataclass(frozen=True)
class MappedStatistic:
    """What an ethtool statistic means.

    extra : values of the labels after device. divisor : what brings it to the metric's unit.
    """

    spec: MetricSpec
    extra: tuple[str, ...] = ()
    divisor: int = 1


_MICROSECONDS = 1_000_000
_PLAIN_STATISTICS: Mapping[str, MappedStatistic] = {
    "rx_pause_ctrl_phy": MappedStatistic(c.GLOBAL_PAUSE_RECEIVED),
    "tx_pause_ctrl_phy": MappedStatistic(c.GLOBAL_PAUSE_TRANSMITTED),
    "rx_global_pause_duration": MappedStatistic(c.GLOBAL_PAUSE_RECEIVED_SECONDS, divisor=_MICROSECONDS),
    "tx_global_pause_duration": MappedStatistic(c.GLOBAL_PAUSE_TRANSMITTED_SECONDS, divisor=_MICROSECONDS),
    "tx_pause_storm_warning_events": MappedStatistic(c.PAUSE_STORM_WARNINGS),
    "tx_pause_storm_error_events": MappedStatistic(c.PAUSE_STORM_ERRORS),
    "link_down_events_phy": MappedStatistic(c.PHY_LINK_DOWN),
    "rx_corrected_bits_phy": MappedStatistic(c.PHY_CORRECTED_BITS),
    "rx_bits_phy": MappedStatistic(c.PHY_RECEIVED_BITS),
    "rx_pcs_symbol_err_phy": MappedStatistic(c.PHY_PCS_SYMBOL_ERRORS),
    "rx_symbol_err_phy": MappedStatistic(c.PHY_SYMBOL_ERRORS),
    "rx_crc_errors_phy": MappedStatistic(c.PHY_CRC_ERRORS),
    "rx_discards_phy": MappedStatistic(c.PHY_DISCARDS),
    "module_high_temp": MappedStatistic(c.MODULE_HIGH_TEMPERATURE),
    "module_unplug": MappedStatistic(c.MODULE_UNPLUGGED),
    "module_bus_stuck": MappedStatistic(c.MODULE_BUS_STUCK),
    "outbound_pci_stalled_rd": MappedStatistic(c.PCI_STALLED_READS, divisor=100),
    "outbound_pci_stalled_wr": MappedStatistic(c.PCI_STALLED_WRITES, divisor=100),
    "outbound_pci_stalled_rd_events": MappedStatistic(c.PCI_STALLED_READ_SECONDS),
    "outbound_pci_stalled_wr_events": MappedStatistic(c.PCI_STALLED_WRITE_SECONDS),
    "outbound_pci_buffer_overflow": MappedStatistic(c.PCI_BUFFER_OVERFLOWS),
    "rx_pci_signal_integrity": MappedStatistic(c.PCI_SIGNAL_RECEIVE),
    "tx_pci_signal_integrity": MappedStatistic(c.PCI_SIGNAL_TRANSMIT),
}
# bnxt_en, hns3, ice: their own words for the same things. mlx5 is the first of each list where it has one.
_OTHER_STATISTICS: Mapping[str, MappedStatistic] = {
    "rx_pause_frames": MappedStatistic(c.GLOBAL_PAUSE_RECEIVED),
    "tx_pause_frames": MappedStatistic(c.GLOBAL_PAUSE_TRANSMITTED),
    "mac_rx_mac_pause_num": MappedStatistic(c.GLOBAL_PAUSE_RECEIVED),
    "mac_tx_mac_pause_num": MappedStatistic(c.GLOBAL_PAUSE_TRANSMITTED),
    "link_down_events": MappedStatistic(c.PHY_LINK_DOWN),
    "rx_fec_corrected_blocks": MappedStatistic(c.FEC_CORRECTED),
    "rx_fec_uncorrectable_blocks": MappedStatistic(c.FEC_UNCORRECTABLE),
    "rx_bits": MappedStatistic(c.PHY_RECEIVED_BITS),
    "rx_corrected_bits": MappedStatistic(c.PHY_CORRECTED_BITS),
    "rx_pcs_symbol_err": MappedStatistic(c.PHY_PCS_SYMBOL_ERRORS),
}
_PRIORITY_STATISTICS: tuple[tuple[re.Pattern[str], MetricSpec, int], ...] = tuple(
    (re.compile(pattern), spec, divisor)
    for pattern, spec, divisor in (
        # mlx5
        (r"rx_prio([0-7])_pause", c.PFC_RECEIVED, 1),
        (r"tx_prio([0-7])_pause", c.PFC_TRANSMITTED, 1),
        (r"rx_prio([0-7])_pause_duration", c.PFC_RECEIVED_SECONDS, _MICROSECONDS),
        (r"tx_prio([0-7])_pause_duration", c.PFC_TRANSMITTED_SECONDS, _MICROSECONDS),
        (r"rx_prio([0-7])_pause_transition", c.PFC_RECEIVED_TRANSITIONS, 1),
        (r"tx_prio([0-7])_pause_transition", c.PFC_TRANSMITTED_TRANSITIONS, 1),
        (r"rx_prio([0-7])_discards", c.PRIORITY_DISCARDS, 1),
        (r"rx_prio([0-7])_buf_discard", c.PRIORITY_DISCARDS, 1),
        (r"rx_prio([0-7])_cong_discard", c.PRIORITY_CONGESTION_DISCARDS, 1),
        (r"rx_prio([0-7])_marked", c.PRIORITY_MARKED, 1),
        (r"rx_prio([0-7])_bytes", c.PRIORITY_RECEIVED_BYTES, 1),
        (r"tx_prio([0-7])_bytes", c.PRIORITY_TRANSMITTED_BYTES, 1),
        # bnxt_en
        (r"rx_pfc_ena_frames_pri([0-7])", c.PFC_RECEIVED, 1),
        (r"tx_pfc_ena_frames_pri([0-7])", c.PFC_TRANSMITTED, 1),
        (r"pfc_pri([0-7])_rx_duration_us", c.PFC_RECEIVED_SECONDS, _MICROSECONDS),
        (r"pfc_pri([0-7])_tx_duration_us", c.PFC_TRANSMITTED_SECONDS, _MICROSECONDS),
        (r"pfc_pri([0-7])_rx_transitions", c.PFC_RECEIVED_TRANSITIONS, 1),
        (r"pfc_pri([0-7])_tx_transitions", c.PFC_TRANSMITTED_TRANSITIONS, 1),
        (r"rx_bytes_pri([0-7])", c.PRIORITY_RECEIVED_BYTES, 1),
        (r"tx_bytes_pri([0-7])", c.PRIORITY_TRANSMITTED_BYTES, 1),
        # ice
        (r"rx_priority_([0-7])_xoff\.nic", c.PFC_RECEIVED, 1),
        (r"tx_priority_([0-7])_xoff\.nic", c.PFC_TRANSMITTED, 1),
        # hns3
        (r"mac_rx_pfc_pri([0-7])_pkt_num", c.PFC_RECEIVED, 1),
        (r"mac_tx_pfc_pri([0-7])_pkt_num", c.PFC_TRANSMITTED, 1),
    )
)
_LANE_STATISTIC = re.compile(r"rx_err_lane_(\d)_phy")


def statistic(name: str) -> MappedStatistic | None:
    """What an ethtool statistic means, None if no metric stands for it."""
    found = _PLAIN_STATISTICS.get(name) or _OTHER_STATISTICS.get(name)
    if found is not None:
        return found
    lane = _LANE_STATISTIC.fullmatch(name)
    if lane:
        return MappedStatistic(c.PHY_LANE_ERRORS, (lane[1],))
    for pattern, spec, divisor in _PRIORITY_STATISTICS:
        match = pattern.fullmatch(name)
        if match:
            return MappedStatistic(spec, (match[1],), divisor)
    return None
