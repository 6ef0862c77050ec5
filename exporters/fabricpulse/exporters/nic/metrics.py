"""Metrics of the NIC exporter.

Labels: IB-side metrics have `device` (RDMA device, `mlx5_0`) and `port`; link-side metrics have `device`, `port` and
`netdev`, because a bond has several links behind one port. A netdev without an RDMA device is its own `device`.
"""

from fabricpulse.core.metrics.catalogue import MetricSpec

PORT = ("device", "port")
LINK = ("device", "port", "netdev")
DEVICE = ("device",)


def _counter(stem: str, help_text: str, labels: tuple[str, ...] = PORT) -> MetricSpec:
    return MetricSpec(f"fabricpulse_nic_{stem}_total", "counter", help_text, labels)


def _gauge(stem: str, help_text: str, labels: tuple[str, ...] = PORT) -> MetricSpec:
    return MetricSpec(f"fabricpulse_nic_{stem}", "gauge", help_text, labels)


# -- identity and state -------------------------------------------------------------------------------------------

INFO = _gauge(
    "info",
    "Always 1; the labels describe the RDMA device (sysfs fw_ver, board_id, hca_type, node_guid, node_type; driver and "
    "PCI address from the device link).",
    ("device", "driver", "firmware", "board", "hca", "node_guid", "node_type", "pci_address"),
)
PORT_INFO = _gauge(
    "port_info",
    "Always 1; joins an RDMA port to its netdev and link layer (ports/N/link_layer, gid_attrs/ndevs).",
    ("device", "port", "netdev", "link_layer", "network"),
)
DEVICE_FAILURES = _gauge(
    "device_read_failures",
    "Files of the device that could not be read or understood in this scrape; absent files and values that the driver "
    "declines (EINVAL, N/A) do not count.",
    DEVICE,
)
READ_FAILURES = _counter(
    "read_failures",
    "Files that could not be read or understood since the exporter started, by reason.",
    ("reason",),
)
PORT_STATE = _gauge(
    "port_state", "Logical state from ports/N/state: 1 down, 2 init, 3 armed, 4 active, 5 active deferred."
)
PORT_UP = _gauge("port_up", "1 if ports/N/state is ACTIVE, else 0.")
PORT_PHYSICAL_STATE = _gauge(
    "port_physical_state",
    "Physical state from ports/N/phys_state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovery, 7 test.",
)
PORT_RATE = _gauge(
    "port_rate_bytes_per_second", "Signalling rate from ports/N/rate, bits converted to bytes."
)
PORT_LID = _gauge("port_lid", "Local identifier from ports/N/lid; InfiniBand only.")
PORT_SM_LID = _gauge("port_subnet_manager_lid", "Subnet manager's LID from ports/N/sm_lid; InfiniBand only.")
PKEY_ENTRIES = _gauge("pkey_entries", "Partition keys in ports/N/pkeys that are not 0.")
PKEY_DEFAULT = _gauge(
    "pkey_first", "Partition key 0 as a number, from ports/N/pkeys/0: what RDMA CM uses by default."
)
LIFESPAN = _gauge(
    "hw_counters_lifespan_seconds",
    "How long the driver keeps a hw_counters value before it asks the hardware again (hw_counters/lifespan, "
    "milliseconds converted).",
)
RAW = _gauge(
    "raw_value",
    "A file of counters/ or hw_counters/ under the driver's own name and in its own unit; only with --nic.raw-counters.",
    ("device", "port", "directory", "name"),
)

# -- ports/N/counters ---------------------------------------------------------------------------------------------

