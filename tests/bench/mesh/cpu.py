"""CPU of the probe engine's thread, without and with the work of the lab's wire.

On hardware a send ends when the packet lies in the NIC's ring: the switch works for itself, and the receiver on the
receiver. A veth has no ring. Its transmit puts the packet into the backlog of the same CPU, and before the send returns
the softirq takes it through the bridge of the switch's namespace, into the receiver's namespace, up its UDP stack and
into the receiver's socket, all on the sender's account. So the same engines are measured in three ways, in turns:

- `..._with_switch`: as the lab is, with the switch and the receiver in the sender's sends. No gate.
- `..._steered`: receive packet steering (the `rps_cpus` of every veth on the way) gives the wire to another CPU, and
  the engine and its peers each have a CPU of their own. A send then ends with the packet in the other CPU's backlog, in
  the place of a NIC's ring. Everything that the engine's own thread does is still on its account: system calls, route,
  UDP, queueing, driver, TX stamps, the steering itself. What its CPU still takes out of backlogs is counted
  (softnet_stat, `wire_per_s`), and the measurement fails unless the wire is gone from it. No gate: the other CPU is
  notified by an inter-processor interrupt, once a system call, where a NIC is notified by a posted write to its
  doorbell. On a virtual machine that interrupt is an exit to the hypervisor: 12 us where this was written, 8 % of all
  that the engine used.
- the gated one: steered, and idle CPUs poll (PM QoS, /dev/cpu_dma_latency). A CPU that polls needs no interrupt
  (`wire_ipis_per_s` says how many came all the same), and no CPU sleeps deeply, as on a node that is tuned for latency.
  Where the kernel has no idle driver that can poll, this is the same as `..._steered`.

In the turns of the gated one a bare loop of the same system calls takes its own (mesh_floor): what the kernel of this
machine uses for 1,500 packets each way at the moment, whatever engine asks for them. The engine may add 40 %.

What is not on the thread's account on hardware either: the interrupt of a NIC that brings a packet. It is charged to
whatever runs there.
"""

import json
import os
import signal
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.bench.mesh.cost import ENGINES, engine_file, peer_lab
from tests.bench.mesh.floor import BareLoop, bare_loop
from tests.bench.mesh.rows import report

from fabricpulse.lab import Lab, LabProcess

REPETITIONS = 5
TURN_S = 3.0
TRAINS_PER_S = 50.0

NOTES = {
    "": "the veths are steered to another CPU and idle CPUs poll: of the wire, wire_ipis_per_s is what is left",
    "_steered": "the veths are steered to another CPU, which idles: the engine pays for waking it",
    "_with_switch": "each send runs the lab's switch and the receiver's stack before it returns; no NIC does that",
}


@dataclass(frozen=True)
class EngineUnderTest:
    """The engine of h0, which measures on demand, and the one that plays its peers on h1."""

    process: LabProcess
    playing: LabProcess
    requests: TextIO
    answers: TextIO

    def measure(self, seconds: float) -> dict[str, Any]:
        """What the engine did in the next `seconds`, as tests.bench.mesh.engine tells it."""
        self.requests.write(f"{seconds}\n")
        self.requests.flush()
        got: dict[str, Any] = json.loads(self.answers.readline())
        return got


@contextmanager
def engine_under_test(lab: Lab, addresses: list[list[str]]) -> Iterator[EngineUnderTest]:
    """Runs both engines: 50 trains a second of three packets to every address and back."""
    own = [(nic.device, nic.device, nic.address) for nic in lab.host("h0").nics]
    pairs = [(rail, p, address) for rail, found in enumerate(addresses) for p, address in enumerate(found)]
    plan = {
        "host": "h0",
        # In memory, as in production: pages of a disk's file system fault anew after each write-back.
        "settings": {"ring_path": "/dev/shm/ring"},  # noqa: S108 - the node's own
        "nics": own,
        "edges": [(rail, "h1", f"{own[rail][0]}-{p}", own[rail][0], address) for rail, p, address in pairs],
    }
    # One engine plays all peers, so that the CPU is not woken for each of them.
    peers = {
        "host": "h1",
        "settings": {"bind_device": False},
        "nics": [(f"{own[rail][0]}-{p}", own[rail][0], address) for rail, p, address in pairs],
        "edges": [(index, "h0", own[rail][0], *own[rail][1:]) for index, (rail, _, _) in enumerate(pairs)],
    }
    playing = lab.popen("h1", [*ENGINES, engine_file(lab, "peers", [peers], 600, 1)])
    inner_in, requests = os.pipe()
    answers, inner_out = os.pipe()
    process = lab.popen(
        "h0", [*ENGINES, engine_file(lab, "own", [plan], None, 3)], stdin=inner_in, stdout=inner_out
    )
    os.close(inner_in)
    os.close(inner_out)
    with os.fdopen(requests, "w") as writing, os.fdopen(answers) as reading:
        if reading.readline() != "ready\n":
            raise AssertionError(f"{process.describe()} has not started; it ended with {process.wait(10)}")
        yield EngineUnderTest(process, playing, writing, reading)
    process.wait(10)
    playing.kill()


