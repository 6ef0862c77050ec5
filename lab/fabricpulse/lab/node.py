"""What a lab consists of, as objects: nodes, hosts, NICs, links, spines."""

import os
import socket as sockets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fabricpulse.core.errors import UserError
from fabricpulse.lab.clocks import HostClock
from fabricpulse.lab.fabric import FRONT_END, FRONT_END_DEVICE, HostPlan, NicPlan
from fabricpulse.lab.faults import Fault, Flap, LinkDown, NicWay, Port, Way, together
from fabricpulse.lab.network import LabNetwork
from fabricpulse.lab.process import LabProcess

# A NIC's faults are made at the switch's port, whose `out` is the host's rx.
_AT_SWITCH: dict[NicWay, Way] = {"rx": "out", "tx": "in", "both": "both"}


class Node:
    """A machine or switch of the lab: a network namespace with its own /sys, host name and run directory."""

    def __init__(self, lab: LabNetwork, name: str, directory: Path) -> None:
        self._lab = lab
        self.name = name
        self.directory = directory

    @property
    def run_dir(self) -> Path:
        """FABRICPULSE_RUN_DIR of its processes; inside the node also /run/fabricpulse."""
        return self.directory / "run"

    def popen(self, argv: Sequence[str | os.PathLike[str]], **options: Any) -> LabProcess:
        """Lab.popen here."""
        return self._lab.popen(self.name, argv, **options)

    def run(self, argv: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[str]:
        """Lab.run here."""
        return self._lab.run(self.name, argv, **options)

    def socket(
        self,
        kind: sockets.SocketKind = sockets.SOCK_STREAM,
        family: sockets.AddressFamily = sockets.AF_INET,
        protocol: int = 0,
    ) -> sockets.socket:
        """Lab.socket here."""
        return self._lab.socket(self.name, kind, family, protocol)

    def processes(self) -> list[LabProcess]:
        """The processes started here that still run."""
        return self._lab.processes_of(self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Nic:
    """A NIC of a host, with its cable to the switch."""

    def __init__(self, lab: LabNetwork, host_port: Port, switch_port: Port, plan: NicPlan | None) -> None:
        self._lab = lab
        self._plan = plan
        self.host_port = host_port
        self.switch_port = switch_port
        self.device = host_port.device

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return self._rail().address

    @property
    def address6(self) -> str:
        """Its IPv6 address."""
        return self._rail().address6

    @property
    def leaf(self) -> str:
        """The leaf that it is cabled to."""
        return self._rail().leaf

    def down(self) -> LinkDown:
        """Pulls the cable: the host's NIC loses its carrier."""
        return self.switch_port.down()

    def admin_down(self) -> LinkDown:
        """`ip link set … down` on the host itself; undoing it restores the NIC's routes."""
        return self.host_port.down()

    def flap(self, rate_hz: float = 1.0, count: int | None = None, **plan: float) -> Flap:
        """The carrier goes and comes at `rate_hz`; down_fraction, jitter, seed as in FlapPlan."""
        return self.switch_port.flap(rate_hz, count, **plan)

    def loss(self, percent: float, way: NicWay = "both", match: str = "") -> Fault:
        """Loses packets on the cable at random; see Port.loss."""
        return self.switch_port.loss(percent, _AT_SWITCH[way], match)

    def black_hole(self, way: NicWay = "both", match: str = "") -> Fault:
        """Loses everything this way, both ends keep their carrier."""
        return self.switch_port.black_hole(_AT_SWITCH[way], match)

    def corrupt(self, percent: float, way: NicWay = "both", match: str = "") -> Fault:
        """Damages TCP packets on the cable so that no checksum notices; see Port.corrupt."""
        return self.switch_port.corrupt(percent, _AT_SWITCH[way], match)

    def ecn_mark(self, percent: float = 100, way: NicWay = "rx", match: str = "") -> Fault:
        """Marks ECN-capable packets CE."""
        return self.switch_port.ecn_mark(percent, _AT_SWITCH[way], match)

    def mtu(self, size: int) -> Fault:
        """The switch drops larger frames from the host without a word: the MTU that someone forgot."""
        return self.switch_port.mtu(size)

    def limit(self, mbit: float, queue_ms: float = 20.0, way: NicWay = "rx") -> Fault:
        """Limits the rate, with a queue. `rx` queues in the switch; `tx` queues in the host's own qdisc."""
        ports = {
            "rx": [self.switch_port],
            "tx": [self.host_port],
            "both": [self.switch_port, self.host_port],
        }[way]
        return together(self._lab, f"limit {self}", [port.limit(mbit, queue_ms) for port in ports])

    def __repr__(self) -> str:
        return repr(self.host_port)

    def _rail(self) -> NicPlan:
        if self._plan is None:
            raise UserError(f"{self} is the front-end NIC, not on a rail")
        return self._plan


class Host(Node):
    """A GPU host: rail NICs, a front-end NIC, a clock of its own."""

    def __init__(
        self,
        lab: LabNetwork,
        plan: HostPlan,
        directory: Path,
        clock: HostClock,
        ports: Mapping[tuple[str, str], Port],
    ) -> None:
        """ports : of the lab, by node and device."""
        super().__init__(lab, plan.name, directory)
        self.plan = plan
        self.clock = clock
        self._nics = {
            nic.device: Nic(lab, ports[plan.name, nic.device], ports[nic.leaf, plan.name], nic)
            for nic in plan.nics
        }
        self.front_end_nic = Nic(lab, ports[plan.name, FRONT_END_DEVICE], ports[FRONT_END, plan.name], None)

    @property
    def front_end(self) -> str:
        """Its address on the management network."""
        return self.plan.front_end

    @property
    def nics(self) -> tuple[Nic, ...]:
        """Its rail NICs."""
        return tuple(self._nics.values())

    def nic(self, device: str | int) -> Nic:
        """A rail NIC by name or number, or `fe0`. Raises UserError."""
        name = f"rail{device}" if isinstance(device, int) else device
        if name == FRONT_END_DEVICE:
            return self.front_end_nic
        try:
            return self._nics[name]
        except KeyError:
            raise UserError(f"{self.name} has no NIC {name!r}; it has {', '.join(self._nics)}, fe0") from None

    def crash(self) -> None:
        """Kills every process of the host, as a power cut does; its NICs stay up. Returns when they are gone."""
        dying = self.processes()
        for process in dying:
            process.kill()
        for process in dying:
            process.wait(10)

    def power_off(self) -> Fault:
        """The host dies: its processes are killed, every switch sees its cables go. `undo` powers the NICs, no more."""
        self.crash()
        ports = [nic.switch_port for nic in (*self.nics, self.front_end_nic)]
        return together(self._lab, f"power off {self.name}", [port.down() for port in ports])

    def freeze(self) -> Fault:
        """Every process of the host stands still, as in a kernel or hypervisor stall; the network stack answers on."""
        frozen = self.processes()
        for process in frozen:
            process.suspend()

        def undo() -> None:
            for process in frozen:
                process.resume()

        return Fault(self._lab, f"freeze {self.name}", undo)


class Link:
    """A cable between a leaf and a spine: one of the equal paths, for that leaf."""

    def __init__(self, lab: LabNetwork, leaf_port: Port, spine_port: Port) -> None:
        self._lab = lab
        self.leaf_port = leaf_port
        self.spine_port = spine_port

    def down(self) -> LinkDown:
        """The leaf loses the uplink and uses the others; what other leaves send it by this spine is lost."""
        return self.spine_port.down()

    def flap(self, rate_hz: float = 1.0, count: int | None = None, **plan: float) -> Flap:
        """Down and up at `rate_hz`."""
        return self.spine_port.flap(rate_hz, count, **plan)

    def loss(self, percent: float, way: Way = "both", match: str = "") -> Fault:
        """Loses packets at random; `out` leaves the leaf, `in` arrives at it."""
        return self.leaf_port.loss(percent, way, match)

    def black_hole(self, way: Way = "both", match: str = "") -> Fault:
        """Loses everything this way while both ends keep their carrier."""
        return self.leaf_port.black_hole(way, match)

    def ecn_mark(self, percent: float = 100, way: Way = "out", match: str = "") -> Fault:
        """Marks ECN-capable packets CE."""
        return self.leaf_port.ecn_mark(percent, way, match)

    def limit(self, mbit: float, queue_ms: float = 20.0, way: Way = "both") -> Fault:
        """Limits the rate with a queue, in the leaf (`out`), the spine (`in`) or both."""
        ports = {"out": [self.leaf_port], "in": [self.spine_port], "both": [self.leaf_port, self.spine_port]}[
            way
        ]
        return together(self._lab, f"limit {self}", [port.limit(mbit, queue_ms) for port in ports])

    def __repr__(self) -> str:
        return f"{self.leaf_port.node}={self.spine_port.node}"


class Spine(Node):
    """One of the equal paths between leaves."""

    def __init__(self, lab: LabNetwork, name: str, directory: Path, ports: tuple[Port, ...]) -> None:
        """ports : its own, one per leaf."""
        super().__init__(lab, name, directory)
        self.ports = ports

    def down(self) -> Fault:
        """The spine loses power: every leaf sees the carrier go and uses the other spines."""
        return together(self._lab, f"down {self.name}", [port.down() for port in self.ports])

    def black_hole(self, match: str = "") -> Fault:
        """Forwards nothing while every link keeps its carrier."""
        return together(
            self._lab, f"black hole {self.name}", [port.black_hole("in", match) for port in self.ports]
        )

    def loss(self, percent: float, match: str = "") -> Fault:
        """Loses packets at random as they arrive at the spine."""
        return together(
            self._lab, f"loss {self.name}", [port.loss(percent, "in", match) for port in self.ports]
        )

    def limit(self, mbit: float, queue_ms: float = 20.0) -> Fault:
        """Limits each of its ports: congestion on this path."""
        return together(self._lab, f"limit {self.name}", [port.limit(mbit, queue_ms) for port in self.ports])
