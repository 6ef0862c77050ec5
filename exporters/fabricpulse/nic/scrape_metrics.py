"""How well devices could be read: what no collector exports, but the exporter itself."""

from fabricpulse.nic.metric_spec import RDMA, counter, gauge

DEVICE_FAILURES = gauge(
    "device_read_failures",
    "Files of the device that could not be read or understood in this scrape; absent files and values that the driver "
    "declines (EINVAL, N/A) do not count. Files of an RDMA device have rdma_device, those of a link do not.",
    RDMA,
)
READ_FAILURES = counter(
    "read_failures",
    "Files that could not be read or understood since the exporter started, by reason.",
    ("reason",),
)
