"""Optical modules: temperature, light, laser. Off by default: the EEPROM is on a slow bus and needs CAP_NET_ADMIN."""

import errno
from dataclasses import dataclass, field

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.core.metrics.exposition import sample_prefix
from fabricpulse.hostinfo.inventory import Netdev
from fabricpulse.hostinfo.module_eeprom import Module, read_module
from fabricpulse.nic.collectors.base import Context, register
from fabricpulse.nic.collectors.link_base import DECLINED, DECLINED_PAUSE_S, LinkCollector
from fabricpulse.nic.metric_spec import LANE, LINK, gauge

MODULE_INFO = gauge(
    "module_info",
    "Always 1; the module in the port (EEPROM by ethtool netlink).",
    (*LINK, "form", "vendor", "part_number", "serial_number"),
)
MODULE_TEMPERATURE = gauge("module_temperature_celsius", "Temperature of the module (EEPROM).", LINK)
MODULE_VOLTAGE = gauge("module_supply_volts", "Supply voltage of the module (EEPROM).", LINK)
MODULE_RECEIVED_POWER = gauge(
    "module_received_power_watts",
    "Optical power received per lane (EEPROM, 0.1 uW converted).",
    LANE,
)
MODULE_TRANSMITTED_POWER = gauge(
    "module_transmitted_power_watts",
    "Optical power sent per lane (EEPROM, 0.1 uW converted).",
    LANE,
)
MODULE_BIAS = gauge(
    "module_laser_bias_amperes",
    "Laser bias current per lane (EEPROM, 2 uA converted).",
    LANE,
)
MODULE_RECEIVE_LOSS = gauge(
    "module_receive_loss_of_signal",
    "1 if the lane has had no light since the module was last asked (EEPROM, Rx LOS, latched; SFP: now).",
    LANE,
)
MODULE_TRANSMIT_LOSS = gauge(
    "module_transmit_loss_of_signal",
    "1 if the lane has had no signal from the NIC since the module was last asked (EEPROM, Tx LOS, latched).",
    LANE,
)
MODULE_RECEIVE_UNLOCKED = gauge(
    "module_receive_loss_of_lock",
    "1 if clock recovery of received light was lost since the module was last asked (EEPROM, Rx LOL, latched).",
    LANE,
)
MODULE_TRANSMIT_UNLOCKED = gauge(
    "module_transmit_loss_of_lock",
    "1 if clock recovery of the NIC's signal was lost since the module was last asked (EEPROM, Tx LOL, latched).",
    LANE,
)
MODULE_TRANSMIT_FAULT = gauge(
    "module_transmit_fault",
    "1 if the laser or its driver had a fault since the module was last asked (EEPROM, Tx fault, latched; SFP: now).",
    LANE,
)

# Temperatures move in minutes, and five pages take tens of milliseconds on the bus.
REFRESH_S = 60.0


@dataclass
class _Link:
    netdev: Netdev
    lines: list[tuple[str, str]] = field(default_factory=list)
    next_at: float = 0.0


@register()
class ModuleCollector(LinkCollector[_Link]):
    """One target a netdev with a PCI function."""

    name = "module"
    on_by_default = False

    def new_link(self, netdev: Netdev) -> _Link | None:
        return _Link(netdev) if netdev.pci_address else None

    def collect(self, target: str, context: Context) -> None:
        link = self._links[target]
        if context.now >= link.next_at:
            link.next_at = context.now + REFRESH_S
            link.lines = []
            try:
                module = read_module(
                    lambda page, offset, length, address: self._source.module(
                        target, page, offset, length, address
                    )
                )
                link.lines = lines_of(module, link.netdev.labels) if module is not None else []
            except OSError as error:
                if error.errno in DECLINED:
                    link.next_at = context.now + DECLINED_PAUSE_S
                else:
                    # Read again at the next scrape, and reported until it is fixed.
                    link.next_at = context.now
                    reason = "permission" if error.errno in (errno.EPERM, errno.EACCES) else "module"
                    context.errors.add(link.netdev.name, "module", reason)
        for family, line in link.lines:
            context.sink.line(family, line)


def lines_of(module: Module, labels: tuple[str]) -> list[tuple[str, str]]:
    """The samples of one module, rendered."""
    lines: list[tuple[str, str]] = []

    def add(spec: MetricSpec, extra: tuple[str, ...], value: float) -> None:
        lines.append((spec.name, f"{sample_prefix(spec, (*labels, *extra))}{value:.9g}\n"))

    add(MODULE_INFO, (module.form, module.vendor, module.part_number, module.serial_number), 1)
    if module.temperature_c is not None:
        add(MODULE_TEMPERATURE, (), module.temperature_c)
    if module.supply_v is not None:
        add(MODULE_VOLTAGE, (), module.supply_v)
    for spec, values in (
        (MODULE_RECEIVED_POWER, module.received_w),
        (MODULE_TRANSMITTED_POWER, module.transmitted_w),
        (MODULE_BIAS, module.bias_a),
    ):
        for lane, value in enumerate(values, 1):
            if value is not None:
                add(spec, (str(lane),), value)
    used = [value is not None for value in module.received_w]
    for spec, states in (
        (MODULE_RECEIVE_LOSS, module.flags.receive_loss),
        (MODULE_TRANSMIT_LOSS, module.flags.transmit_loss),
        (MODULE_RECEIVE_UNLOCKED, module.flags.receive_unlocked),
        (MODULE_TRANSMIT_UNLOCKED, module.flags.transmit_unlocked),
        (MODULE_TRANSMIT_FAULT, module.flags.transmit_fault),
    ):
        # No states at all where the module does not have the flag.
        for lane, (state, is_used) in enumerate(zip(states, used, strict=False), 1):
            # Of a lane without any measurement only its flags are exposed.
            if is_used or state:
                add(spec, (str(lane),), int(state))
    return lines
