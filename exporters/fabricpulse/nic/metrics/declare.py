"""How this exporter's metrics are declared, and the label sets that they share.

IB-side metrics have `device` (RDMA device, `mlx5_0`) and `port`; link-side metrics have `device`, `port` and `netdev`,
because a bond has several links behind one port. A netdev without an RDMA device is its own `device`.
"""

from fabricpulse.core.metrics.catalogue import MetricSpec

PORT = ("device", "port")
LINK = ("device", "port", "netdev")
PRIORITY = (*LINK, "priority")
DEVICE = ("device",)


def counter(stem: str, help_text: str, labels: tuple[str, ...] = PORT) -> MetricSpec:
    """`fabricpulse_nic_<stem>_total`."""
    return MetricSpec(f"fabricpulse_nic_{stem}_total", "counter", help_text, labels)


def gauge(stem: str, help_text: str, labels: tuple[str, ...] = PORT) -> MetricSpec:
    """`fabricpulse_nic_<stem>`."""
    return MetricSpec(f"fabricpulse_nic_{stem}", "gauge", help_text, labels)