VL15_DROPPED = _counter(
    "vl15_dropped", "Subnet management packets dropped for lack of buffers (counters/VL15_dropped)."
)
BUFFER_OVERRUNS = _counter(
    "excessive_buffer_overrun_errors",
    "Consecutive flow-control update periods with overruns (counters/excessive_buffer_overrun_errors).",
)
LINK_DOWNED = _counter(
    "link_downed",
    "Times the port's link training has failed and the link went down (counters/link_downed); InfiniBand. On RoCE "
    "rely on carrier_down_changes and phy_link_down_events.",
)
LINK_ERROR_RECOVERY = _counter(
    "link_error_recovery", "Successful link error recoveries (counters/link_error_recovery)."
)
LINK_INTEGRITY = _counter(
    "local_link_integrity_errors",
    "Times local physical errors passed their threshold (counters/local_link_integrity_errors).",
)
MULTICAST_RECEIVED = _counter(
    "multicast_packets_received", "Multicast packets received (counters/multicast_rcv_packets)."
)
MULTICAST_TRANSMITTED = _counter(
    "multicast_packets_transmitted", "Multicast packets transmitted (counters/multicast_xmit_packets)."
)
UNICAST_RECEIVED = _counter(
    "unicast_packets_received", "Unicast packets received (counters/unicast_rcv_packets)."
)
UNICAST_TRANSMITTED = _counter(
    "unicast_packets_transmitted", "Unicast packets transmitted (counters/unicast_xmit_packets)."
)
RECEIVED_BYTES = _counter(
    "received_bytes",
    "Octets received by RDMA traffic (counters/port_rcv_data, 4-byte words converted; irdma, bnxt_re, efa, rxe: the "
    "driver's byte counters in hw_counters).",
)
TRANSMITTED_BYTES = _counter(
    "transmitted_bytes",
    "Octets transmitted by RDMA traffic (counters/port_xmit_data, 4-byte words converted; irdma, bnxt_re, efa, rxe: "
    "the driver's byte counters in hw_counters).",
)
RECEIVED_PACKETS = _counter(
    "received_packets",
    "Packets received by RDMA traffic (counters/port_rcv_packets or the driver's hw_counters).",
)
TRANSMITTED_PACKETS = _counter(
    "transmitted_packets",
    "Packets transmitted by RDMA traffic (counters/port_xmit_packets or the driver's hw_counters).",
)
RECEIVE_ERRORS = _counter(
    "receive_errors", "Packets received with an error (counters/port_rcv_errors; bnxt_re rx_roce_errors)."
)
RECEIVE_CONSTRAINT = _counter(
    "receive_constraint_errors",
    "Packets received that the switch or partition rules discard (counters/port_rcv_constraint_errors).",
)
RECEIVE_REMOTE_PHYSICAL = _counter(
    "receive_remote_physical_errors",
    "Packets received marked bad by an earlier hop (counters/port_rcv_remote_physical_errors).",
)
RECEIVE_SWITCH_RELAY = _counter(
    "receive_switch_relay_errors",
    "Packets that could not be relayed (counters/port_rcv_switch_relay_errors).",
)
RECEIVE_DISCARDS = _counter(
    "receive_discards", "RDMA packets dropped on receive (bnxt_re rx_roce_discards, efa rx_drops)."
)
TRANSMIT_CONSTRAINT = _counter(
    "transmit_constraint_errors",
    "Packets not transmitted by partition rules (counters/port_xmit_constraint_errors).",
)
TRANSMIT_DISCARDS = _counter(
    "transmit_discards",
    "Outbound packets dropped because the port is down or congested (counters/port_xmit_discards).",
)
TRANSMIT_ERRORS = _counter(
    "transmit_errors", "RDMA packets that could not be sent (bnxt_re tx_roce_errors, rxe send_err)."
)
TRANSMIT_WAIT = _counter(
    "transmit_wait_ticks",
    "Ticks with data to send and no credits or bandwidth (counters/port_xmit_wait, ticks of the device).",
)
SYMBOL_ERRORS = _counter("symbol_errors", "Minor link errors on a lane (counters/symbol_error).")

# -- ports/N/hw_counters ------------------------------------------------------------------------------------------

