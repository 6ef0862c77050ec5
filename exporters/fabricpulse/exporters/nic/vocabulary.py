"""One vocabulary for the counters of all drivers.

Each driver names the files of `hw_counters/` as it likes; here each name is mapped to a metric and to the factor that
brings it to the metric's unit. A file that is not here is exported only under its raw name (`--nic.raw-counters`).
An absent file is absent in the exposition as well, never 0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.exporters.nic import metrics as m


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

# mlx5 queue counters are 32 bits on the wire (drivers/infiniband/hw/mlx5/counters.c reads them with be32_to_cpu);
# the congestion-control and extended port counters are 64.
_MLX5 = _plain(
    {
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
    },
    bits=32,
) | _plain(
    {
        "np_cnp_sent": m.CNP_SENT,
        "np_ecn_marked_roce_packets": m.ECN_RECEIVED,
        "rp_cnp_handled": m.CNP_HANDLED,
        "rp_cnp_ignored": m.CNP_IGNORED,
        "rx_icrc_encapsulated": m.ICRC_ERRORS,
    }
)

_BNXT = _plain(
    {
        "dup_req": m.DUPLICATE_REQUESTS,
        "max_retry_exceeded": m.TRANSPORT_RETRIES_EXCEEDED,
        "rnr_naks_rcvd": m.RNR_NAKS,
        "rx_atomic_requests": m.ATOMIC_REQUESTS,
        "rx_bytes": m.RECEIVED_BYTES,
        "rx_cnp_pkts": m.CNP_HANDLED,
        "rx_ecn_marked_pkts": m.ECN_RECEIVED,
        "rx_out_of_buffer": m.OUT_OF_BUFFER,
        "rx_out_of_sequence": m.OUT_OF_SEQUENCE,
        "rx_pkts": m.RECEIVED_PACKETS,
        "rx_read_requests": m.READ_REQUESTS,
        "rx_roce_discards": m.RECEIVE_DISCARDS,
        "rx_roce_errors": m.RECEIVE_ERRORS,
        "rx_send_requests": m.SEND_REQUESTS,
        "rx_write_requests": m.WRITE_REQUESTS,
        "seq_err_naks_rcvd": m.SEQUENCE_ERRORS,
        "to_retransmits": m.RETRANSMITS,
        "tx_atomic_requests": m.ATOMIC_REQUESTS_SENT,
        "tx_bytes": m.TRANSMITTED_BYTES,
        "tx_cnp_pkts": m.CNP_SENT,
        "tx_pkts": m.TRANSMITTED_PACKETS,
        "tx_read_requests": m.READ_REQUESTS_SENT,
        "tx_roce_discards": m.TRANSMIT_DISCARDS,
        "tx_roce_errors": m.TRANSMIT_ERRORS,
        "tx_send_requests": m.SEND_REQUESTS_SENT,
        "tx_write_requests": m.WRITE_REQUESTS_SENT,
        "unrecoverable_err": m.UNRECOVERABLE,
    }
)

# irdma counts IPv4 and IPv6 apart: they are summed (see `summed_with`).
_IRDMA = _plain(
    {
        "cnpHandled": m.CNP_HANDLED,
        "cnpIgnored": m.CNP_IGNORED,
        "cnpSent": m.CNP_SENT,
        "InRdmaReads": m.READ_REQUESTS,
        "InRdmaSends": m.SEND_REQUESTS,
        "InRdmaWrites": m.WRITE_REQUESTS,
        "OutRdmaReads": m.READ_REQUESTS_SENT,
        "OutRdmaSends": m.SEND_REQUESTS_SENT,
        "OutRdmaWrites": m.WRITE_REQUESTS_SENT,
        "RxECNMrkd": m.ECN_RECEIVED,
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

_HNS = _plain(
    {
        "rx_cnp_pkt_cnt": m.CNP_HANDLED,
        "rx_ecn_mark": m.ECN_RECEIVED,
        "rx_oos_drop": m.OUT_OF_SEQUENCE,
        "rx_roce_icrc_err": m.ICRC_ERRORS,
        "rx_rc_err": m.RECEIVE_ERRORS,
        "rx_cqe_err": m.RESPONDER_CQE_ERRORS,
        "tx_ack_timeout": m.ACK_TIMEOUTS,
        "tx_cnp_pkt_cnt": m.CNP_SENT,
        "tx_cqe_err": m.REQUESTER_CQE_ERRORS,
        "tx_retry_exceed": m.TRANSPORT_RETRIES_EXCEEDED,
        "tx_rnr_rnr": m.RNR_NAKS,
        "wqe_rnr": m.RNR_SENT,
    }
)

_EFA = _plain(
    {
        "cmds_err": m.COMMAND_ERRORS,
        "rdma_read_wrs": m.READ_REQUESTS_SENT,
        "rdma_read_wr_err": m.WORK_REQUEST_ERRORS,
        "rdma_write_wr_err": m.WORK_REQUEST_ERRORS,
        "rdma_write_wrs": m.WRITE_REQUESTS_SENT,
        "recv_wrs": m.SEND_REQUESTS,
        "rx_bytes": m.RECEIVED_BYTES,
        "rx_drops": m.RECEIVE_DISCARDS,
        "rx_pkts": m.RECEIVED_PACKETS,
        "send_wrs": m.SEND_REQUESTS_SENT,
        "tx_bytes": m.TRANSMITTED_BYTES,
        "tx_pkts": m.TRANSMITTED_PACKETS,
    }
)

_RXE = _plain(
    {
        "completer_retry_err": m.RETRANSMITS,
        "duplicate_request": m.DUPLICATE_REQUESTS,
        "link_downed": m.LINK_DOWNED,
        "out_of_seq_request": m.OUT_OF_SEQUENCE,
        "rcvd_pkts": m.RECEIVED_PACKETS,
        "rcvd_rnr_err": m.RNR_NAKS,
        "rcvd_seq_err": m.SEQUENCE_ERRORS,
        "rdma_recv_bytes": m.RECEIVED_BYTES,
        "rdma_send_bytes": m.TRANSMITTED_BYTES,
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


@dataclass(frozen=True)
class MappedStatistic:
    """What an ethtool statistic means.

    extra : values of the labels after device, port and netdev. divisor : what brings it to the metric's unit.
    """

    spec: MetricSpec
    extra: tuple[str, ...] = ()
    divisor: int = 1


_MICROSECONDS = 1_000_000
_PLAIN_STATISTICS: Mapping[str, MappedStatistic] = {
    "rx_pause_ctrl_phy": MappedStatistic(m.GLOBAL_PAUSE_RECEIVED),
    "tx_pause_ctrl_phy": MappedStatistic(m.GLOBAL_PAUSE_TRANSMITTED),
    "rx_global_pause_duration": MappedStatistic(m.GLOBAL_PAUSE_RECEIVED_SECONDS, divisor=_MICROSECONDS),
    "tx_global_pause_duration": MappedStatistic(m.GLOBAL_PAUSE_TRANSMITTED_SECONDS, divisor=_MICROSECONDS),
    "tx_pause_storm_warning_events": MappedStatistic(m.PAUSE_STORM_WARNINGS),
    "tx_pause_storm_error_events": MappedStatistic(m.PAUSE_STORM_ERRORS),
    "link_down_events_phy": MappedStatistic(m.PHY_LINK_DOWN),
    "rx_corrected_bits_phy": MappedStatistic(m.PHY_CORRECTED_BITS),
    "rx_bits_phy": MappedStatistic(m.PHY_RECEIVED_BITS),
    "rx_pcs_symbol_err_phy": MappedStatistic(m.PHY_PCS_SYMBOL_ERRORS),
    "rx_symbol_err_phy": MappedStatistic(m.PHY_SYMBOL_ERRORS),
    "rx_crc_errors_phy": MappedStatistic(m.PHY_CRC_ERRORS),
    "rx_discards_phy": MappedStatistic(m.PHY_DISCARDS),
    "module_high_temp": MappedStatistic(m.MODULE_HIGH_TEMPERATURE),
    "module_unplug": MappedStatistic(m.MODULE_UNPLUGGED),
    "module_bus_stuck": MappedStatistic(m.MODULE_BUS_STUCK),
    "outbound_pci_stalled_rd": MappedStatistic(m.PCI_STALLED_READS, divisor=100),
    "outbound_pci_stalled_wr": MappedStatistic(m.PCI_STALLED_WRITES, divisor=100),
    "outbound_pci_stalled_rd_events": MappedStatistic(m.PCI_STALLED_READ_SECONDS),
    "outbound_pci_stalled_wr_events": MappedStatistic(m.PCI_STALLED_WRITE_SECONDS),
    "outbound_pci_buffer_overflow": MappedStatistic(m.PCI_BUFFER_OVERFLOWS),
    "rx_pci_signal_integrity": MappedStatistic(m.PCI_SIGNAL_RECEIVE),
    "tx_pci_signal_integrity": MappedStatistic(m.PCI_SIGNAL_TRANSMIT),
}
# bnxt_en, hns3, ice: their own words for the same things. mlx5 is the first of each list where it has one.
_OTHER_STATISTICS: Mapping[str, MappedStatistic] = {
    "rx_pause_frames": MappedStatistic(m.GLOBAL_PAUSE_RECEIVED),
    "tx_pause_frames": MappedStatistic(m.GLOBAL_PAUSE_TRANSMITTED),
    "link_down_events": MappedStatistic(m.PHY_LINK_DOWN),
    "rx_fec_corrected_blocks": MappedStatistic(m.FEC_CORRECTED),
    "rx_fec_uncorrectable_blocks": MappedStatistic(m.FEC_UNCORRECTABLE),
    "rx_pcs_symbol_err": MappedStatistic(m.PHY_PCS_SYMBOL_ERRORS),
}
_PRIORITY_STATISTICS: tuple[tuple[re.Pattern[str], MetricSpec, int], ...] = tuple(
    (re.compile(pattern), spec, divisor)
    for pattern, spec, divisor in (
        # mlx5
        (r"rx_prio([0-7])_pause", m.PFC_RECEIVED, 1),
        (r"tx_prio([0-7])_pause", m.PFC_TRANSMITTED, 1),
        (r"rx_prio([0-7])_pause_duration", m.PFC_RECEIVED_SECONDS, _MICROSECONDS),
        (r"tx_prio([0-7])_pause_duration", m.PFC_TRANSMITTED_SECONDS, _MICROSECONDS),
        (r"rx_prio([0-7])_pause_transition", m.PFC_RECEIVED_TRANSITIONS, 1),
        (r"tx_prio([0-7])_pause_transition", m.PFC_TRANSMITTED_TRANSITIONS, 1),
        (r"rx_prio([0-7])_discards", m.PRIORITY_DISCARDS, 1),
        (r"rx_prio([0-7])_buf_discard", m.PRIORITY_DISCARDS, 1),
        (r"rx_prio([0-7])_cong_discard", m.PRIORITY_CONGESTION_DISCARDS, 1),
        (r"rx_prio([0-7])_marked", m.PRIORITY_MARKED, 1),
        (r"rx_prio([0-7])_bytes", m.PRIORITY_RECEIVED_BYTES, 1),
        (r"tx_prio([0-7])_bytes", m.PRIORITY_TRANSMITTED_BYTES, 1),
        # bnxt_en
        (r"rx_pfc_ena_frames_pri([0-7])", m.PFC_RECEIVED, 1),
        (r"tx_pfc_ena_frames_pri([0-7])", m.PFC_TRANSMITTED, 1),
        (r"pfc_pri([0-7])_rx_duration_us", m.PFC_RECEIVED_SECONDS, _MICROSECONDS),
        (r"pfc_pri([0-7])_tx_duration_us", m.PFC_TRANSMITTED_SECONDS, _MICROSECONDS),
        (r"pfc_pri([0-7])_rx_transitions", m.PFC_RECEIVED_TRANSITIONS, 1),
        (r"pfc_pri([0-7])_tx_transitions", m.PFC_TRANSMITTED_TRANSITIONS, 1),
        (r"rx_bytes_pri([0-7])", m.PRIORITY_RECEIVED_BYTES, 1),
        (r"tx_bytes_pri([0-7])", m.PRIORITY_TRANSMITTED_BYTES, 1),
        # ice
        (r"rx_priority_([0-7])_xoff\.nic", m.PFC_RECEIVED, 1),
        (r"tx_priority_([0-7])_xoff\.nic", m.PFC_TRANSMITTED, 1),
        # hns3
        (r"mac_rx_pfc_pri([0-7])_pkt_num", m.PFC_RECEIVED, 1),
        (r"mac_tx_pfc_pri([0-7])_pkt_num", m.PFC_TRANSMITTED, 1),
        (r"mac_rx_pri([0-7])_pfc_num", m.PFC_RECEIVED, 1),
        (r"mac_tx_pri([0-7])_pfc_num", m.PFC_TRANSMITTED, 1),
    )
)
_LANE_STATISTIC = re.compile(r"rx_err_lane_(\d)_phy")


def statistic(name: str) -> MappedStatistic | None:
    """What an ethtool statistic means, None if it is not in the vocabulary."""
    found = _PLAIN_STATISTICS.get(name) or _OTHER_STATISTICS.get(name)
    if found is not None:
        return found
    lane = _LANE_STATISTIC.fullmatch(name)
    if lane:
        return MappedStatistic(m.PHY_LANE_ERRORS, (lane[1],))
    for pattern, spec, divisor in _PRIORITY_STATISTICS:
        match = pattern.fullmatch(name)
        if match:
            return MappedStatistic(spec, (match[1],), divisor)
    return None
