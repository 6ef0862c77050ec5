"""Metrics of optical modules."""

from fabricpulse.nic.metrics.declare import LINK, gauge

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
_LANE = ("device", "port", "netdev", "lane")
MODULE_RECEIVE_LOSS = gauge(
    "module_receive_loss_of_signal",
    "1 if the lane has had no light since the module was last asked (EEPROM, Rx LOS, latched; SFP: now).",
    _LANE,
)
MODULE_TRANSMIT_LOSS = gauge(
    "module_transmit_loss_of_signal",
    "1 if the lane has had no signal from the NIC since the module was last asked (EEPROM, Tx LOS, latched).",
    _LANE,
)
MODULE_RECEIVE_UNLOCKED = gauge(
    "module_receive_loss_of_lock",
    "1 if clock recovery of received light was lost since the module was last asked (EEPROM, Rx LOL, latched).",
    _LANE,
)
MODULE_TRANSMIT_UNLOCKED = gauge(
    "module_transmit_loss_of_lock",
    "1 if clock recovery of the NIC's signal was lost since the module was last asked (EEPROM, Tx LOL, latched).",
    _LANE,
)
MODULE_TRANSMIT_FAULT = gauge(
    "module_transmit_fault",
    "1 if the laser or its driver had a fault since the module was last asked (EEPROM, Tx fault, latched; SFP: now).",
    _LANE,
)
