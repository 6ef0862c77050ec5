"""Which metric each counter file of a driver is.

Each driver names the files of `hw_counters/` as it likes; here each name is mapped to a metric and to the factor that
brings it to the metric's unit. A file that is not here is exported only under its raw name (`--nic.raw-counters`).
An absent file is absent in the exposition as well, never 0.

The names are those of the drivers' sources (torvalds/linux, master in 2026) named at each table, checked against them
word for word; none was checked on hardware.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic import rdma_counters as c


@dataclass(frozen=True)
class Mapped:
    """What a file means. scale : value of the file times this is the metric. bits : width of the counter."""

    spec: MetricSpec
    scale: int = 1
    bits: int = 64


def _plain(specs: Mapping[str, MetricSpec], bits: int = 64) -> dict[str, Mapped]:
    return {name: Mapped(spec, bits=bits) for name, spec in specs.items()}


# IB PortCounters: data in 4-byte words.
PORT_COUNTERS: Mapping[str, Mapped] = _plain(
    {
        "VL15_dropped": c.VL15_DROPPED,
        "excessive_buffer_overrun_errors": c.BUFFER_OVERRUNS,
        "link_downed": c.LINK_DOWNED,
        "link_error_recovery": c.LINK_ERROR_RECOVERY,
        "local_link_integrity_errors": c.LINK_INTEGRITY,
        "multicast_rcv_packets": c.MULTICAST_RECEIVED,
        "multicast_xmit_packets": c.MULTICAST_TRANSMITTED,
        "port_rcv_constraint_errors": c.RECEIVE_CONSTRAINT,
        "port_rcv_discards": c.RECEIVE_DISCARDS,
        "port_rcv_errors": c.RECEIVE_ERRORS,
        "port_rcv_packets": c.RECEIVED_PACKETS,
        "port_rcv_remote_physical_errors": c.RECEIVE_REMOTE_PHYSICAL,
        "port_rcv_switch_relay_errors": c.RECEIVE_SWITCH_RELAY,
        "port_xmit_constraint_errors": c.TRANSMIT_CONSTRAINT,
        "port_xmit_discards": c.TRANSMIT_DISCARDS,
        "port_xmit_packets": c.TRANSMITTED_PACKETS,
        "port_xmit_wait": c.TRANSMIT_WAIT,
        "symbol_error": c.SYMBOL_ERRORS,
        "unicast_rcv_packets": c.UNICAST_RECEIVED,
        "unicast_xmit_packets": c.UNICAST_TRANSMITTED,
    }
) | {
    "port_rcv_data": Mapped(c.RECEIVED_BYTES, scale=4),
    "port_xmit_data": Mapped(c.TRANSMITTED_BYTES, scale=4),
}

# counters_ext/ of the port, where a driver has it (mlx4): 64-bit counters beside those of counters/, which stop at
# 2^32 - 1. The names are those that procfs reads.
PORT_COUNTERS_EXTENDED: Mapping[str, Mapped] = _plain(
    {
        "port_multicast_rcv_packets": c.MULTICAST_RECEIVED,
        "port_multicast_xmit_packets": c.MULTICAST_TRANSMITTED,
        "port_rcv_packets_64": c.RECEIVED_PACKETS,
        "port_unicast_rcv_packets": c.UNICAST_RECEIVED,
        "port_unicast_xmit_packets": c.UNICAST_TRANSMITTED,
        "port_xmit_packets_64": c.TRANSMITTED_PACKETS,
    }
) | {
    "port_rcv_data_64": Mapped(c.RECEIVED_BYTES, scale=4),
    "port_xmit_data_64": Mapped(c.TRANSMITTED_BYTES, scale=4),
}

# drivers/infiniband/hw/mlx5/counters.c. The queue counters are 32 bits on the wire (read with be32_to_cpu),
# those of congestion control and of the extended port group 64.
_MLX5_QUEUE = {
    "duplicate_request": c.DUPLICATE_REQUESTS,
    "implied_nak_seq_err": c.IMPLIED_NAK,
    "local_ack_timeout_err": c.ACK_TIMEOUTS,
    "out_of_buffer": c.OUT_OF_BUFFER,
    "out_of_sequence": c.OUT_OF_SEQUENCE,
    "packet_seq_err": c.SEQUENCE_ERRORS,
    "req_cqe_error": c.REQUESTER_CQE_ERRORS,
    "req_cqe_flush_error": c.REQUESTER_CQE_FLUSHED,
    "req_remote_access_errors": c.REQUESTER_REMOTE_ACCESS,
    "req_remote_invalid_request": c.REQUESTER_REMOTE_INVALID,
    "req_rnr_retries_exceeded": c.RNR_RETRIES_EXCEEDED,
    "req_transport_retries_exceeded": c.TRANSPORT_RETRIES_EXCEEDED,
    "resp_cqe_error": c.RESPONDER_CQE_ERRORS,
    "resp_cqe_flush_error": c.RESPONDER_CQE_FLUSHED,
    "resp_local_length_error": c.RESPONDER_LOCAL_LENGTH,
    "resp_remote_access_errors": c.RESPONDER_REMOTE_ACCESS,
    "rnr_nak_retry_err": c.RNR_NAKS,
    "roce_adp_retrans": c.ADAPTIVE_RETRANSMITS,
    "roce_adp_retrans_to": c.ADAPTIVE_TIMEOUTS,
    "roce_slow_restart": c.SLOW_RESTARTS,
    "roce_slow_restart_cnps": c.SLOW_RESTART_CNPS,
    "roce_slow_restart_trans": c.SLOW_RESTART_TRANSITIONS,
    "rx_atomic_requests": c.ATOMIC_REQUESTS,
    "rx_dct_connect": c.DCT_CONNECTS,
    "rx_read_requests": c.READ_REQUESTS,
    "rx_write_requests": c.WRITE_REQUESTS,
}
_MLX5 = (
    _plain(_MLX5_QUEUE, bits=32)
    # Ports of representors (switchdev) have these names in place of the plain ones.
    | _plain({f"vport_{name}": spec for name, spec in _MLX5_QUEUE.items()}, bits=32)
    | _plain(
        {
            "np_cnp_sent": c.CNP_SENT,
            "np_ecn_marked_roce_packets": c.ECN_RECEIVED,
            "rp_cnp_handled": c.CNP_HANDLED,
            "rp_cnp_ignored": c.CNP_IGNORED,
            "rx_icrc_encapsulated": c.ICRC_ERRORS,
        }
    )
)

# drivers/infiniband/hw/bnxt_re/hw_counters.c.
_BNXT = _plain(
    {
        "dup_req": c.DUPLICATE_REQUESTS,
        "max_retry_exceeded": c.TRANSPORT_RETRIES_EXCEEDED,
        "oos_drop_count": c.OUT_OF_SEQUENCE,
        "remote_access_err": c.REQUESTER_REMOTE_ACCESS,
        "remote_invalid_req_err": c.REQUESTER_REMOTE_INVALID,
        "rnr_naks_rcvd": c.RNR_NAKS,
        "rx_atomic_req": c.ATOMIC_REQUESTS,
        "rx_bytes": c.RECEIVED_BYTES,
        "rx_cnp_pkts": c.CNP_HANDLED,
        "rx_ecn_marked_pkts": c.ECN_RECEIVED,
        "rx_out_of_buffer": c.OUT_OF_BUFFER,
        "rx_pkts": c.RECEIVED_PACKETS,
        "rx_read_req": c.READ_REQUESTS,
        "rx_roce_discards": c.RECEIVE_DISCARDS,
        "rx_roce_errors": c.RECEIVE_ERRORS,
        "rx_send_req": c.SEND_REQUESTS,
        "rx_write_req": c.WRITE_REQUESTS,
        "seq_err_naks_rcvd": c.SEQUENCE_ERRORS,
        "to_retransmits": c.RETRANSMITS,
        "tx_atomic_req": c.ATOMIC_REQUESTS_SENT,
        "tx_bytes": c.TRANSMITTED_BYTES,
        "tx_cnp_pkts": c.CNP_SENT,
        "tx_pkts": c.TRANSMITTED_PACKETS,
        "tx_read_req": c.READ_REQUESTS_SENT,
        "tx_roce_discards": c.TRANSMIT_DISCARDS,
        "tx_roce_errors": c.TRANSMIT_ERRORS,
        "tx_send_req": c.SEND_REQUESTS_SENT,
        "tx_write_req": c.WRITE_REQUESTS_SENT,
        "unrecoverable_err": c.UNRECOVERABLE,
    }
)

# drivers/infiniband/hw/irdma/verbs.c. RDMA messages are `iw...` and TCP segments `tcp...`; the patches that bring the
# third generation (IPU) rename them and add names with spaces, of which a device has one or the other. IPv4 and IPv6
# are counted apart and summed here, as are all names of one metric.
_IRDMA_RDMA = {
    "InRdmaReads": c.READ_REQUESTS,
    "InRdmaSends": c.SEND_REQUESTS,
    "InRdmaWrites": c.WRITE_REQUESTS,
    "OutRdmaReads": c.READ_REQUESTS_SENT,
    "OutRdmaSends": c.SEND_REQUESTS_SENT,
    "OutRdmaWrites": c.WRITE_REQUESTS_SENT,
}
_IRDMA = _plain(
    {
        **_IRDMA_RDMA,
        **{f"iw{name}": spec for name, spec in _IRDMA_RDMA.items()},
        "CRC errors": c.ICRC_ERRORS,
        "Nak Sequence Error": c.SEQUENCE_ERRORS,
        "Nak Sequence Error Implied": c.IMPLIED_NAK,
        "RNR received": c.RNR_NAKS,
        "RNR sent": c.RNR_SENT,
        "RTO": c.ACK_TIMEOUTS,
        "Rcvd Out of order packets": c.OUT_OF_SEQUENCE,
        "RetransSegs": c.RETRANSMITS,
        "Rx atomics": c.ATOMIC_REQUESTS,
        "RxECNMrkd": c.ECN_RECEIVED,
        "Tx atomics": c.ATOMIC_REQUESTS_SENT,
        "cnpHandled": c.CNP_HANDLED,
        "cnpIgnored": c.CNP_IGNORED,
        "cnpSent": c.CNP_SENT,
        "ip4InDiscards": c.RECEIVE_DISCARDS,
        "ip6InDiscards": c.RECEIVE_DISCARDS,
        "ip4InOctets": c.RECEIVED_BYTES,
        "ip6InOctets": c.RECEIVED_BYTES,
        "ip4InPkts": c.RECEIVED_PACKETS,
        "ip6InPkts": c.RECEIVED_PACKETS,
        "ip4OutOctets": c.TRANSMITTED_BYTES,
        "ip6OutOctets": c.TRANSMITTED_BYTES,
        "ip4OutPkts": c.TRANSMITTED_PACKETS,
        "ip6OutPkts": c.TRANSMITTED_PACKETS,
        "tcpRetransSegs": c.RETRANSMITS,
    }
)

# drivers/infiniband/hw/hns/hns_roce_main.c; the packet counters on physical functions of HIP09 and later.
_HNS = _plain(
    {
        "cmds_err": c.COMMAND_ERRORS,
        "rx_cnp_pkt": c.CNP_HANDLED,
        "rx_err_pkt": c.RECEIVE_ERRORS,
        "rx_pkt": c.RECEIVED_PACKETS,
        "tx_cnp_pkt": c.CNP_SENT,
        "tx_err_pkt": c.TRANSMIT_ERRORS,
        "tx_pkt": c.TRANSMITTED_PACKETS,
    }
)

# drivers/infiniband/hw/efa/efa_verbs.c; what a device or kernel does not have is absent.
_EFA = _plain(
    {
        "cmds_err": c.COMMAND_ERRORS,
        "impaired_remote_conn_events": c.IMPAIRED_REMOTES,
        "rdma_read_wr_err": c.WORK_REQUEST_ERRORS,
        "rdma_read_wrs": c.READ_REQUESTS_SENT,
        "rdma_write_wr_err": c.WORK_REQUEST_ERRORS,
        "rdma_write_wrs": c.WRITE_REQUESTS_SENT,
        "recv_wrs": c.SEND_REQUESTS,
        "retrans_pkts": c.RETRANSMITS,
        "retrans_timeout_events": c.ACK_TIMEOUTS,
        "rx_bytes": c.RECEIVED_BYTES,
        "rx_drops": c.RECEIVE_DISCARDS,
        "rx_pkts": c.RECEIVED_PACKETS,
        "send_wrs": c.SEND_REQUESTS_SENT,
        "tx_bytes": c.TRANSMITTED_BYTES,
        "tx_pkts": c.TRANSMITTED_PACKETS,
        "unresponsive_remote_events": c.UNRESPONSIVE_REMOTES,
    }
)

# drivers/infiniband/sw/rxe/rxe_hw_counters.c. It counts no bytes.
_RXE = _plain(
    {
        "completer_retry_err": c.RETRANSMITS,
        "duplicate_request": c.DUPLICATE_REQUESTS,
        "link_downed": c.LINK_DOWNED,
        "out_of_seq_request": c.OUT_OF_SEQUENCE,
        "rcvd_pkts": c.RECEIVED_PACKETS,
        "rcvd_rnr_err": c.RNR_NAKS,
        "rcvd_seq_err": c.SEQUENCE_ERRORS,
        "rdma_recvs": c.SEND_REQUESTS,
        "rdma_sends": c.SEND_REQUESTS_SENT,
        "retry_exceeded_err": c.TRANSPORT_RETRIES_EXCEEDED,
        "retry_rnr_exceeded_err": c.RNR_RETRIES_EXCEEDED,
        "send_err": c.TRANSMIT_ERRORS,
        "send_rnr_err": c.RNR_SENT,
        "sent_pkts": c.TRANSMITTED_PACKETS,
    }
)

HW_COUNTERS: Mapping[str, Mapping[str, Mapped]] = {
    "mlx5": _MLX5,
    "bnxt_re": _BNXT,
    "irdma": _IRDMA,
    "hns": _HNS,
    "efa": _EFA,
    "rxe": _RXE,
}
