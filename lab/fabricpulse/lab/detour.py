"""A longer way for some packets: the first leaf's routes send them through a device that holds each for a fixed time.

No queueing discipline that delays is needed, which not every kernel has: the device is a TUN that a process of the leaf
reads and writes, `python -m fabricpulse.lab.detour`. What it writes goes on by the leaf's usual routes. Nothing is
dropped or slowed down, up to what one Python process can carry (thousands of packets a second).
"""

import json
import os
import sys

from fabricpulse.core.errors import UserError
from fabricpulse.lab.delay_line import DelayLine, carry, open_tun, start
from fabricpulse.lab.fabric import BRIDGE
from fabricpulse.lab.faults import Fault
from fabricpulse.lab.network import LabNetwork
from fabricpulse.lab.node import Nic

# Before the leaf's main table.
_PRIORITY = 500
_FIRST_TABLE = 200


class Detour(Fault):
    """TCP from one NIC to another takes the longer way; `undo()` ends it."""

    def __init__(self, lab: LabNetwork, what: str, source: Nic, destination: str, delay_ms: float) -> None:
        """destination : its IPv4 address. Raises UserError where that cannot be."""
        if delay_ms <= 0:
            raise UserError(f"a detour of {delay_ms} ms is not possible: it must be above 0")
        number = lab.next_number()
        device, table = f"detour{number}", _FIRST_TABLE + number
        order = {"device": device, "delay_s": delay_ms / 1e3, "mtu": lab.fabric.mtu}
        self._lab_network = lab
        self._leaf = source.leaf
        way = f"from {source.address} to {destination}"
        self._rule = f"priority {_PRIORITY} iif {BRIDGE} {way} ipproto tcp lookup {table}"
        self.process = start(lab, self._leaf, device, "fabricpulse.lab.detour", order)
        try:
            lab.batch(
                self._leaf,
                "ip",
                [
                    f"link set dev {device} mtu {lab.fabric.mtu} up",
                    f"route add default dev {device} table {table}",
                    f"rule add {self._rule}",
                ],
            )
        except BaseException:
            self.process.kill()
            raise
        super().__init__(lab, what, self._end)

    def _end(self) -> None:
        """The device and its routes go with the process."""
        self._lab_network.batch(self._leaf, "ip", [f"rule del {self._rule}"])
        self.process.kill()
        self.process.wait(10)


def main() -> None:
    """Carries packets until it is killed."""
    order = json.loads(sys.argv[1])
    tun = open_tun(order["device"])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(tun, DelayLine(order["delay_s"]), order["mtu"] + 64, lambda packet: os.write(tun, packet))


if __name__ == "__main__":
    main()
