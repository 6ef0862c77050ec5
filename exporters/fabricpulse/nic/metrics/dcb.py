"""Metrics of Data Center Bridging: PFC, ETS, DSCP, and ECN."""

from fabricpulse.nic.metrics.declare import LINK, PRIORITY, counter, gauge

PFC_ENABLED = gauge(
    "pfc_enabled", "1 if priority flow control is on for the priority (DCB netlink, IEEE PFC).", PRIORITY
)
DCB_PFC_SENT = counter(
    "dcb_pfc_requests",
    "Pause frames sent per priority, as DCB counts them (DCB netlink, PFC requests).",
    PRIORITY,
)
DCB_PFC_RECEIVED = counter(
    "dcb_pfc_indications",
    "Pause frames received per priority, as DCB counts them (DCB netlink, PFC indications).",
    PRIORITY,
)
PRIORITY_CLASS = gauge(
    "priority_traffic_class", "Traffic class of the priority (DCB netlink, ETS).", PRIORITY
)
CLASS_BANDWIDTH = gauge(
    "traffic_class_bandwidth_ratio",
    "Guaranteed share of the traffic class; absent for strict priority (DCB netlink, ETS, percent converted).",
    ("device", "port", "netdev", "traffic_class"),
)
DSCP_PRIORITY = gauge(
    "dscp_priority",
    "Priority to which a DSCP is mapped (DCB netlink, application table).",
    ("device", "port", "netdev", "dscp"),
)
TRUST_DSCP = gauge(
    "trust_dscp",
    "1 if the NIC takes the priority from DSCP, 0 if from the VLAN tag (DCB netlink: a DSCP entry in the application table).",
    LINK,
)
ECN_ENABLED = gauge(
    "ecn_enabled",
    "1 if congestion control is on for the priority; role np answers marks, rp slows down (class/net/IF/ecn/roce_ROLE/enable/P, out-of-tree mlx5).",
    ("device", "port", "netdev", "role", "priority"),
)