ECN_RECEIVED = _counter(
    "ecn_marked_packets_received",
    "RoCE packets received with the congestion mark (mlx5 np_ecn_marked_roce_packets).",
)
CNP_SENT = _counter("cnp_packets_sent", "Congestion notification packets sent (mlx5 np_cnp_sent).")
CNP_HANDLED = _counter(
    "cnp_packets_handled", "Congestion notification packets that slowed a sender down (mlx5 rp_cnp_handled)."
)
CNP_IGNORED = _counter(
    "cnp_packets_ignored", "Congestion notification packets ignored (mlx5 rp_cnp_ignored)."
)
OUT_OF_SEQUENCE = _counter(
    "out_of_sequence_packets_received", "Packets received out of sequence (mlx5 out_of_sequence)."
)
SEQUENCE_ERRORS = _counter(
    "packet_sequence_errors", "NAKs for a sequence error received (mlx5 packet_seq_err)."
)
IMPLIED_NAK = _counter(
    "implied_nak_sequence_errors",
    "ACKs that implied the loss of a read or atomic response (mlx5 implied_nak_seq_err).",
)
ACK_TIMEOUTS = _counter(
    "ack_timeouts", "Acknowledgement timers of queue pairs that expired (mlx5 local_ack_timeout_err)."
)
RETRANSMITS = _counter(
    "retransmits",
    "Packets or requests sent again (bnxt_re to_retransmits, irdma tcpRetransSegs, rxe completer_retry_err).",
)
ADAPTIVE_RETRANSMITS = _counter(
    "adaptive_retransmits", "Adaptive retransmissions for RoCE (mlx5 roce_adp_retrans)."
)
ADAPTIVE_TIMEOUTS = _counter(
    "adaptive_retransmit_timeouts", "Timeouts because of adaptive retransmission (mlx5 roce_adp_retrans_to)."
)
SLOW_RESTARTS = _counter("slow_restarts", "RoCE slow restarts used (mlx5 roce_slow_restart).")
SLOW_RESTART_CNPS = _counter(
    "slow_restart_cnps", "CNPs that slow restart has made (mlx5 roce_slow_restart_cnps)."
)
SLOW_RESTART_TRANSITIONS = _counter(
    "slow_restart_transitions", "Changes into the state of slow restart (mlx5 roce_slow_restart_trans)."
)
DUPLICATE_REQUESTS = _counter("duplicate_requests", "Requests received twice (mlx5 duplicate_request).")
RNR_NAKS = _counter(
    "rnr_nak_packets_received",
    "Receiver-not-ready NAKs received; the retry limit was not exceeded, so this is recoverable (mlx5 rnr_nak_retry_err).",
)
RNR_SENT = _counter("rnr_nak_packets_sent", "Receiver-not-ready NAKs sent (rxe send_rnr_err, hns wqe_rnr).")
TRANSPORT_RETRIES_EXCEEDED = _counter(
    "transport_retries_exceeded",
    "Queue pairs ended because the transport retry limit was exceeded (mlx5 req_transport_retries_exceeded).",
)
RNR_RETRIES_EXCEEDED = _counter(
    "rnr_retries_exceeded",
    "Queue pairs ended because the RNR retry limit was exceeded (mlx5 req_rnr_retries_exceeded).",
)
OUT_OF_BUFFER = _counter(
    "out_of_buffer_drops", "Drops because no receive work request was posted (mlx5 out_of_buffer)."
)
ICRC_ERRORS = _counter("icrc_errors", "RoCE packets with a wrong invariant CRC (mlx5 rx_icrc_encapsulated).")
REQUESTER_CQE_ERRORS = _counter(
    "requester_completion_errors", "Requester completions in error (mlx5 req_cqe_error)."
)
REQUESTER_CQE_FLUSHED = _counter(
    "requester_completions_flushed", "Requester completions flushed in error (mlx5 req_cqe_flush_error)."
)
RESPONDER_CQE_ERRORS = _counter(
    "responder_completion_errors", "Responder completions in error (mlx5 resp_cqe_error)."
)
RESPONDER_CQE_FLUSHED = _counter(
    "responder_completions_flushed", "Responder completions flushed in error (mlx5 resp_cqe_flush_error)."
)
REQUESTER_REMOTE_ACCESS = _counter(
    "requester_remote_access_errors", "Remote access errors at the requester (mlx5 req_remote_access_errors)."
)
REQUESTER_REMOTE_INVALID = _counter(
    "requester_remote_invalid_requests",
    "Remote invalid request errors at the requester (mlx5 req_remote_invalid_request).",
)
RESPONDER_LOCAL_LENGTH = _counter(
    "responder_local_length_errors", "Local length errors at the responder (mlx5 resp_local_length_error)."
)
RESPONDER_REMOTE_ACCESS = _counter(
    "responder_remote_access_errors",
    "Remote access errors at the responder (mlx5 resp_remote_access_errors).",
)
ATOMIC_REQUESTS = _counter(
    "atomic_requests_received", "RDMA atomic requests received (mlx5 rx_atomic_requests)."
)
READ_REQUESTS = _counter("read_requests_received", "RDMA read requests received (mlx5 rx_read_requests).")
WRITE_REQUESTS = _counter("write_requests_received", "RDMA write requests received (mlx5 rx_write_requests).")
SEND_REQUESTS = _counter(
    "send_requests_received",
    "RDMA send requests received (bnxt_re rx_send_requests, irdma InRdmaSends, efa recv_wrs).",
)
READ_REQUESTS_SENT = _counter(
    "read_requests_sent", "RDMA read requests sent (bnxt_re tx_read_requests, efa rdma_read_wrs)."
)
WRITE_REQUESTS_SENT = _counter(
    "write_requests_sent", "RDMA write requests sent (bnxt_re tx_write_requests, efa rdma_write_wrs)."
)
SEND_REQUESTS_SENT = _counter(
    "send_requests_sent", "RDMA send requests sent (bnxt_re tx_send_requests, efa send_wrs)."
)
ATOMIC_REQUESTS_SENT = _counter(
    "atomic_requests_sent", "RDMA atomic requests sent (bnxt_re tx_atomic_requests)."
)
DCT_CONNECTS = _counter(
    "dct_connects_received", "Connection requests for dynamically connected transport (mlx5 rx_dct_connect)."
)
UNRECOVERABLE = _counter(
    "unrecoverable_errors", "Errors that ended a queue pair (bnxt_re unrecoverable_err)."
)
WORK_REQUEST_ERRORS = _counter(
    "work_request_errors",
    "RDMA read and write work requests that failed (efa rdma_read_wr_err, rdma_write_wr_err).",
)
COMMAND_ERRORS = _counter("command_errors", "Administrative commands that failed (efa cmds_err).")

