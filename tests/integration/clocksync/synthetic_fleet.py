"""A fleet whose probe rings are written from a known truth: what the probe engine would see, without a
network.

Every host gets a run directory with a probe ring and a virtual clock. `SyntheticFleet.produce` writes, in
real time, the trains that the hosts exchange: kernel time plus a base delay plus queueing, through the
virtual clocks of both ends. Links can be cut, made asymmetric or loaded, hosts stepped or made to stamp too late.
"""

import contextlib
import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from fabricpulse.core.shm.mapping import create_mapping
from fabricpulse.core.shm.probe_ring import (
    EDGE,
    HEADER,
    INBOUND,
    MAGIC,
    MAIN_PATH,
    NEXT_OFFSET,
    OUTBOUND,
    SAMPLE,
    VERSION,
)
from fabricpulse.core.shm.virtual_clock import VirtualClock, VirtualClockWriter


def raw_kernel_ns() -> int:
    """CLOCK_MONOTONIC_RAW of the kernel, which is the truth."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class RingWriter:
    """Writes a probe ring as the engine does (protocol in probe_ring.h)."""

    def __init__(
        self,
        path: Path,
        host: str,
        edges: list[tuple[str, str, str]],
        capacity: int = 1 << 14,
        stamp_epoch_ns: int = 0,
    ) -> None:
        """edges : (device, peer, peer device). stamp_epoch_ns : stamp clock minus raw clock."""
        self.capacity = capacity
        edge_capacity = max(1, len(edges))
        self.samples_offset = -(-(HEADER.size + 2 * edge_capacity * EDGE.size) // 64) * 64
        self.map = create_mapping(path, self.samples_offset + capacity * SAMPLE.size)
        self.next = 0
        for index, (device, peer, peer_device) in enumerate(edges):
            names = [text.encode() for text in (device, device, peer, peer_device, peer_device)]
            EDGE.pack_into(self.map, HEADER.size + index * EDGE.size, 1, 1, *names)
        HEADER.pack_into(
            self.map, 0, MAGIC, VERSION, HEADER.size, EDGE.size, edge_capacity, SAMPLE.size, capacity, HEADER.size,
            self.samples_offset, host.encode(), os.getpid(), 1, 0, 0, 0, stamp_epoch_ns, 0, 0,
        )  # fmt: skip

    def write(
        self,
        edge: int,
        train: int,
        direction: int,
        tx: list[int],
        rx: list[int],
        *,
        tx_valid: int = 7,
        rx_valid: int = 7,
    ) -> None:
        """Appends one sample."""
        offset = self.samples_offset + (self.next % self.capacity) * SAMPLE.size
        self.map[offset : offset + 8] = (2 * self.next + 1).to_bytes(8, "little")
        SAMPLE.pack_into(
            self.map, offset, 2 * self.next + 1, edge, train, 1, 0, direction, MAIN_PATH, tx_valid, rx_valid,
            0, 0, *tx, *rx, 0, 0,
        )  # fmt: skip
        self.map[offset : offset + 8] = (2 * self.next + 2).to_bytes(8, "little")
        self.next += 1
        self.map[NEXT_OFFSET : NEXT_OFFSET + 8] = self.next.to_bytes(8, "little")


@dataclass
class Link:
    """A pair of NICs. forward : a -> b. load : chance that a train meets a queue."""

    a: str
    b: str
    device: str
    forward_ns: int = 1_500
    backward_ns: int = 1_500
    load: float = 0.3
    up: bool = True
    edge_a: int = 0
    edge_b: int = 0
    train: int = 0


@dataclass
class SyntheticFleet:
    """The hosts and links; `directory/<host>` is the run directory of a host.

    apart_ns : clocks begin within this. late_ns : by (receiver, sender), how much too late the receiver stamps.
    """

    directory: Path
    hosts: list[str]
    rails: int = 1
    rate: float = 50.0
    apart_ns: int = 5 * 10**9
    seed: int = 1
    links: list[Link] = field(default_factory=list)
    late_ns: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        edges: dict[str, list[tuple[str, str, str]]] = {host: [] for host in self.hosts}
        for rail in range(self.rails):
            for i, a in enumerate(self.hosts):
                for b in self.hosts[i + 1 :]:
                    device = f"rail{rail}"
                    link = Link(a, b, device, edge_a=len(edges[a]), edge_b=len(edges[b]))
                    edges[a].append((device, b, device))
                    edges[b].append((device, a, device))
                    self.links.append(link)
        self.clock_writers: dict[str, VirtualClockWriter] = {}
        self.clocks: dict[str, VirtualClock] = {}
        self.rings: dict[str, RingWriter] = {}
        self.epochs: dict[str, int] = {}
        now, raw_now = time.time_ns(), raw_kernel_ns()
        for host in self.hosts:
            path = self.directory / host
            path.mkdir(parents=True, exist_ok=True)
            writer = VirtualClockWriter(path / "virtual_clock", capacity=4096)
            ppm = self._ppm()
            writer.append(now, self.random.randint(-self.apart_ns, self.apart_ns), ppm)
            writer.append_raw(raw_now, 0, ppm)
            self.clock_writers[host] = writer
            self.clocks[host] = VirtualClock(path / "virtual_clock")
            epoch = self.epochs[host] = self.clocks[host].from_kernel(now) - raw_now & -(1 << 20)
            self.rings[host] = RingWriter(path / "probes", host, edges[host], stamp_epoch_ns=epoch)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _ppm(self) -> int:
        return self.random.randint(-50_000_000, 50_000_000)

    def environment(self, host: str) -> dict[str, str]:
        """What a daemon of `host` is started with."""
        return {
            "FABRICPULSE_RUN_DIR": str(self.directory / host),
            "FABRICPULSE_VIRTUAL_CLOCK": str(self.directory / host / "virtual_clock"),
        }

    def set_clock(self, host: str, offset_ns: int, rate_ppb: int = 0) -> None:
        """From now on the clock of `host` shows the kernel's time and `offset_ns`, and gains `rate_ppb`."""
        self.clock_writers[host].append(time.time_ns(), offset_ns, rate_ppb * 1000)

    def steer_clock(self, host: str, by_ppb: int) -> None:
        """CLOCK_REALTIME of `host` is made to run faster than its oscillator by `by_ppb` from now on."""
        now = time.time_ns() + 50_000_000
        shown = self.clocks[host].from_kernel(now)
        rate_ppb = self.clocks[host].from_kernel(now + 10**9) - shown - 10**9
        self.clock_writers[host].append(now, shown - now, (rate_ppb + by_ppb) * 1000)

    def turn_oscillator(self, host: str, by_ppb: int) -> None:
        """Both clocks of `host` run faster by `by_ppb` from now on."""
        raw_now = raw_kernel_ns() + 50_000_000
        shown = self.clocks[host].raw_from_kernel(raw_now)
        rate_ppb = self.clocks[host].raw_from_kernel(raw_now + 10**9) - shown - 10**9
        self.clock_writers[host].append_raw(raw_now, shown - raw_now, (rate_ppb + by_ppb) * 1000)
        self.steer_clock(host, by_ppb)

    def step_clock(self, host: str, by_ns: int) -> None:
        """Steps the clock of `host` now; its rate stays."""
        now = time.time_ns()
        shown = self.clocks[host].from_kernel(now)
        rate = self.clocks[host].from_kernel(now + 10**9) - shown - 10**9
        self.clock_writers[host].append(now, shown - now + by_ns, rate * 1000)

    def start(self) -> None:
        """Begins to write trains, in a thread."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # As the thread of the engine: a host whose probes stop for 0.2 s is in holdover.
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        done = raw_kernel_ns()
        due = {id(link): done + self.random.randint(0, int(1e9 / self.rate)) for link in self.links}
        while not self._stop.wait(0.02):
            now = raw_kernel_ns()
            for link in self.links:
                while due[id(link)] < now:
                    at = due[id(link)]
                    due[id(link)] += round(1e9 / self.rate * self.random.uniform(0.8, 1.2))
                    if link.up:
                        self._train(link, at)

    def _stamp(self, host: str, raw_ns: int) -> int:
        return self.clocks[host].raw_from_kernel(raw_ns) + self.epochs[host]

    def _train(self, link: Link, at: int) -> None:
        link.train += 1
        for sender, receiver, base, direction_a in (
            (link.a, link.b, link.forward_ns, OUTBOUND),
            (link.b, link.a, link.backward_ns, INBOUND),
        ):
            tx, rx = [], []
            queued = self.random.random() < link.load
            for packet in range(3):
                sent = at + packet * 20_000
                delay = base + abs(self.random.gauss(0, 15))
                delay += 8_000 * self.random.random() if packet == 0 else 0.0
                delay += self.random.expovariate(1 / 50_000) if queued else 0.0
                tx.append(self._stamp(sender, sent))
                rx.append(
                    self._stamp(receiver, sent + round(delay)) + self.late_ns.get((receiver, sender), 0)
                )
            self.rings[link.a].write(link.edge_a, link.train, direction_a, tx, rx)
            self.rings[link.b].write(
                link.edge_b, link.train, INBOUND if direction_a == OUTBOUND else OUTBOUND, tx, rx
            )
