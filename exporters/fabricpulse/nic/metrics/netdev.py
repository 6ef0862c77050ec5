"""Metrics of `/sys/class/net`."""

from fabricpulse.nic.metrics.declare import LINK, counter, gauge

LINK_CARRIER = gauge(
    "link_carrier",
    "1 if the netdev has a carrier (class/net/IF/carrier); absent while it is administratively down.",
    LINK,
)
LINK_OPERATIONAL = gauge("link_operational", "1 if class/net/IF/operstate is up, else 0.", LINK)
LINK_ADMIN_UP = gauge(
    "link_admin_up", "1 if the netdev is administratively up (IFF_UP of class/net/IF/flags).", LINK
)
LINK_SPEED = gauge(
    "link_speed_bytes_per_second",
    "Speed from class/net/IF/speed, Mb/s converted to bytes per second; absent when the driver does not know it.",
    LINK,
)
LINK_MTU = gauge("link_mtu_bytes", "Maximum transmission unit from class/net/IF/mtu.", LINK)
CARRIER_CHANGES = counter(
    "carrier_changes",
    "Carrier changes, up and down, counted by the kernel since the netdev exists (class/net/IF/carrier_changes).",
    LINK,
)
CARRIER_UP = counter(
    "carrier_up_changes",
    "Times the carrier came up, counted by the kernel (class/net/IF/carrier_up_count).",
    LINK,
)
CARRIER_DOWN = counter(
    "carrier_down_changes",
    "Times the carrier was lost, counted by the kernel (class/net/IF/carrier_down_count).",
    LINK,
)
LINK_RECEIVED_BYTES = counter(
    "link_received_bytes", "Octets received by the netdev (statistics/rx_bytes).", LINK
)
LINK_TRANSMITTED_BYTES = counter(
    "link_transmitted_bytes", "Octets transmitted by the netdev (statistics/tx_bytes).", LINK
)
LINK_RECEIVE_ERRORS = counter(
    "link_receive_errors", "Receive errors of the netdev (statistics/rx_errors).", LINK
)
LINK_TRANSMIT_ERRORS = counter(
    "link_transmit_errors", "Transmit errors of the netdev (statistics/tx_errors).", LINK
)
LINK_RECEIVE_DROPS = counter(
    "link_receive_drops", "Packets dropped on receive (statistics/rx_dropped).", LINK
)
LINK_TRANSMIT_DROPS = counter(
    "link_transmit_drops", "Packets dropped on transmit (statistics/tx_dropped).", LINK
)
LINK_CRC_ERRORS = counter("link_crc_errors", "Frames with a wrong CRC (statistics/rx_crc_errors).", LINK)
