"""Metrics of ethtool statistics: pause, PHY, FEC, module events, PCIe stalls."""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.metric_spec import LANE, LINK, PRIORITY, counter, gauge

PFC_RECEIVED = counter(
    "pfc_pause_frames_received",
    "Priority flow control pause frames received: the other side stops us (ethtool rx_prioP_pause, bnxt rx_pfc_ena_frames_priP).",
    PRIORITY,
)
PFC_TRANSMITTED = counter(
    "pfc_pause_frames_transmitted",
    "Priority flow control pause frames transmitted: we stop the other side (ethtool tx_prioP_pause, bnxt tx_pfc_ena_frames_priP).",
    PRIORITY,
)
PFC_RECEIVED_SECONDS = counter(
    "pfc_pause_received_seconds",
    "Time for which a received pause has stopped sending (ethtool rx_prioP_pause_duration, microseconds converted).",
    PRIORITY,
)
PFC_TRANSMITTED_SECONDS = counter(
    "pfc_pause_transmitted_seconds",
    "Time for which a transmitted pause has stopped the other side (ethtool tx_prioP_pause_duration, microseconds converted).",
    PRIORITY,
)
PFC_RECEIVED_TRANSITIONS = counter(
    "pfc_pause_received_transitions",
    "Changes from running to paused because of received pauses (ethtool rx_prioP_pause_transition).",
    PRIORITY,
)
PFC_TRANSMITTED_TRANSITIONS = counter(
    "pfc_pause_transmitted_transitions",
    "Changes from running to paused that this NIC's pauses have caused at the other side (ethtool tx_prioP_pause_transition).",
    PRIORITY,
)
PRIORITY_DISCARDS = counter(
    "priority_discards",
    "Packets dropped for lack of buffer space of the priority (ethtool rx_prioP_discards, rx_prioP_buf_discard).",
    PRIORITY,
)
PRIORITY_CONGESTION_DISCARDS = counter(
    "priority_congestion_discards",
    "Packets of the priority dropped by early detection (ethtool rx_prioP_cong_discard).",
    PRIORITY,
)
PRIORITY_MARKED = counter(
    "priority_ecn_marked",
    "Packets that the NIC marked because its own buffer filled (ethtool rx_prioP_marked).",
    PRIORITY,
)
PRIORITY_RECEIVED_BYTES = counter(
    "priority_received_bytes", "Octets received per priority (ethtool rx_prioP_bytes).", PRIORITY
)
PRIORITY_TRANSMITTED_BYTES = counter(
    "priority_transmitted_bytes", "Octets transmitted per priority (ethtool tx_prioP_bytes).", PRIORITY
)
GLOBAL_PAUSE_RECEIVED = counter(
    "global_pause_frames_received",
    "Link-level (802.3x) pause frames received (ethtool rx_pause_ctrl_phy, rx_global_pause, or pause statistics by netlink).",
    LINK,
)
GLOBAL_PAUSE_TRANSMITTED = counter(
    "global_pause_frames_transmitted",
    "Link-level (802.3x) pause frames transmitted (ethtool tx_pause_ctrl_phy, tx_global_pause, or pause statistics by netlink).",
    LINK,
)
GLOBAL_PAUSE_RECEIVED_SECONDS = counter(
    "global_pause_received_seconds",
    "Time for which link-level pause has stopped sending (ethtool rx_global_pause_duration, microseconds converted).",
    LINK,
)
GLOBAL_PAUSE_TRANSMITTED_SECONDS = counter(
    "global_pause_transmitted_seconds",
    "Time for which our link-level pause has stopped the other side (ethtool tx_global_pause_duration, microseconds converted).",
    LINK,
)
PAUSE_STORM_WARNINGS = counter(
    "pause_storm_warning_events",
    "Times the NIC paused its peer for longer than the warning threshold (ethtool tx_pause_storm_warning_events).",
    LINK,
)
PAUSE_STORM_ERRORS = counter(
    "pause_storm_error_events",
    "Times the NIC paused its peer for so long that it gave pause up (ethtool tx_pause_storm_error_events).",
    LINK,
)
PHY_LINK_DOWN = counter(
    "phy_link_down_events",
    "Link losses counted by the PHY, with those too short for the carrier (ethtool link_down_events_phy).",
    LINK,
)
PHY_CORRECTED_BITS = counter(
    "phy_corrected_bits", "Bits corrected by FEC (ethtool rx_corrected_bits_phy).", LINK
)
PHY_RECEIVED_BITS = counter(
    "phy_received_bits",
    "Bits received by the PHY: the denominator of a bit error ratio (ethtool rx_bits_phy).",
    LINK,
)
PHY_PCS_SYMBOL_ERRORS = counter(
    "phy_pcs_symbol_errors",
    "Symbols that FEC could not correct or 8b/10b errors (ethtool rx_pcs_symbol_err_phy).",
    LINK,
)
PHY_SYMBOL_ERRORS = counter(
    "phy_symbol_errors", "Coding errors at the PHY (ethtool rx_symbol_err_phy).", LINK
)
PHY_CRC_ERRORS = counter(
    "phy_crc_errors", "Frames with a wrong CRC at the PHY (ethtool rx_crc_errors_phy).", LINK
)
PHY_DISCARDS = counter(
    "phy_discards", "Frames dropped at the PHY for lack of buffers (ethtool rx_discards_phy).", LINK
)
PHY_LANE_ERRORS = counter(
    "phy_lane_errors",
    "Errors per physical lane before FEC (ethtool rx_err_lane_L_phy).",
    LANE,
)
FEC_CORRECTED = counter(
    "fec_corrected_blocks", "FEC code words corrected (ethtool FEC statistics by netlink).", LINK
)
FEC_UNCORRECTABLE = counter(
    "fec_uncorrectable_blocks", "FEC code words lost (ethtool FEC statistics by netlink).", LINK
)
FEC_CORRECTED_BITS = counter(
    "fec_corrected_bits", "Bits corrected by FEC (ethtool FEC statistics by netlink).", LINK
)
MODULE_HIGH_TEMPERATURE = counter(
    "module_high_temperature_events", "Times the module grew too hot (ethtool module_high_temp).", LINK
)
MODULE_UNPLUGGED = counter(
    "module_unplug_events", "Times the module was pulled out (ethtool module_unplug).", LINK
)
MODULE_BUS_STUCK = counter(
    "module_bus_stuck_events", "Times the module's two-wire bus was stuck (ethtool module_bus_stuck).", LINK
)
PCI_STALLED_READS = gauge(
    "pcie_outbound_stalled_reads_ratio",
    "Share of the last second in which reads of host memory were stalled (ethtool outbound_pci_stalled_rd, percent converted).",
    LINK,
)
PCI_STALLED_WRITES = gauge(
    "pcie_outbound_stalled_writes_ratio",
    "Share of the last second in which writes to host memory were stalled (ethtool outbound_pci_stalled_wr, percent converted).",
    LINK,
)
PCI_STALLED_READ_SECONDS = counter(
    "pcie_outbound_stalled_read_events",
    "Seconds in which the NIC's reads of host memory were stalled for more than 30 % (ethtool outbound_pci_stalled_rd_events).",
    LINK,
)
PCI_STALLED_WRITE_SECONDS = counter(
    "pcie_outbound_stalled_write_events",
    "Seconds in which the NIC's writes to host memory were stalled for more than 30 % (ethtool outbound_pci_stalled_wr_events).",
    LINK,
)
PCI_BUFFER_OVERFLOWS = counter(
    "pcie_outbound_buffer_overflows",
    "Packets dropped because host memory was too slow (ethtool outbound_pci_buffer_overflow).",
    LINK,
)
PCI_SIGNAL_RECEIVE = counter(
    "pcie_receive_signal_errors",
    "PCIe signal integrity errors towards the NIC (ethtool rx_pci_signal_integrity).",
    LINK,
)
PCI_SIGNAL_TRANSMIT = counter(
    "pcie_transmit_signal_errors",
    "PCIe signal integrity errors towards the host (ethtool tx_pci_signal_integrity).",
    LINK,
)

METRICS: tuple[MetricSpec, ...] = tuple(
    spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)
)
