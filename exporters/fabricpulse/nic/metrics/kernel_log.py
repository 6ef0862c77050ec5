"""Metrics of the kernel log."""

from fabricpulse.nic.metrics.declare import counter

KERNEL_MESSAGES = counter(
    "kernel_messages",
    "Kernel log lines about the device since the exporter started, by kind of trouble (/dev/kmsg).",
    ("device", "kind"),
)