# -- class/net ----------------------------------------------------------------------------------------------------

LINK_CARRIER = _gauge(
    "link_carrier",
    "1 if the netdev has a carrier (class/net/IF/carrier); absent while it is administratively down.",
    LINK,
)
LINK_OPERATIONAL = _gauge("link_operational", "1 if class/net/IF/operstate is up, else 0.", LINK)
LINK_ADMIN_UP = _gauge(
    "link_admin_up", "1 if the netdev is administratively up (IFF_UP of class/net/IF/flags).", LINK
)
LINK_SPEED = _gauge(
    "link_speed_bytes_per_second",
    "Speed from class/net/IF/speed, Mb/s converted to bytes per second; absent when the driver does not know it.",
    LINK,
)
LINK_MTU = _gauge("link_mtu_bytes", "Maximum transmission unit from class/net/IF/mtu.", LINK)
CARRIER_CHANGES = _counter(
    "carrier_changes",
    "Carrier changes, up and down, counted by the kernel since the netdev exists (class/net/IF/carrier_changes).",
    LINK,
)
CARRIER_UP = _counter(
    "carrier_up_changes",
    "Times the carrier came up, counted by the kernel (class/net/IF/carrier_up_count).",
    LINK,
)
CARRIER_DOWN = _counter(
    "carrier_down_changes",
    "Times the carrier was lost, counted by the kernel (class/net/IF/carrier_down_count).",
    LINK,
)
LINK_RECEIVED_BYTES = _counter(
    "link_received_bytes", "Octets received by the netdev (statistics/rx_bytes).", LINK
)
LINK_TRANSMITTED_BYTES = _counter(
    "link_transmitted_bytes", "Octets transmitted by the netdev (statistics/tx_bytes).", LINK
)
LINK_RECEIVE_ERRORS = _counter(
    "link_receive_errors", "Receive errors of the netdev (statistics/rx_errors).", LINK
)
LINK_TRANSMIT_ERRORS = _counter(
    "link_transmit_errors", "Transmit errors of the netdev (statistics/tx_errors).", LINK
)
LINK_RECEIVE_DROPS = _counter(
    "link_receive_drops", "Packets dropped on receive (statistics/rx_dropped).", LINK
)
LINK_TRANSMIT_DROPS = _counter(
    "link_transmit_drops", "Packets dropped on transmit (statistics/tx_dropped).", LINK
)
LINK_CRC_ERRORS = _counter("link_crc_errors", "Frames with a wrong CRC (statistics/rx_crc_errors).", LINK)

# -- bonds --------------------------------------------------------------------------------------------------------

BOND_SLAVES = _gauge("bond_slaves", "Links in the bond (class/net/BOND/bonding/slaves).", ("bond", "mode"))
BOND_SLAVE_UP = _gauge(
    "bond_slave_up",
    "1 if the bond considers the slave's link up (bonding_slave/mii_status).",
    ("bond", "netdev"),
)
BOND_SLAVE_ACTIVE = _gauge(
    "bond_slave_active",
    "1 if the slave carries traffic, 0 if it is a backup (bonding_slave/state).",
    ("bond", "netdev"),
)
BOND_SLAVE_FAILURES = _counter(
    "bond_slave_link_failures",
    "Link failures of the slave seen by the bond (bonding_slave/link_failure_count).",
    ("bond", "netdev"),
)

