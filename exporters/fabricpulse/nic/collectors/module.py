"""Optical modules: temperature, light, laser. Off by default: the EEPROM is on a slow bus and needs CAP_NET_ADMIN."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field

from fabricpulse.core.metrics.catalogue import MetricSpec
from fabricpulse.nic.collectors.contract import Context, prefix
from fabricpulse.nic.collectors.ethtool import DECLINED, DECLINED_PAUSE_S
from fabricpulse.nic.inventory import Netdev
from fabricpulse.nic.kernel.ethtool import EthtoolSource
from fabricpulse.nic.metrics import module as m
from fabricpulse.nic.module_eeprom import Module, read_module

# Temperatures move in minutes, and five pages take tens of milliseconds on the bus.
REFRESH_S = 60.0


@dataclass
class _Link:
    netdev: Netdev
    lines: list[tuple[str, str]] = field(default_factory=list)
    next_at: float = 0.0


class ModuleCollector:
    """One target a netdev with a PCI function."""

    name = "module"

    def __init__(self, source: EthtoolSource) -> None:
        self._source = source
        self._links: dict[str, _Link] = {}

    def targets(self, context: Context) -> Sequence[str]:
        links = {}
        for netdev in context.inventory.netdevs:
            if netdev.pci_address:
                known = self._links.get(netdev.name)
                links[netdev.name] = known if known is not None and known.netdev == netdev else _Link(netdev)
        self._links = links
        return list(links)

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
                    # Asked again at the next scrape, and told until it is mended.
                    link.next_at = context.now
                    reason = "permission" if error.errno in (errno.EPERM, errno.EACCES) else "module"
                    context.faults.add(link.netdev.device, f"module of {target}", reason)
        for family, line in link.lines:
            context.sink.line(family, line)

    def close(self) -> None:
        self._source.close()


def lines_of(module: Module, labels: tuple[str, str, str]) -> list[tuple[str, str]]:
    """The samples of one module, rendered."""
    lines: list[tuple[str, str]] = []

    def add(spec: MetricSpec, extra: tuple[str, ...], value: float) -> None:
        lines.append((spec.name, f"{prefix(spec, (*labels, *extra))}{value:.9g}\n"))

    add(m.MODULE_INFO, (module.form, module.vendor, module.part_number, module.serial_number), 1)
    if module.temperature_c is not None:
        add(m.MODULE_TEMPERATURE, (), module.temperature_c)
    if module.supply_v is not None:
        add(m.MODULE_VOLTAGE, (), module.supply_v)
    for spec, values in (
        (m.MODULE_RECEIVED_POWER, module.received_w),
        (m.MODULE_TRANSMITTED_POWER, module.transmitted_w),
        (m.MODULE_BIAS, module.bias_a),
    ):
        for lane, value in enumerate(values, 1):
            if value is not None:
                add(spec, (str(lane),), value)
    used = [value is not None for value in module.received_w]
    for spec, states in (
        (m.MODULE_RECEIVE_LOSS, module.flags.receive_loss),
        (m.MODULE_TRANSMIT_LOSS, module.flags.transmit_loss),
        (m.MODULE_RECEIVE_UNLOCKED, module.flags.receive_unlocked),
        (m.MODULE_TRANSMIT_UNLOCKED, module.flags.transmit_unlocked),
        (m.MODULE_TRANSMIT_FAULT, module.flags.transmit_fault),
    ):
        # No states at all where the module does not have the flag.
        for lane, (state, is_used) in enumerate(zip(states, used, strict=False), 1):
            # A lane that is dead in all measurements is told of by its flags alone.
            if is_used or state:
                add(spec, (str(lane),), int(state))
    return lines
