"""How this exporter's metrics are declared, and the label sets that they share.

`device` is the netdev, in every series of every exporter, so that they join on (instance, device). Series of an RDMA
device have `rdma_device` too, and those of its ports `port`; where no netdev belongs to the port (InfiniBand without
IPoIB) `device` is the RDMA device's own name.
"""

from fabricpulse.core.metrics.catalogue import MetricSpec

LINK = ("device",)
RDMA = ("device", "rdma_device")
PORT = ("device", "rdma_device", "port")
PRIORITY = (*LINK, "priority")
LANE = (*LINK, "lane")


def counter(stem: str, help_text: str, labels: tuple[str, ...] = PORT) -> MetricSpec:
    """`fabricpulse_nic_<stem>_total`."""
    return MetricSpec(f"fabricpulse_nic_{stem}_total", "counter", help_text, labels)


def gauge(stem: str, help_text: str, labels: tuple[str, ...] = PORT) -> MetricSpec:
    """`fabricpulse_nic_<stem>`."""
    return MetricSpec(f"fabricpulse_nic_{stem}", "gauge", help_text, labels)