# -- PCIe and affinity --------------------------------------------------------------------------------------------

PCIE_SPEED = _gauge(
    "pcie_link_transfers_per_second",
    "Transfers per second and lane of the PCIe link now (current_link_speed, GT/s converted).",
    ("device", "pci_address"),
)
PCIE_SPEED_MAX = _gauge(
    "pcie_link_transfers_per_second_max",
    "Transfers per second and lane that the device can do (max_link_speed, GT/s converted).",
    ("device", "pci_address"),
)
PCIE_WIDTH = _gauge(
    "pcie_link_width_lanes", "Lanes of the PCIe link now (current_link_width).", ("device", "pci_address")
)
PCIE_WIDTH_MAX = _gauge(
    "pcie_link_width_lanes_max", "Lanes that the device has (max_link_width).", ("device", "pci_address")
)
PCIE_AER = _counter(
    "pcie_aer_errors",
    "PCIe errors by severity and kind (aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal).",
    ("device", "pci_address", "severity", "error"),
)
AFFINITY = _gauge(
    "affinity_info",
    "Always 1; where the NIC sits: PCI address, NUMA node (-1 unknown), nearest GPUs by PCI address (most common "
    "ancestors in the PCI tree), comma separated, and how they are joined: same_switch, same_host_bridge, same_numa.",
    ("device", "pci_address", "numa_node", "gpus", "gpu_path"),
)

# -- GID table ----------------------------------------------------------------------------------------------------

GID_ENTRIES = _gauge(
    "gid_entries",
    "GIDs in the table that are not zero, by type (ports/N/gids, gid_attrs/types).",
    ("device", "port", "type"),
)
GID_INFO = _gauge(
    "gid_info",
    "Always 1; a GID that is not zero: index, GID, type, netdev (gids/I, gid_attrs/types/I, gid_attrs/ndevs/I).",
    ("device", "port", "index", "gid", "gid_type", "netdev"),
)
GID_CHANGES = _counter(
    "gid_table_changes",
    "GID table entries that appeared, vanished or changed, seen since the exporter started.",
)
GID_MOVES = _counter(
    "gid_index_moves",
    "Times the GID that NCCL would use moved to another index, seen since the exporter started; NCCL keeps the index "
    "of job start and fails after a move.",
)
ROCE_V2_INDEX = _gauge(
    "roce_v2_gid_index", "Lowest index of a RoCE v2 GID that is IPv4-mapped, or else of any RoCE v2 GID."
)
NCCL_INDEX = _gauge(
    "nccl_gid_index",
    "GID index that NCCL would use on this port: NCCL_IB_GID_INDEX, or its search by address family, range and RoCE "
    "version; absent if none fits.",
)
NCCL_CONSISTENT = _gauge(
    "nccl_gid_index_consistent",
    "1 if all active RoCE ports of this host have a GID for NCCL and at the same index, else 0; absent without RoCE.",
    (),
)

# -- ethtool ------------------------------------------------------------------------------------------------------

PRIORITY = ("device", "port", "netdev", "priority")

