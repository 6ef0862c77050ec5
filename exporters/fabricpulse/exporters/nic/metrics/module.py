"""Metrics of optical modules."""

from fabricpulse.exporters.nic.metrics.declare import LINK, gauge

MODULE_INFO = gauge(
    "module_info",
    "Always 1; the module in the port (EEPROM by ethtool netlink).",
    ("device", "port", "netdev", "form", "vendor", "part_number", "serial_number"),
)
MODULE_TEMPERATURE = gauge("module_temperature_celsius", "Temperature of the module (EEPROM).", LINK)
MODULE_VOLTAGE = gauge("module_supply_volts", "Supply voltage of the module (EEPROM).", LINK)
MODULE_RECEIVED_POWER = gauge(
    "module_received_power_watts",
    "Optical power received per lane (EEPROM, 0.1 uW converted).",
    ("device", "port", "netdev", "lane"),
)
MODULE_TRANSMITTED_POWER = gauge(
    "module_transmitted_power_watts",
    "Optical power sent per lane (EEPROM, 0.1 uW converted).",
    ("device", "port", "netdev", "lane"),
)
MODULE_BIAS = gauge(
    "module_laser_bias_amperes",
    "Laser bias current per lane (EEPROM, 2 uA converted).",
    ("device", "port", "netdev", "lane"),
)
