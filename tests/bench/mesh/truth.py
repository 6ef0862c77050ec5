"""Whether the mesh measures what is, and takes only what is authentic: one-way delay, forged packets."""

import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.mesh.faults import fleet_of_four
from tests.bench.mesh.rows import report
from tests.bench.rows import quantile
from tests.fixtures.mesh.probe_fuzz import LONGEST, seeds
from tests.fixtures.mesh.probe_samples import read_samples
from tests.fixtures.native import programs
from tests.fixtures.native.fuzzing import CrashError, run_target

from fabricpulse.clocksync.edge.samples import SampleReader
from fabricpulse.core.shm.probe_ring import FLEET_VALID, INBOUND
from fabricpulse.mesh import _probe_engine as native


def bench_owd(seconds: float) -> None:
    """One-way delays of the engine against RX minus TX kernel stamp, hosts' clocks seconds and ppm apart."""
    with fleet_of_four(0.5) as fleet:
        errors, delays = [], []
        rings = {host.name: SampleReader(host.run_dir / "probes") for host in fleet.lab.hosts}
        epochs = {name: ring.stamp_epoch_ns for name, ring in rings.items()}
        for host in fleet.lab.hosts:
            reader = SampleReader(host.run_dir / "probes")
            edges = reader.edges()
            assert edges is not None
            fleet.true_clock()
            end = time.monotonic() + seconds / 4
            while time.monotonic() < end:
                time.sleep(0.2)  # the ring holds 8 s
                for sample in read_samples(reader):
                    if sample.direction != INBOUND or not sample.flags & FLEET_VALID:
                        continue
                    peer = fleet.lab.host(edges[sample.edge].peer)
                    both = sample.tx_valid & sample.rx_valid
                    truth = min(
                        host.clock.kernel_raw(sample.rx_ns[i] - epochs[host.name])
                        - peer.clock.kernel_raw(sample.tx_ns[i] - epochs[peer.name])
                        for i in ((1, 2) if both & 6 else (0,))
                        if both >> i & 1
                    )
                    errors.append(float(abs(sample.owd_ns - truth)))
                    delays.append(float(truth))
        case = f"true clock, {len(errors)} trains"
        report(case, "owd_error_ns_p99", quantile(errors, 0.99), "ns", "<= 500", max=max(errors))
        report(case, "owd_us_p50", statistics.median(delays) / 1e3, "us")


def bench_forged(count: int) -> None:
    """Fuzzed, replayed, re-keyed packets at the gate of a live session."""
    rng = random.Random(6)
    key = rng.randbytes(16)
    gate = native.Gate([key], 77)
    gate.our_train = 1000
    recording = []
    for train in range(1, 301):
        for position in range(3):
            packet = native.encode(key, 1000, train, position, 77, 1000)
            assert gate.take(packet) == "accepted"
            recording.append(packet)
    accepted = 0
    outcomes: dict[str, int] = {}
    for number in range(count):
        way = number % 4
        packet = rng.choice(recording)
        if way == 1:
            forged = bytearray(packet)
            for _ in range(rng.randrange(1, 5)):
                forged[rng.randrange(len(forged))] ^= rng.randrange(1, 256)
            packet = bytes(forged)
        elif way == 2:
            packet = native.encode(
                rng.randbytes(16), 1000, rng.randrange(301, 1 << 31), rng.randrange(3), 77, 1000
            )
        elif way == 3:
            # A recording of an earlier start of the peer, under the right key.
            packet = native.encode(
                key, rng.randrange(1, 1000), rng.randrange(1, 1 << 20), 0, 76, rng.randrange(1, 999)
            )
        outcome = gate.take(packet)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        accepted += outcome == "accepted"
    report(f"{count} forged packets", "forged_accepted", accepted, "packets", "== 0", refused=outcomes)


def bench_fuzz(seconds: int) -> None:
    """What a packet can reach, searched by libFuzzer under the sanitizers from a random seed."""
    with tempfile.TemporaryDirectory() as directory:
        binary = programs.native("probe_fuzz", "fuzz")
        tried, finding = 0, None
        try:
            tried = run_target(binary, seeds(), Path(directory), 0, seconds, LONGEST)
        except CrashError as crash:
            finding = str(crash)
    kind = "libFuzzer" if programs.libfuzzer_compiler() else "own mutator"
    more = {"inputs": tried} if finding is None else {"finding": finding}
    report(f"{kind}, {seconds} s", "fuzz_crashes", int(finding is not None), "inputs", "== 0", **more)