PFC_RECEIVED = _counter(
    "pfc_pause_frames_received",
    "Priority flow control pause frames received: the other side stops us (ethtool rx_prioP_pause, bnxt rx_pfc_ena_frames_priP).",
    PRIORITY,
)
PFC_TRANSMITTED = _counter(
    "pfc_pause_frames_transmitted",
    "Priority flow control pause frames transmitted: we stop the other side (ethtool tx_prioP_pause, bnxt tx_pfc_ena_frames_priP).",
    PRIORITY,
)
PFC_RECEIVED_SECONDS = _counter(
    "pfc_pause_received_seconds",
    "Time for which a received pause has stopped sending (ethtool rx_prioP_pause_duration, microseconds converted).",
    PRIORITY,
)
PFC_TRANSMITTED_SECONDS = _counter(
    "pfc_pause_transmitted_seconds",
    "Time for which a transmitted pause has stopped the other side (ethtool tx_prioP_pause_duration, microseconds converted).",
    PRIORITY,
)
PFC_RECEIVED_TRANSITIONS = _counter(
    "pfc_pause_received_transitions",
    "Changes from running to paused because of received pauses (ethtool rx_prioP_pause_transition).",
    PRIORITY,
)
PFC_TRANSMITTED_TRANSITIONS = _counter(
    "pfc_pause_transmitted_transitions",
    "Changes from running to paused of what we stop (ethtool tx_prioP_pause_transition).",
    PRIORITY,
)
PRIORITY_DISCARDS = _counter(
    "priority_discards",
    "Packets dropped for lack of buffer space of the priority (ethtool rx_prioP_discards, rx_prioP_buf_discard).",
    PRIORITY,
)
PRIORITY_CONGESTION_DISCARDS = _counter(
    "priority_congestion_discards",
    "Packets dropped by early detection (ethtool rx_prioP_cong_discard).",
    PRIORITY,
)
PRIORITY_MARKED = _counter(
    "priority_ecn_marked",
    "Packets that the NIC marked because its own buffer filled (ethtool rx_prioP_marked).",
    PRIORITY,
)
PRIORITY_RECEIVED_BYTES = _counter(
    "priority_received_bytes", "Octets received per priority (ethtool rx_prioP_bytes).", PRIORITY
)
PRIORITY_TRANSMITTED_BYTES = _counter(
    "priority_transmitted_bytes", "Octets transmitted per priority (ethtool tx_prioP_bytes).", PRIORITY
)
GLOBAL_PAUSE_RECEIVED = _counter(
    "global_pause_frames_received",
    "Link-level (802.3x) pause frames received (ethtool rx_pause_ctrl_phy, rx_global_pause, or pause statistics by netlink).",
    LINK,
)
GLOBAL_PAUSE_TRANSMITTED = _counter(
    "global_pause_frames_transmitted",
    "Link-level (802.3x) pause frames transmitted (ethtool tx_pause_ctrl_phy, tx_global_pause, or pause statistics by netlink).",
    LINK,
)
GLOBAL_PAUSE_RECEIVED_SECONDS = _counter(
    "global_pause_received_seconds",
    "Time for which link-level pause has stopped sending (ethtool rx_global_pause_duration, microseconds converted).",
    LINK,
)
GLOBAL_PAUSE_TRANSMITTED_SECONDS = _counter(
    "global_pause_transmitted_seconds",
    "Time for which our link-level pause has stopped the other side (ethtool tx_global_pause_duration, microseconds converted).",
    LINK,
)
PAUSE_STORM_WARNINGS = _counter(
    "pause_storm_warning_events",
    "Times the NIC paused its peer for longer than the warning threshold (ethtool tx_pause_storm_warning_events).",
    LINK,
)
PAUSE_STORM_ERRORS = _counter(
    "pause_storm_error_events",
    "Times the NIC paused its peer for so long that it gave pause up (ethtool tx_pause_storm_error_events).",
    LINK,
)
PHY_LINK_DOWN = _counter(
    "phy_link_down_events",
    "Link losses counted by the PHY, with those too short for the carrier (ethtool link_down_events_phy).",
    LINK,
)
PHY_CORRECTED_BITS = _counter(
    "phy_corrected_bits", "Bits corrected by FEC (ethtool rx_corrected_bits_phy).", LINK
)
PHY_RECEIVED_BITS = _counter(
    "phy_received_bits",
    "Bits received by the PHY: the denominator of a bit error ratio (ethtool rx_bits_phy).",
    LINK,
)
PHY_PCS_SYMBOL_ERRORS = _counter(
    "phy_pcs_symbol_errors",
    "Symbols that FEC could not correct or 8b/10b errors (ethtool rx_pcs_symbol_err_phy).",
    LINK,
)
PHY_SYMBOL_ERRORS = _counter(
    "phy_symbol_errors", "Coding errors at the PHY (ethtool rx_symbol_err_phy).", LINK
)
PHY_CRC_ERRORS = _counter(
    "phy_crc_errors", "Frames with a wrong CRC at the PHY (ethtool rx_crc_errors_phy).", LINK
)
PHY_DISCARDS = _counter(
    "phy_discards", "Frames dropped at the PHY for lack of buffers (ethtool rx_discards_phy).", LINK
)
PHY_LANE_ERRORS = _counter(
    "phy_lane_errors",
    "Errors per physical lane before FEC (ethtool rx_err_lane_L_phy).",
    ("device", "port", "netdev", "lane"),
)
FEC_CORRECTED = _counter(
    "fec_corrected_blocks", "FEC code words corrected (ethtool FEC statistics by netlink).", LINK
)
FEC_UNCORRECTABLE = _counter(
    "fec_uncorrectable_blocks", "FEC code words lost (ethtool FEC statistics by netlink).", LINK
)
FEC_CORRECTED_BITS = _counter(
    "fec_corrected_bits", "Bits corrected by FEC (ethtool FEC statistics by netlink).", LINK
)
MODULE_HIGH_TEMPERATURE = _counter(
    "module_high_temperature_events", "Times the module grew too hot (ethtool module_high_temp).", LINK
)
MODULE_UNPLUGGED = _counter(
    "module_unplug_events", "Times the module was pulled out (ethtool module_unplug).", LINK
)
MODULE_BUS_STUCK = _counter(
    "module_bus_stuck_events", "Times the module's two-wire bus was stuck (ethtool module_bus_stuck).", LINK
)
PCI_STALLED_READS = _gauge(
    "pcie_outbound_stalled_reads_ratio",
    "Share of the last second in which reads of host memory were stalled (ethtool outbound_pci_stalled_rd, percent converted).",
    LINK,
)
PCI_STALLED_WRITES = _gauge(
    "pcie_outbound_stalled_writes_ratio",
    "Share of the last second in which writes to host memory were stalled (ethtool outbound_pci_stalled_wr, percent converted).",
    LINK,
)
PCI_STALLED_READ_SECONDS = _counter(
    "pcie_outbound_stalled_read_events",
    "Seconds in which reads were stalled for more than 30 % (ethtool outbound_pci_stalled_rd_events).",
    LINK,
)
PCI_STALLED_WRITE_SECONDS = _counter(
    "pcie_outbound_stalled_write_events",
    "Seconds in which writes were stalled for more than 30 % (ethtool outbound_pci_stalled_wr_events).",
    LINK,
)
PCI_BUFFER_OVERFLOWS = _counter(
    "pcie_outbound_buffer_overflows",
    "Packets dropped because host memory was too slow (ethtool outbound_pci_buffer_overflow).",
    LINK,
)
PCI_SIGNAL_RECEIVE = _counter(
    "pcie_receive_signal_errors",
    "Signal integrity errors towards the NIC (ethtool rx_pci_signal_integrity).",
    LINK,
)
PCI_SIGNAL_TRANSMIT = _counter(
    "pcie_transmit_signal_errors",
    "Signal integrity errors towards the host (ethtool tx_pci_signal_integrity).",
    LINK,
)

