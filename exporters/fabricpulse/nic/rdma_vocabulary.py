"""One vocabulary for the counters of all drivers.

Each driver names the files of `hw_counters/` as it likes; here each name is mapped to a metric and to the factor that
brings it to the metric's unit. A file that is not here is exported only under its raw name (`--nic.raw-counters`).
An absent file is absent in the exposition as well, never 0.

The names are those of the drivers' sources (torvalds/linux, master in 2026) named at each table, checked against them
word for word; none was checked on hardware.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.metrics import infiniband as m


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
        "VL15_dropped": m.VL15_DROPPED,
        "excessive_buffer_overrun_errors": m.BUFFER_OVERRUNS,
        "link_downed": m.LINK_DOWNED,
        "link_error_recovery": m.LINK_ERROR_RECOVERY,
        "local_link_integrity_errors": m.LINK_INTEGRITY,
        "multicast_rcv_packets": m.MULTICAST_RECEIVED,
        "multicast_xmit_packets": m.MULTICAST_TRANSMITTED,
        "port_rcv_constraint_errors": m.RECEIVE_CONSTRAINT,
        "port_rcv_errors": m.RECEIVE_ERRORS,
        "port_rcv_packets": m.RECEIVED_PACKETS,
        "port_rcv_remote_physical_errors": m.RECEIVE_REMOTE_PHYSICAL,
        "port_rcv_switch_relay_errors": m.RECEIVE_SWITCH_RELAY,
        "port_xmit_constraint_errors": m.TRANSMIT_CONSTRAINT,
        "port_xmit_discards": m.TRANSMIT_DISCARDS,
        "port_xmit_packets": m.TRANSMITTED_PACKETS,
        "port_xmit_wait": m.TRANSMIT_WAIT,
        "symbol_error": m.SYMBOL_ERRORS,
        "unicast_rcv_packets": m.UNICAST_RECEIVED,
        "unicast_xmit_packets": m.UNICAST_TRANSMITTED,
    }
) | {
    "port_rcv_data": Mapped(m.RECEIVED_BYTES, scale=4),
    "port_xmit_data": Mapped(m.TRANSMITTED_BYTES, scale=4),
}

# drivers/infiniband/hw/mlx5/counters.c. The queue counters are 32 bits on the wire (read with be32_to_cpu),
# those of congestion control and of the extended port group 64.
_MLX5_QUEUE = {
    "duplicate_request": m.DUPLICATE_REQUESTS,
    "implied_nak_seq_err": m.IMPLIED_NAK,
    "local_ack_timeout_err": m.ACK_TIMEOUTS,
    "out_of_buffer": m.OUT_OF_BUFFER,
    "out_of_sequence": m.OUT_OF_SEQUENCE,
    "packet_seq_err": m.SEQUENCE_ERRORS,
    "req_cqe_error": m.REQUESTER_CQE_ERRORS,
    "req_cqe_flush_error": m.REQUESTER_CQE_FLUSHED,
    "req_remote_access_errors": m.REQUESTER_REMOTE_ACCESS,
    "req_remote_invalid_request": m.REQUESTER_REMOTE_INVALID,
    "req_rnr_retries_exceeded": m.RNR_RETRIES_EXCEEDED,
    "req_transport_retries_exceeded": m.TRANSPORT_RETRIES_EXCEEDED,
    "resp_cqe_error": m.RESPONDER_CQE_ERRORS,
    "resp_cqe_flush_error": m.RESPONDER_CQE_FLUSHED,
    "resp_local_length_error": m.RESPONDER_LOCAL_LENGTH,
    "resp_remote_access_errors": m.RESPONDER_REMOTE_ACCESS,
    "rnr_nak_retry_err": m.RNR_NAKS,
    "roce_adp_retrans": m.ADAPTIVE_RETRANSMITS,
    "roce_adp_retrans_to": m.ADAPTIVE_TIMEOUTS,
    "roce_slow_restart": m.SLOW_RESTARTS,
    "roce_slow_restart_cnps": m.SLOW_RESTART_CNPS,
    "roce_slow_restart_trans": m.SLOW_RESTART_TRANSITIONS,
    "rx_atomic_requests": m.ATOMIC_REQUESTS,
    "rx_dct_connect": m.DCT_CONNECTS,
    "rx_read_requests": m.READ_REQUESTS,
    "rx_write_requests": m.WRITE_REQUESTS,
}
_MLX5 = (
    _plain(_MLX5_QUEUE, bits=32)
    # Ports of representors (switchdev) have these names in place of the plain ones.
    | _plain({f"vport_{name}": spec for name, spec in _MLX5_QUEUE.items()}, bits=32)
    | _plain(
        {
            "np_cnp_sent": m.CNP_SENT,
            "np_ecn_marked_roce_packets": m.ECN_RECEIVED,
            "rp_cnp_handled": m.CNP_HANDLED,
            "rp_cnp_ignored": m.CNP_IGNORED,
            "rx_icrc_encapsulated": m.ICRC_ERRORS,
        }
    )
)

# drivers/infiniband/hw/bnxt_re/hw_counters.c.
_BNXT = _plain(
    {
        "dup_req": m.DUPLICATE_REQUESTS,
        "max_retry_exceeded": m.TRANSPORT_RETRIES_EXCEEDED,
        "oos_drop_count": m.OUT_OF_SEQUENCE,
        "remote_access_err": m.REQUESTER_REMOTE_ACCESS,
        "remote_invalid_req_err": m.REQUESTER_REMOTE_INVALID,
        "rnr_naks_rcvd": m.RNR_NAKS,
        "rx_atomic_req": m.ATOMIC_REQUESTS,
        "rx_bytes": m.RECEIVED_BYTES,
        "rx_cnp_pkts": m.CNP_HANDLED,
        "rx_ecn_marked_pkts": m.ECN_RECEIVED,
        "rx_out_of_buffer": m.OUT_OF_BUFFER,
        "rx_pkts": m.RECEIVED_PACKETS,
        "rx_read_req": m.READ_REQUESTS,
        "rx_roce_discards": m.RECEIVE_DISCARDS,
        "rx_roce_errors": m.RECEIVE_ERRORS,
        "rx_send_req": m.SEND_REQUESTS,
        "rx_write_req": m.WRITE_REQUESTS,
        "seq_err_naks_rcvd": m.SEQUENCE_ERRORS,
        "to_retransmits": m.RETRANSMITS,
        "tx_atomic_req": m.ATOMIC_REQUESTS_SENT,
        "tx_bytes": m.TRANSMITTED_BYTES,
        "tx_cnp_pkts": m.CNP_SENT,
        "tx_pkts": m.TRANSMITTED_PACKETS,
        "tx_read_req": m.READ_REQUESTS_SENT,
        "tx_roce_discards": m.TRANSMIT_DISCARDS,
        "tx_roce_errors": m.TRANSMIT_ERRORS,
        "tx_send_req": m.SEND_REQUESTS_SENT,
        "tx_write_req": m.WRITE_REQUESTS_SENT,
        "unrecoverable_err": m.UNRECOVERABLE,
    }
)

# drivers/infiniband/hw/irdma/verbs.c. RDMA messages are `iw...` and TCP segments `tcp...`; the patches that bring the
# third generation (IPU) rename them and add names with spaces, of which a device has one or the other. IPv4 and IPv6
# are counted apart and summed here, as are all names of one metric.
_IRDMA_RDMA = {
    "InRdmaReads": m.READ_REQUESTS,
    "InRdmaSends": m.SEND_REQUESTS,
    "InRdmaWrites": m.WRITE_REQUESTS,
    "OutRdmaReads": m.READ_REQUESTS_SENT,
    "OutRdmaSends": m.SEND_REQUESTS_SENT,
    "OutRdmaWrites": m.WRITE_REQUESTS_SENT,
}
_IRDMA = _plain(
    {
        **_IRDMA_RDMA,
        **{f"iw{name}": spec for name, spec in _IRDMA_RDMA.items()},
        "CRC errors": m.ICRC_ERRORS,
        "Nak Sequence Error": m.SEQUENCE_ERRORS,
        "Nak Sequence Error Implied": m.IMPLIED_NAK,
        "RNR received": m.RNR_NAKS,
        "RNR sent": m.RNR_SENT,
        "RTO": m.ACK_TIMEOUTS,
        "Rcvd Out of order packets": m.OUT_OF_SEQUENCE,
        "RetransSegs": m.RETRANSMITS,
        "Rx atomics": m.ATOMIC_REQUESTS,
        "RxECNMrkd": m.ECN_RECEIVED,
        "Tx atomics": m.ATOMIC_REQUESTS_SENT,
        "cnpHandled": m.CNP_HANDLED,
        "cnpIgnored": m.CNP_IGNORED,
        "cnpSent": m.CNP_SENT,
        "ip4InDiscards": m.RECEIVE_DISCARDS,
        "ip6InDiscards": m.RECEIVE_DISCARDS,
        "ip4InOctets": m.RECEIVED_BYTES,
        "ip6InOctets": m.RECEIVED_BYTES,
        "ip4InPkts": m.RECEIVED_PACKETS,
        "ip6InPkts": m.RECEIVED_PACKETS,
        "ip4OutOctets": m.TRANSMITTED_BYTES,
        "ip6OutOctets": m.TRANSMITTED_BYTES,
        "ip4OutPkts": m.TRANSMITTED_PACKETS,
        "ip6OutPkts": m.TRANSMITTED_PACKETS,
        "tcpRetransSegs": m.RETRANSMITS,
    }
)

# drivers/infiniband/hw/hns/hns_roce_main.c; the packet counters on physical functions of HIP09 and later.
_HNS = _plain(
    {
        "cmds_err": m.COMMAND_ERRORS,
        "rx_cnp_pkt": m.CNP_HANDLED,
        "rx_err_pkt": m.RECEIVE_ERRORS,
        "rx_pkt": m.RECEIVED_PACKETS,
        "tx_cnp_pkt": m.CNP_SENT,
        "tx_err_pkt": m.TRANSMIT_ERRORS,
        "tx_pkt": m.TRANSMITTED_PACKETS,
    }
)

# drivers/infiniband/hw/efa/efa_verbs.c; what a device or kernel does not have is absent.
_EFA = _plain(
    {
        "cmds_err": m.COMMAND_ERRORS,
        "impaired_remote_conn_events": m.IMPAIRED_REMOTES,
        "rdma_read_wr_err": m.WORK_REQUEST_ERRORS,
        "rdma_read_wrs": m.READ_REQUESTS_SENT,
        "rdma_write_wr_err": m.WORK_REQUEST_ERRORS,
        "rdma_write_wrs": m.WRITE_REQUESTS_SENT,
        "recv_wrs": m.SEND_REQUESTS,
        "retrans_pkts": m.RETRANSMITS,
        "retrans_timeout_events": m.ACK_TIMEOUTS,
        "rx_bytes": m.RECEIVED_BYTES,
        "rx_drops": m.RECEIVE_DISCARDS,
        "rx_pkts": m.RECEIVED_PACKETS,
        "send_wrs": m.SEND_REQUESTS_SENT,
        "tx_bytes": m.TRANSMITTED_BYTES,
        "tx_pkts": m.TRANSMITTED_PACKETS,
        "unresponsive_remote_events": m.UNRESPONSIVE_REMOTES,
    }
)

# drivers/infiniband/sw/rxe/rxe_hw_counters.c. It counts no bytes.
_RXE = _plain(
    {
        "completer_retry_err": m.RETRANSMITS,
        "duplicate_request": m.DUPLICATE_REQUESTS,
        "link_downed": m.LINK_DOWNED,
        "out_of_seq_request": m.OUT_OF_SEQUENCE,
        "rcvd_pkts": m.RECEIVED_PACKETS,
        "rcvd_rnr_err": m.RNR_NAKS,
        "rcvd_seq_err": m.SEQUENCE_ERRORS,
        "rdma_recvs": m.SEND_REQUESTS,
        "rdma_sends": m.SEND_REQUESTS_SENT,
        "retry_exceeded_err": m.TRANSPORT_RETRIES_EXCEEDED,
        "retry_rnr_exceeded_err": m.RNR_RETRIES_EXCEEDED,
        "send_err": m.TRANSMIT_ERRORS,
        "send_rnr_err": m.RNR_SENT,
        "sent_pkts": m.TRANSMITTED_PACKETS,
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

# Kernel module of the PCI function -> family. RDMA drivers of Ethernet NICs are auxiliary drivers: the function
# belongs to the Ethernet driver.
DRIVER_FAMILIES: Mapping[str, str] = {
    "mlx5_core": "mlx5",
    "bnxt_en": "bnxt_re",
    "bnxt_re": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "irdma": "irdma",
    "hns3": "hns",
    "hns_roce": "hns",
    "efa": "efa",
}
# Device names as the drivers give them, for devices without a PCI function to ask.
NAME_PREFIXES: Mapping[str, str] = {
    "mlx5_": "mlx5",
    "bnxt_re": "bnxt_re",
    "irdma": "irdma",
    "hns_": "hns",
    "rdmap": "efa",
    "efa_": "efa",
    "rxe": "rxe",
}


def family(device: str, module: str, *, has_parent: bool) -> str:
    """The driver family of an RDMA device, or "" if unknown.

    module : kernel module of its PCI function, "" if it has none. has_parent : the device has a `parent` file, which
    only software devices on a netdev have.
    """
    if module in DRIVER_FAMILIES:
        return DRIVER_FAMILIES[module]
    if not module:
        if has_parent and not device.startswith("siw"):
            return "rxe"
        return next((name for prefix, name in NAME_PREFIXES.items() if device.startswith(prefix)), "")
    return ""
