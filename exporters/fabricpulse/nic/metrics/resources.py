"""Metrics of RDMA netlink: resources, queue pairs, optional counters."""

from fabricpulse.nic.metrics.declare import counter, gauge

RESOURCES = gauge(
    "rdma_resources",
    "RDMA resources that exist on the device, by kind: qp, cq, mr, pd, cm_id, ctx, srq (RDMA netlink).",
    ("device", "resource"),
)
QP_COUNT = gauge(
    "queue_pairs",
    "Queue pairs on the device by type and state (RDMA netlink; collector queue_pairs).",
    ("device", "qp_type", "state"),
)
CC_MARKED_RECEIVED = counter(
    "cc_marked_packets_received",
    "RoCE packets received with the congestion mark (optional counter cc_rx_ce_pkts, RDMA netlink).",
)
CC_CNP_RECEIVED = counter(
    "cc_cnp_packets_received",
    "Congestion notification packets received (optional counter cc_rx_cnp_pkts, RDMA netlink).",
)
CC_CNP_SENT = counter(
    "cc_cnp_packets_sent",
    "Congestion notification packets sent (optional counter cc_tx_cnp_pkts, RDMA netlink).",
)