# -- DCB ----------------------------------------------------------------------------------------------------------

PFC_ENABLED = _gauge(
    "pfc_enabled", "1 if priority flow control is on for the priority (DCB netlink, IEEE PFC).", PRIORITY
)
DCB_PFC_SENT = _counter(
    "dcb_pfc_requests",
    "Pause frames sent per priority, as DCB counts them (DCB netlink, PFC requests).",
    PRIORITY,
)
DCB_PFC_RECEIVED = _counter(
    "dcb_pfc_indications",
    "Pause frames received per priority, as DCB counts them (DCB netlink, PFC indications).",
    PRIORITY,
)
PRIORITY_CLASS = _gauge(
    "priority_traffic_class", "Traffic class of the priority (DCB netlink, ETS).", PRIORITY
)
CLASS_BANDWIDTH = _gauge(
    "traffic_class_bandwidth_ratio",
    "Guaranteed share of the traffic class; absent for strict priority (DCB netlink, ETS, percent converted).",
    ("device", "port", "netdev", "traffic_class"),
)
DSCP_PRIORITY = _gauge(
    "dscp_priority",
    "Priority to which a DSCP is mapped (DCB netlink, application table).",
    ("device", "port", "netdev", "dscp"),
)
TRUST_DSCP = _gauge(
    "trust_dscp",
    "1 if the NIC takes the priority from DSCP, 0 if from the VLAN tag (DCB netlink: a DSCP entry in the application table).",
    LINK,
)
ECN_ENABLED = _gauge(
    "ecn_enabled",
    "1 if congestion control is on for the priority; role np answers marks, rp slows down (class/net/IF/ecn/roce_ROLE/enable/P, out-of-tree mlx5).",
    ("device", "port", "netdev", "role", "priority"),
)

# -- module -------------------------------------------------------------------------------------------------------

