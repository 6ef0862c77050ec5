"""Metrics of the PCIe link, its errors, and where the NIC sits."""

from fabricpulse.nic.metrics.declare import counter, gauge

PCIE_SPEED = gauge(
    "pcie_link_transfers_per_second",
    "Transfers per second and lane of the PCIe link now (current_link_speed, GT/s converted).",
    ("device", "pci_address"),
)
PCIE_SPEED_MAX = gauge(
    "pcie_link_transfers_per_second_max",
    "Transfers per second and lane that the device can do (max_link_speed, GT/s converted).",
    ("device", "pci_address"),
)
PCIE_WIDTH = gauge(
    "pcie_link_width_lanes", "Lanes of the PCIe link now (current_link_width).", ("device", "pci_address")
)
PCIE_WIDTH_MAX = gauge(
    "pcie_link_width_lanes_max", "Lanes that the device has (max_link_width).", ("device", "pci_address")
)
PCIE_AER = counter(
    "pcie_aer_errors",
    "PCIe errors by severity and kind (aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal).",
    ("device", "pci_address", "severity", "error"),
)
AFFINITY = gauge(
    "affinity_info",
    "Always 1; where the NIC sits: PCI address, NUMA node (-1 unknown), nearest GPUs by PCI address (most common "
    "ancestors in the PCI tree), comma separated, and how they are joined: same_switch, same_host_bridge, same_numa.",
    ("device", "pci_address", "numa_node", "gpus", "gpu_path"),
)