def pin(process: LabProcess, cpus: set[int]) -> None:
    """Every thread of the process runs on `cpus` only."""
    for task in Path(f"/proc/{process.outer_pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)


def steer(lab: Lab, cpu: int | None) -> None:
    """What arrives at any veth of the rails is worked on by `cpu`; None: by the CPU that sent it."""
    mask = f"{1 << cpu if cpu is not None else 0:x}"
    for host in lab.hosts:
        for nic in host.nics:
            for node, device in ((host.name, nic.device), (nic.leaf, host.name)):
                queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
                lab.run(node, ["sh", "-c", f"echo {mask} > {queue}"])


@contextmanager
def polling_idle() -> Iterator[None]:
    """Idle CPUs poll instead of halting, for as long as the kernel's PM QoS file is held open with a latency of 0 us.

    Without effect where the kernel has no idle driver that can poll.
    """
    try:
        request = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
    except FileNotFoundError:
        yield
        return
    try:
        os.write(request, struct.pack("i", 0))
        yield
    finally:
        os.close(request)


def wire_interrupts(cpu: int) -> int:
    """Function call interrupts that the CPU has taken since boot; steering sends these."""
    for line in Path("/proc/interrupts").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "CAL":
            return int(counts.split()[cpu])
    return 0


def backlog_packets(cpu: int) -> int:
    """Packets that the CPU has taken out of its backlog since boot (/proc/net/softnet_stat: the first column; the
    thirteenth is the CPU's number)."""
    for line in Path("/proc/net/softnet_stat").read_text().splitlines():
        fields = [int(field, 16) for field in line.split()]
        if fields[12] == cpu:
            return fields[0]
    raise AssertionError(f"/proc/net/softnet_stat has no CPU {cpu}")


def measure_steered(engine: EngineUnderTest | BareLoop, own: int, other: int) -> dict[str, Any]:
    """One turn with the wire on CPU `other`. Raises AssertionError when it is on the engine's, `own`."""
    packets, interrupts, began = backlog_packets(own), wire_interrupts(other), time.monotonic()
    got = engine.measure(TURN_S)
    elapsed = time.monotonic() - began  # with the warm-up of a bare loop
    got["wire_per_s"] = (backlog_packets(own) - packets) / elapsed
    got["wire_ipis_per_s"] = (wire_interrupts(other) - interrupts) / elapsed
    assert got["wire_per_s"] < 0.05 * got["sent_per_s"], f"the wire is on the engine's CPU: {got}"
    return got


def bench_cpu(case: str, metric: str, rails: int, must: str) -> None:
    """CPU of the engine's thread at 10 peers a NIC, 50 trains a second, three packets each; the median of the turns."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("bench mesh: the CPU of the engine needs two CPUs: one for it, one for the wire")
    own, other = cpus[:2]
    turns: dict[str, list[dict[str, Any]]] = {way: [] for way in NOTES}
    floor: list[dict[str, Any]] = []
    with (
        peer_lab(rails, 10) as (lab, addresses),
        bare_loop(lab, addresses, TRAINS_PER_S) as bare,
        engine_under_test(lab, addresses) as engine,
    ):
        pin(bare.process, {own})
        pin(bare.playing, {other})
        for _ in range(REPETITIONS):
            steer(lab, other)
            pin(engine.process, {own})
            pin(engine.playing, {other})
            with polling_idle():
                turns[""].append(measure_steered(engine, own, other))
                with paused(engine):
                    floor.append(measure_steered(bare, own, other))
            turns["_steered"].append(measure_steered(engine, own, other))
            steer(lab, None)
            pin(engine.process, set(cpus))
            pin(engine.playing, set(cpus))
            turns["_with_switch"].append(engine.measure(TURN_S))
    for way, measured in turns.items():
        assert all(got["up"] == 10 * rails for got in measured), measured
        value = median(measured, "cpu_percent")
        limit = must if way == "" else None
        report(case, metric + way, value, "percent of a core", limit, **detail(measured), note=NOTES[way])
    for got in floor:
        # Else it is the floor of something else: two of three packets are stamped, and all arrive.
        assert (
            got["stamps_per_s"] > 0.6 * got["sent_per_s"] and got["received_per_s"] > 0.9 * got["sent_per_s"]
        ), got
    above = statistics.median(
        got["cpu_percent"] / least["cpu_percent"] for got, least in zip(turns[""], floor, strict=True)
    )
    report(
        f"{case}, bare socket loop",
        metric,
        median(floor, "cpu_percent"),
        "percent of a core",
        **detail(floor),
        note="the same system calls without the engine, each turn right after the engine's",
    )
    report(
        case,
        f"{metric}_to_bare_loop",
        above,
        "ratio",
        "<= 1.4",
        note="what the engine itself adds to the calls that its packets need; holds on any machine",
    )


@contextmanager
def paused(engine: EngineUnderTest) -> Iterator[None]:
    """Neither engine runs inside; they have caught up with each other again afterwards."""
    for process in (engine.process, engine.playing):
        os.kill(process.outer_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in (engine.process, engine.playing):
            os.kill(process.outer_pid, signal.SIGCONT)
        time.sleep(0.5)  # what queued while they stood still must not count as the next turn's work


def median(turns: list[dict[str, Any]], key: str) -> float:
    """The median of one figure over the turns."""
    return statistics.median(float(turn[key]) for turn in turns)


def detail(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """What belongs beside the CPU figure."""
    shown = {
        key: round(median(turns, key), 1)
        for key in (
            "sent_per_s",
            "received_per_s",
            "stamps_lost",
            "overflows",
            "wire_per_s",
            "wire_ipis_per_s",
        )
        if key in turns[0]
    }
    return shown | {"turns": [round(turn["cpu_percent"], 3) for turn in turns]}