MODULE_INFO = _gauge(
    "module_info",
    "Always 1; the module in the port (EEPROM by ethtool netlink).",
    ("device", "port", "netdev", "form", "vendor", "part_number", "serial_number"),
)
MODULE_TEMPERATURE = _gauge("module_temperature_celsius", "Temperature of the module (EEPROM).", LINK)
MODULE_VOLTAGE = _gauge("module_supply_volts", "Supply voltage of the module (EEPROM).", LINK)
MODULE_RECEIVED_POWER = _gauge(
    "module_received_power_watts",
    "Optical power received per lane (EEPROM, 0.1 uW converted).",
    ("device", "port", "netdev", "lane"),
)
MODULE_TRANSMITTED_POWER = _gauge(
    "module_transmitted_power_watts",
    "Optical power sent per lane (EEPROM, 0.1 uW converted).",
    ("device", "port", "netdev", "lane"),
)
MODULE_BIAS = _gauge(
    "module_laser_bias_amperes",
    "Laser bias current per lane (EEPROM, 2 uA converted).",
    ("device", "port", "netdev", "lane"),
)

# -- verbs --------------------------------------------------------------------------------------------------------

VERBS_OPEN = _gauge(
    "verbs_device_open",
    "1 if the verbs device could be opened and its asynchronous events are followed.",
    DEVICE,
)
VERBS_MAX_QP = _gauge(
    "verbs_queue_pairs_max", "Queue pairs that the device can have (ibv_query_device max_qp).", DEVICE
)

# -- RDMA netlink -------------------------------------------------------------------------------------------------

RESOURCES = _gauge(
    "rdma_resources",
    "RDMA resources that exist on the device, by kind: qp, cq, mr, pd, cm_id, ctx, srq (RDMA netlink).",
    ("device", "resource"),
)
QP_COUNT = _gauge(
    "queue_pairs",
    "Queue pairs on the device by type and state (RDMA netlink; collector queue_pairs).",
    ("device", "qp_type", "state"),
)
CC_MARKED_RECEIVED = _counter(
    "cc_marked_packets_received",
    "RoCE packets received with the congestion mark (optional counter cc_rx_ce_pkts, RDMA netlink).",
)
CC_CNP_RECEIVED = _counter(
    "cc_cnp_packets_received",
    "Congestion notification packets received (optional counter cc_rx_cnp_pkts, RDMA netlink).",
)
CC_CNP_SENT = _counter(
    "cc_cnp_packets_sent",
    "Congestion notification packets sent (optional counter cc_tx_cnp_pkts, RDMA netlink).",
)

# -- flaps --------------------------------------------------------------------------------------------------------

DOWN_TRANSITIONS = _counter(
    "port_down_transitions",
    "Times the link went down: rtnetlink events, closed with the kernel's carrier_down_count for the time before start "
    "and during restarts; kept in the run directory.",
    LINK,
)
UP_TRANSITIONS = _counter(
    "port_up_transitions",
    "Times the link came up: rtnetlink events, closed with the kernel's carrier_up_count for the time before start and "
    "during restarts; kept in the run directory.",
    LINK,
)
UNOBSERVED = _counter(
    "port_down_transitions_unobserved",
    "Part of port_down_transitions that only the kernel's counter tells of: no time and no duration is known.",
    LINK,
)
LAST_TRANSITION = _gauge(
    "port_last_transition_timestamp_seconds",
    "Host time of the last change of the link that was seen happening; absent until there is one.",
    LINK,
)
FLAP_SECONDS = MetricSpec(
    "fabricpulse_nic_flap_duration_seconds",
    "histogram",
    "How long the link was down, for outages that were seen to begin and to end.",
    LINK,
    (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0),
)
EVENTS = _counter(
    "events", "Link and device events taken in, by source: rtnetlink, poll, verbs, kernel_log.", ("source",)
)
OVERRUNS = _counter(
    "event_overruns",
    "Times a source lost events because the exporter was late (rtnetlink ENOBUFS, kmsg EPIPE); the state was then read anew.",
    ("source",),
)
ASYNC_EVENTS = _counter(
    "verbs_async_events",
    "Asynchronous events of the verbs device, by kind (ibv_get_async_event).",
    ("device", "port", "event"),
)
KERNEL_MESSAGES = _counter(
    "kernel_messages",
    "Kernel log lines about the device since the exporter started, by kind of trouble (/dev/kmsg).",
    ("device", "kind"),
)

METRICS: tuple[MetricSpec, ...] = tuple(v for v in globals().values() if isinstance(v, MetricSpec))
