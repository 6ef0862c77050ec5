"""What one round of a large fleet costs a coordinator when reports come as datagrams: taking them, solving, answering.

The coordinator's own classes on a real socket of the loopback, in a process of its own; another process sends the
datagrams of all hosts, in each round over anew, as fast as it can. CPU time is that of the coordinator's process, all
threads, also what the kernel does in its name: for replies on the loopback that includes their reception.
"""

import json
import os
import socket
import time
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.coordinator.fleet import Fleet
from fabricpulse.clocksync.coordinator.report_channels import ReportChannels
from fabricpulse.clocksync.wire.datagram import pack_request
from fabricpulse.clocksync.wire.messages import (
    EDGE,
    EDGE_DTYPE,
    PROTOCOL,
    Channel,
    EdgeName,
    HostInfo,
    Line,
    RoundReport,
)


def intake_child(n: int, edges: int = 10, nics: int = 1, steps: int = 5, port: int = 29_615) -> None:
    """Prints one JSON object: CPU of a round by part, memory, and what the intake has counted. nics : of each host."""
    rng = np.random.default_rng(1)
    names = [f"gpu-{k:05d}" for k in range(n)]
    peers = (np.arange(n)[:, None] + rng.integers(1, n, (n, edges))) % n
    # A lease that lasts until all have joined, on a busy machine too.
    fleet = Fleet(lease_s=600.0)
    channels = ReportChannels(fleet, [("127.0.0.1", port)])
    now_ns = time.time_ns()
    line = Line(now_ns, 0, 0, 2_000)
    given = []
    for name, row in zip(names, peers, strict=True):
        # As it comes by HTTP: of no string there are two.
        info = HostInfo(1, "", (), _edges(names, row, nics), "none")
        info = msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=HostInfo)
        report = RoundReport(PROTOCOL, name, 1, 1, now_ns, b"", line, None, "", 0, info)
        member = fleet.report(report, time.monotonic(), again=False)
        member.neighbours_sent = fleet.roster.generation
        given.append(channels.open(member))
    fleet.solve_round(time.monotonic(), channels.take())
    ready, go = os.pipe(), os.pipe()
    sender = os.fork()
    if sender == 0:
        os.close(ready[0])
        os.close(go[1])
        try:
            _send_steps(names, given, port, edges, steps, ready[1], go[0])
        finally:
            os._exit(0)
    # What a coordinator does not have: keys of channels and names of hosts are with the intake and the fleet.
    del names, peers, given, info, report, member, row
    parts: dict[str, list[float]] = {"intake": [], "take": [], "solve": [], "answer": []}
    for _ in range(steps):
        os.read(ready[0], 1)
        marks = [time.process_time()]
        os.write(go[1], b"g")
        deadline = time.monotonic() + 30
        # A coarse wait, so that waiting itself costs nothing.
        while channels.intake.waiting()[0] < n and time.monotonic() < deadline:
            time.sleep(0.05)
        marks.append(time.process_time())
        arrived = channels.take()
        marks.append(time.process_time())
        solution = fleet.solve_round(time.monotonic(), arrived)
        del arrived
        marks.append(time.process_time())
        answered = channels.answer()
        marks.append(time.process_time())
        if solution is None or answered != n:
            raise SystemExit(f"clock_intake: {answered} of {n} were answered: {channels.intake.counts()}")
        for part, begin, end in zip(parts, marks[:-1], marks[1:], strict=True):
            parts[part].append(end - begin)
    os.waitpid(sender, 0)
    status = Path("/proc/self/status").read_text()
    rss_kb = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmHWM"))
    medians = {part: float(np.median(values)) for part, values in parts.items()}
    print(
        json.dumps(
            {
                **{part: round(value, 4) for part, value in medians.items()},
                "rss_mb": round(rss_kb / 1024, 1),
                "counts": channels.intake.counts(),
            }
        )
    )
    channels.stop()


def _edges(names: list[str], peers: NDArray[np.int64], nics: int) -> tuple[EdgeName, ...]:
    rails = [f"rail{number % nics}" for number in range(len(peers))]
    return tuple(EdgeName(rail, names[peer], rail) for rail, peer in zip(rails, peers.tolist(), strict=True))


def _send_steps(
    names: list[str], channels: list[Channel], port: int, edges: int, steps: int, ready: int, go: int
) -> None:
    """All hosts' datagrams of each round, when asked to; a tenth of the edges is wrong by microseconds."""
    rng = np.random.default_rng(2)
    where = ("127.0.0.1", port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for step in range(1, steps + 1):
            now_ns = time.time_ns()
            block = np.zeros((len(names), edges), EDGE_DTYPE)
            block["edge"] = np.arange(edges)
            block["t_ns"] = now_ns - 10**9
            block["sigma_ns"], block["rate_sigma_ppt"], block["bound_ns"] = 20, 5_000, 2_000
            wrong = rng.random(block.shape) < 0.1
            noise = rng.normal(0, 20, block.shape) + wrong * rng.normal(0, 2_000, block.shape)
            block["offset_ns"] = np.rint(noise)
            block["rate_ppt"] = np.rint(rng.normal(0, 8_000, block.shape))
            data = block.tobytes()
            size = edges * EDGE.size
            line = Line(now_ns, 0, 0, 2_000)
            datagrams = [
                part
                for k, (name, channel) in enumerate(zip(names, channels, strict=True))
                for part in pack_request(
                    channel,
                    step,
                    RoundReport(
                        PROTOCOL, name, 1, 1, now_ns, data[k * size : (k + 1) * size], line, None, "", 0, None
                    ),
                )
            ]
            os.write(ready, b"r")
            if not os.read(go, 1):
                return
            for datagram in datagrams:
                sock.sendto(datagram, where)
