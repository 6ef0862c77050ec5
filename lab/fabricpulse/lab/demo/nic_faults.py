"""What a scenario does to NICs of the lab, at the switch, where a cable or a port would fail, or to all of a host."""

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab
from fabricpulse.lab.demo.workload import RING
from fabricpulse.lab.faults import Fault
from fabricpulse.plugin_ipc.control import ControlClient

# Source ports that lanes may be given.
_PORTS = range(20_000, 30_000)


class _Orders(NamedTuple):
    """Where to send orders for lanes of a connection."""

    socket: Path
    connection: str


class NicFaults:
    """Called from any thread, for one NIC at a time."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._in_force: dict[tuple[str, str, str], Fault] = {}

    def link(self, host: str, device: str, up: bool) -> None:
        """Pulls a NIC's cable, and plugs it in again: the switch's end goes down, the host's end loses its carrier."""
        self._lab.host(host).nic(device).switch_port.set_up(up)

    def lose(self, host: str, device: str, percent: float) -> None:
        """Drops a share of the packets towards a NIC; 0 ends it."""
        nic = self._lab.host(host).nic(device)
        self._put("loss", host, device, (lambda: nic.loss(percent, way="rx")) if percent > 0 else None)

    def slow(self, host: str, device: str, mbit: float) -> None:
        """Lets no more than so many Mbit/s through to a NIC; 0 gives it its own speed again."""
        nic = self._lab.host(host).nic(device)
        self._put("speed", host, device, (lambda: nic.limit(mbit)) if mbit > 0 else None)

    def shrink_mtu(self, host: str, device: str, size: int) -> None:
        """Gives a NIC an MTU of so many bytes; 0 gives it its own again."""
        nic = self._lab.host(host).nic(device)
        self._put("mtu", host, device, (lambda: nic.mtu(size)) if size else None)

    def load(
        self,
        source: str,
        destination: str,
        mbit: float,
        beside: tuple[str, str] | None = None,
        apart: tuple[str, str] | None = None,
    ) -> None:
        """Sends so many Mbit/s from "h0-rail0" to "h3-rail0", which no daemon sees; 0 ends it.

        beside : over the spine that the job takes from the first of these NICs to the second. apart : not over the one
        of acknowledgements of what it sends from the first of these to the second.
        """
        path = None
        if beside is not None and mbit > 0:
            path = self._spine_beside(beside)
            if apart is not None:
                self._acknowledge_elsewhere(apart, path)
        begin = (lambda: self._lab.load(source, destination, mbit, path=path)) if mbit > 0 else None
        self._put("load", source, destination, begin)

    def detour(self, source: str, destination: str, delay_ms: float) -> None:
        """Sends TCP from "h1-rail0" to "h2-rail0" over a way that is so much longer; 0 ends it."""
        begin = (lambda: self._lab.detour(source, destination, delay_ms)) if delay_ms > 0 else None
        self._put("detour", source, destination, begin)

    def lose_time(self, host: str, lost_ns: int) -> None:
        """Both clocks of a host lose so many nanoseconds, as in a pause of its machine."""
        self._lab.host(host).clock.pause(lost_ns)

    def power_off(self, host: str) -> None:
        """Kills a host: its processes, and its links at every switch. For good: its daemons are not started again."""
        self._lab.host(host).power_off()

    def power_leaf(self, leaf: str, *, on: bool) -> None:
        """Takes the power of a leaf, or gives it back: all who are cabled to it lose their carrier."""
        for host in self._lab.hosts:
            for nic in host.nics:
                if nic.leaf == leaf:
                    nic.switch_port.set_up(on)
        for spine in self._lab.fabric.spine_names:
            self._lab.port(leaf, spine).set_up(on)

    def straggle(self, host: str) -> None:
        """Makes the rank of a host enter each round of the ring late, or no more if it does."""
        for process in self._lab.host(host).processes():
            if process.name == RING:
                process.send_signal(signal.SIGUSR1)

    def skew(self, host: str) -> None:
        """Makes the rank of a host send more to the hot rank than to others, or no more if it does."""
        for process in self._lab.host(host).processes():
            if process.name == RING:
                process.send_signal(signal.SIGRTMIN)

    def suspend_rank(self, host: str, suspended: bool) -> None:
        """Stops the ring's process of a host where it is, and lets it go on."""
        for process in self._lab.host(host).processes():
            if process.name == RING:
                process.suspend() if suspended else process.resume()

    def _spine_beside(self, flow: tuple[str, str]) -> str:
        """The spine that most of what jobs have sent from one NIC to another crosses. Raises UserError where they sent
        nothing."""
        source, destination = flow
        sent = Counter[str]()
        for _, lane in self._lanes(source, destination):
            spine = self._lab.path(source, destination, lane["entropy"], lane["queue_pair"] & 0xFFFF, "tcp")
            sent[spine] += lane["sent_bytes"]
        if not sent.total():
            raise UserError(f"no job sends from {source} to {destination}")
        return max(sent, key=lambda spine: sent[spine])

    def _acknowledge_elsewhere(self, flow: tuple[str, str], spine: str) -> None:
        """Gives lanes of jobs from one NIC to another source ports with which what acknowledges their data does not
        cross a spine, each its own. Raises UserError where there is none, or the job refuses."""
        source, destination = flow
        lanes = self._lanes(source, destination)
        taken = {lane["entropy"] for _, lane in lanes}

        def crosses(lane: Mapping[str, Any], port: int) -> bool:
            return self._lab.path(destination, source, lane["queue_pair"] & 0xFFFF, port, "tcp") == spine

        for orders, lane in lanes:
            if not lane["sent_bytes"] or not crosses(lane, lane["entropy"]):
                continue
            free = (port for port in _PORTS if port not in taken and not crosses(lane, port))
            if (port := next(free, None)) is None:
                raise UserError(f"no source port leads from {source} to {destination} beside {spine}")
            taken.add(port)
            # The same id for two lanes would be one operation to their process.
            name = f"demo-{orders.connection}-{lane['lane']}-{port}"
            with ControlClient(orders.socket) as client:
                answer = client.call({
                    "op": "lane.repath", "op_id": name, "generation": 1, "entropy": port,
                    "connection": orders.connection, "lane": lane["lane"],
                })  # fmt: skip
            if answer.get("ok") is not True:
                reason = answer.get("error")
                raise UserError(f"a lane from {source} to {destination} gets no other path: {reason}")

    def _lanes(self, source: str, destination: str) -> list[tuple["_Orders", Mapping[str, Any]]]:
        """Lanes of jobs from "h1-rail0" to "h2-rail0", and where to send orders for them."""
        host, _, device = source.partition("-")
        peer, _, peer_device = destination.partition("-")
        found: list[tuple[_Orders, Mapping[str, Any]]] = []
        for path in sorted((self._lab.host(host).run_dir / "plugin").glob("*.sock")):
            with ControlClient(path) as client:
                connections = client.call({"op": "status"})["connections"]
            for connection in connections:
                if (connection["direction"], connection["peer"]) == ("send", peer):
                    orders = _Orders(path, connection["connection"])
                    found += [
                        (orders, lane)
                        for lane in connection["lanes"]
                        if (lane["device"], lane["peer_device"]) == (device, peer_device)
                    ]
        return found

    def _put(self, what: str, at: str, to: str, begin: Callable[[], Fault] | None) -> None:
        """Ends the fault of a kind that is in force at a NIC, or between two, and begins another."""
        before = self._in_force.pop((what, at, to), None)
        if before is not None:
            before.undo()
        if begin is not None:
            self._in_force[what, at, to] = begin()
