"""Metrics of verbs devices and their asynchronous events."""

from fabricpulse.nic.metrics.declare import DEVICE, counter, gauge

VERBS_OPEN = gauge(
    "verbs_device_open",
    "1 if the verbs device could be opened and its asynchronous events are followed.",
    DEVICE,
)
VERBS_MAX_QP = gauge(
    "verbs_queue_pairs_max", "Queue pairs that the device can have (ibv_query_device max_qp).", DEVICE
)
VERBS_MTU = gauge(
    "verbs_active_mtu_bytes",
    "Path MTU of RDMA on the port (ibv_query_port active_mtu): 4096 at best; what the netdev's MTU leaves room for.",
)
VERBS_BAD_PKEYS = counter(
    "verbs_partition_key_violations",
    "Packets with a partition key that did not fit (ibv_query_port bad_pkey_cntr; InfiniBand's stops at 65535).",
)
VERBS_BAD_QKEYS = counter(
    "verbs_queue_key_violations",
    "Packets with a queue key that did not fit (ibv_query_port qkey_viol_cntr; InfiniBand's stops at 65535).",
)
ASYNC_EVENTS = counter(
    "verbs_async_events",
    "Asynchronous events of the verbs device, by kind (ibv_get_async_event).",
    ("device", "port", "event"),
)
