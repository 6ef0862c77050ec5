"""Counters of RDMA devices: the metrics that the drivers' files of counters/ and hw_counters/ are mapped to.

`rdma_counter_map` says which file of which driver is which metric.
"""

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.metric_spec import counter

VL15_DROPPED = counter(
    "vl15_dropped", "Subnet management packets dropped for lack of buffers (counters/VL15_dropped)."
)
BUFFER_OVERRUNS = counter(
    "excessive_buffer_overrun_errors",
    "Consecutive flow-control update periods with overruns (counters/excessive_buffer_overrun_errors).",
)
LINK_DOWNED = counter(
    "link_downed",
    "Times the port's link training has failed and the link went down (counters/link_downed); InfiniBand. On RoCE "
    "rely on carrier_down_changes and phy_link_down_events.",
)
LINK_ERROR_RECOVERY = counter(
    "link_error_recovery", "Successful link error recoveries (counters/link_error_recovery)."
)
LINK_INTEGRITY = counter(
    "local_link_integrity_errors",
    "Times local physical errors passed their threshold (counters/local_link_integrity_errors).",
)
MULTICAST_RECEIVED = counter(
    "multicast_packets_received", "Multicast packets received (counters/multicast_rcv_packets)."
)
MULTICAST_TRANSMITTED = counter(
    "multicast_packets_transmitted", "Multicast packets transmitted (counters/multicast_xmit_packets)."
)
UNICAST_RECEIVED = counter(
    "unicast_packets_received", "Unicast packets received (counters/unicast_rcv_packets)."
)
UNICAST_TRANSMITTED = counter(
    "unicast_packets_transmitted", "Unicast packets transmitted (counters/unicast_xmit_packets)."
)
RECEIVED_BYTES = counter(
    "received_bytes",
    "Octets received by RDMA traffic (counters/port_rcv_data or counters_ext, 4-byte words converted; irdma, bnxt_re, efa, rxe: the "
    "driver's byte counters in hw_counters).",
)
TRANSMITTED_BYTES = counter(
    "transmitted_bytes",
    "Octets transmitted by RDMA traffic (counters/port_xmit_data or counters_ext, 4-byte words converted; irdma, bnxt_re, efa: "
    "the driver's byte counters in hw_counters).",
)
RECEIVED_PACKETS = counter(
    "received_packets",
    "Packets received by RDMA traffic (counters/port_rcv_packets or the driver's hw_counters).",
)
TRANSMITTED_PACKETS = counter(
    "transmitted_packets",
    "Packets transmitted by RDMA traffic (counters/port_xmit_packets or the driver's hw_counters).",
)
RECEIVE_ERRORS = counter(
    "receive_errors", "Packets received with an error (counters/port_rcv_errors; bnxt_re rx_roce_errors)."
)
RECEIVE_CONSTRAINT = counter(
    "receive_constraint_errors",
    "Packets received that the switch or partition rules discard (counters/port_rcv_constraint_errors).",
)
RECEIVE_REMOTE_PHYSICAL = counter(
    "receive_remote_physical_errors",
    "Packets received marked bad by an earlier hop (counters/port_rcv_remote_physical_errors).",
)
RECEIVE_SWITCH_RELAY = counter(
    "receive_switch_relay_errors",
    "Packets received that a switch could not relay (counters/port_rcv_switch_relay_errors).",
)
RECEIVE_DISCARDS = counter(
    "receive_discards",
    "RDMA packets dropped on receive (counters/port_rcv_discards, bnxt_re rx_roce_discards, efa rx_drops).",
)
TRANSMIT_CONSTRAINT = counter(
    "transmit_constraint_errors",
    "Packets not transmitted by partition rules (counters/port_xmit_constraint_errors).",
)
TRANSMIT_DISCARDS = counter(
    "transmit_discards",
    "Outbound packets dropped because the port is down or congested (counters/port_xmit_discards).",
)
TRANSMIT_ERRORS = counter(
    "transmit_errors", "RDMA packets that could not be sent (bnxt_re tx_roce_errors, rxe send_err)."
)
TRANSMIT_WAIT = counter(
    "transmit_wait_ticks",
    "Ticks with data to send and no credits or bandwidth (counters/port_xmit_wait, ticks of the device).",
)
SYMBOL_ERRORS = counter("symbol_errors", "Minor link errors on a lane (counters/symbol_error).")
ECN_RECEIVED = counter(
    "ecn_marked_packets_received",
    "RoCE packets received with the congestion mark (mlx5 np_ecn_marked_roce_packets).",
)
CNP_SENT = counter("cnp_packets_sent", "Congestion notification packets sent (mlx5 np_cnp_sent).")
CNP_HANDLED = counter(
    "cnp_packets_handled", "Congestion notification packets that slowed a sender down (mlx5 rp_cnp_handled)."
)
CNP_IGNORED = counter("cnp_packets_ignored", "Congestion notification packets ignored (mlx5 rp_cnp_ignored).")
OUT_OF_SEQUENCE = counter(
    "out_of_sequence_packets_received", "Packets received out of sequence (mlx5 out_of_sequence)."
)
SEQUENCE_ERRORS = counter(
    "packet_sequence_errors", "NAKs for a sequence error received (mlx5 packet_seq_err)."
)
IMPLIED_NAK = counter(
    "implied_nak_sequence_errors",
    "ACKs that implied the loss of a read or atomic response (mlx5 implied_nak_seq_err).",
)
ACK_TIMEOUTS = counter(
    "ack_timeouts", "Acknowledgement timers of queue pairs that expired (mlx5 local_ack_timeout_err)."
)
RETRANSMITS = counter(
    "retransmits",
    "Packets or requests sent again (bnxt_re to_retransmits, irdma tcpRetransSegs, rxe completer_retry_err).",
)
ADAPTIVE_RETRANSMITS = counter(
    "adaptive_retransmits", "Adaptive retransmissions for RoCE (mlx5 roce_adp_retrans)."
)
ADAPTIVE_TIMEOUTS = counter(
    "adaptive_retransmit_timeouts", "Timeouts because of adaptive retransmission (mlx5 roce_adp_retrans_to)."
)
SLOW_RESTARTS = counter("slow_restarts", "RoCE slow restarts used (mlx5 roce_slow_restart).")
SLOW_RESTART_CNPS = counter(
    "slow_restart_cnps", "CNPs that slow restart has made (mlx5 roce_slow_restart_cnps)."
)
SLOW_RESTART_TRANSITIONS = counter(
    "slow_restart_transitions", "Changes into the state of slow restart (mlx5 roce_slow_restart_trans)."
)
DUPLICATE_REQUESTS = counter("duplicate_requests", "Requests received twice (mlx5 duplicate_request).")
RNR_NAKS = counter(
    "rnr_nak_packets_received",
    "Receiver-not-ready NAKs received; the retry limit was not exceeded, so this is recoverable (mlx5 rnr_nak_retry_err).",
)
RNR_SENT = counter("rnr_nak_packets_sent", "Receiver-not-ready NAKs sent (rxe send_rnr_err, irdma RNR sent).")
TRANSPORT_RETRIES_EXCEEDED = counter(
    "transport_retries_exceeded",
    "Queue pairs ended because the transport retry limit was exceeded (mlx5 req_transport_retries_exceeded).",
)
RNR_RETRIES_EXCEEDED = counter(
    "rnr_retries_exceeded",
    "Queue pairs ended because the RNR retry limit was exceeded (mlx5 req_rnr_retries_exceeded).",
)
OUT_OF_BUFFER = counter(
    "out_of_buffer_drops", "Drops because no receive work request was posted (mlx5 out_of_buffer)."
)
ICRC_ERRORS = counter("icrc_errors", "RoCE packets with a wrong invariant CRC (mlx5 rx_icrc_encapsulated).")
REQUESTER_CQE_ERRORS = counter(
    "requester_completion_errors", "Requester completions in error (mlx5 req_cqe_error)."
)
REQUESTER_CQE_FLUSHED = counter(
    "requester_completions_flushed", "Requester completions flushed in error (mlx5 req_cqe_flush_error)."
)
RESPONDER_CQE_ERRORS = counter(
    "responder_completion_errors", "Responder completions in error (mlx5 resp_cqe_error)."
)
RESPONDER_CQE_FLUSHED = counter(
    "responder_completions_flushed", "Responder completions flushed in error (mlx5 resp_cqe_flush_error)."
)
REQUESTER_REMOTE_ACCESS = counter(
    "requester_remote_access_errors", "Remote access errors at the requester (mlx5 req_remote_access_errors)."
)
REQUESTER_REMOTE_INVALID = counter(
    "requester_remote_invalid_requests",
    "Remote invalid request errors at the requester (mlx5 req_remote_invalid_request).",
)
RESPONDER_LOCAL_LENGTH = counter(
    "responder_local_length_errors", "Local length errors at the responder (mlx5 resp_local_length_error)."
)
RESPONDER_REMOTE_ACCESS = counter(
    "responder_remote_access_errors",
    "Remote access errors at the responder (mlx5 resp_remote_access_errors).",
)
ATOMIC_REQUESTS = counter(
    "atomic_requests_received", "RDMA atomic requests received (mlx5 rx_atomic_requests)."
)
READ_REQUESTS = counter("read_requests_received", "RDMA read requests received (mlx5 rx_read_requests).")
WRITE_REQUESTS = counter("write_requests_received", "RDMA write requests received (mlx5 rx_write_requests).")
SEND_REQUESTS = counter(
    "send_requests_received",
    "RDMA send requests received (bnxt_re rx_send_req, irdma InRdmaSends, efa recv_wrs).",
)
READ_REQUESTS_SENT = counter(
    "read_requests_sent", "RDMA read requests sent (bnxt_re tx_read_req, efa rdma_read_wrs)."
)
WRITE_REQUESTS_SENT = counter(
    "write_requests_sent", "RDMA write requests sent (bnxt_re tx_write_req, efa rdma_write_wrs)."
)
SEND_REQUESTS_SENT = counter(
    "send_requests_sent", "RDMA send requests sent (bnxt_re tx_send_req, efa send_wrs)."
)
ATOMIC_REQUESTS_SENT = counter("atomic_requests_sent", "RDMA atomic requests sent (bnxt_re tx_atomic_req).")
DCT_CONNECTS = counter(
    "dct_connects_received", "Connection requests for dynamically connected transport (mlx5 rx_dct_connect)."
)
UNRECOVERABLE = counter("unrecoverable_errors", "Errors that ended a queue pair (bnxt_re unrecoverable_err).")
WORK_REQUEST_ERRORS = counter(
    "work_request_errors",
    "RDMA read and write work requests that failed (efa rdma_read_wr_err, rdma_write_wr_err).",
)
UNRESPONSIVE_REMOTES = counter(
    "unresponsive_remote_events", "Times a remote end stopped answering (efa unresponsive_remote_events)."
)
IMPAIRED_REMOTES = counter(
    "impaired_remote_connection_events",
    "Times the connection to a remote end worked only in part (efa impaired_remote_conn_events).",
)
COMMAND_ERRORS = counter("command_errors", "Administrative commands that failed (efa and hns cmds_err).")

METRICS: tuple[MetricSpec, ...] = tuple(
    spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)
)
