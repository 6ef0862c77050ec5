"""Metrics of verbs devices and their asynchronous events."""

from fabricpulse.exporters.nic.metrics.declare import DEVICE, counter, gauge

VERBS_OPEN = gauge(
    "verbs_device_open",
    "1 if the verbs device could be opened and its asynchronous events are followed.",
    DEVICE,
)
VERBS_MAX_QP = gauge(
    "verbs_queue_pairs_max", "Queue pairs that the device can have (ibv_query_device max_qp).", DEVICE
)
ASYNC_EVENTS = counter(
    "verbs_async_events",
    "Asynchronous events of the verbs device, by kind (ibv_get_async_event).",
    ("device", "port", "event"),
)
