"""Trains of the lab's wire with the truth, recorded once, and the edge's estimator run over them without a lab.

`python -m tests.bench.clocksync.replay record FILE.npz` (as root) runs the wire of the benchmark with all contestants
and keeps every train, the true clocks and what each contestant said, twenty times a second. `replay FILE.npz...` fits
the trains as a sidecar does, one round a second, and prints one JSON object for each load and rate: the error of the
edge at the moment one asks, ns, as each recording gives it, and the mean of the recordings. A change of the
estimator is judged on the same packets as what it replaces, in seconds, on a machine that may be busy.

Between the samples the true offset is a straight line: the lab's clocks change their rates once a second, by some ppb.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.peers import ChronyTracking
from tests.bench.clocksync.wire import RATES, Wire

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE, SampleReader, Samples
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.clock_page import raw_now_ns
from fabricpulse.lab import Lab

_NS = 10**9
_SAMPLE_S = 0.05
# Before the first load, and of each load before its errors count: the filter's start, and its getting used to it.
_START_S, _SETTLE_S = 8.0, 5.0


def _samples(saved: NDArray[np.void]) -> Samples:
    """By name: a recording may be older than some fields of the ring."""
    samples = np.zeros(len(saved), SAMPLE_DTYPE)
    for name in saved.dtype.names or ():
        samples[name] = saved[name]
    return samples


@dataclass(frozen=True)
class Recording:
    """One run of the wire.

    truth : (n, 3) per sample the kernel's clock and both hosts', ns. said : contestant -> (n,) what it took for clock b
    minus clock a, less the truth, ns, NaN where it said nothing. trains : rate -> all samples of host a's ring, in the
    order of the ring. arrived : rate -> (n,) how many of them were there at each sample. loads : (name, first sample,
    end) of each load, after it has settled.
    """

    truth: NDArray[np.int64]
    said: dict[str, NDArray[np.float64]]
    trains: dict[int, Samples]
    arrived: dict[int, NDArray[np.int64]]
    loads: list[tuple[str, int, int]]

    def save(self, path: Path) -> None:
        """As numpy keeps arrays, compressed."""
        arrays: dict[str, NDArray[np.generic]] = {"truth": self.truth}
        arrays |= {f"trains {rate}": samples for rate, samples in self.trains.items()}
        arrays |= {f"arrived {rate}": counts for rate, counts in self.arrived.items()}
        arrays |= {f"said {name}": errors for name, errors in self.said.items()}
        arrays["loads"] = np.frombuffer(json.dumps(self.loads).encode(), np.uint8)
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Raises OSError, and KeyError for a file that `save` has not written."""
        with np.load(path) as file:
            names = file.files
            return cls(
                file["truth"],
                {n.removeprefix("said "): file[n] for n in names if n.startswith("said ")},
                {int(n.split()[1]): _samples(file[n]) for n in names if n.startswith("trains ")},
                {int(n.split()[1]): file[n] for n in names if n.startswith("arrived ")},
                [(name, first, end) for name, first, end in json.loads(file["loads"].tobytes())],
            )


def record(path: Path, loads: list[tuple[str, float, float, int]], seconds: float, wander_ppb: float) -> None:
    """Runs the wire with each load for `seconds` after it has settled. Raises TimeoutError if it does not start."""
    truth: list[tuple[int, int, int]] = []
    said: list[dict[str, float]] = []
    chunks: dict[int, list[Samples]] = {rate: [] for rate in RATES}
    marks = []
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=2, rails=1, mtu=1500))
        wire = Wire(lab, peers=True, wander_ppb=wander_ppb)
        stack.callback(wire.close)
        wire.wait(30)
        rings = {
            rate: SampleReader(instance.directory(wire.a) / "probes", backlog=1 << 14)
            for rate, instance in wire.instances.items()
        }
        queries = {f"chronyd {name}": ChronyTracking(place) for name, place in wire.commands.items()}
        for query in queries.values():
            stack.callback(query.close)

        def sample_until(until: float) -> None:
            while (began := time.monotonic()) < until:
                now, raw, errors = time.time_ns(), raw_now_ns(), {}
                for rate, instance in wire.instances.items():
                    chunks[rate].append(rings[rate].read().astype(SAMPLE_DTYPE))
                    times = instance.read(raw)
                    if times is not None:
                        error = times[wire.b.name].fleet_ns - times[wire.a.name].fleet_ns
                        errors[f"clocksync {rate}/s"] = float(error)
                for name, query in queries.items():
                    asked = time.time_ns()
                    offset = query.offset_ns()
                    middle = (asked + time.time_ns()) // 2
                    if offset is not None:
                        errors[name] = offset - (
                            wire.b.clock.from_kernel(middle) - wire.a.clock.from_kernel(middle)
                        )
                truth.append((now, instance.stamp_ns(wire.a, raw), instance.stamp_ns(wire.b, raw)))
                said.append(errors)
                time.sleep(max(0.0, began + _SAMPLE_S - time.monotonic()))

        sample_until(time.monotonic() + _START_S)
        for name, forward, backward, hogs in loads:
            with wire.load(forward, backward, hogs):
                sample_until(time.monotonic() + _SETTLE_S)
                first = len(truth)
                sample_until(time.monotonic() + seconds)
                marks.append((name, first, len(truth)))
        lost = {rate: ring.lost for rate, ring in rings.items() if ring.lost}
        if lost:
            print(f"replay: samples were lost, at trains/s: {lost}", file=sys.stderr)
    names = sorted({name for errors in said for name in errors})
    Recording(
        np.array(truth, np.int64),
        {name: np.array([errors.get(name, np.nan) for errors in said]) for name in names},
        {rate: np.concatenate(parts) for rate, parts in chunks.items()},
        {rate: np.cumsum([len(part) for part in parts]) for rate, parts in chunks.items()},
        marks,
    ).save(path)


def replay(recording: Recording, rate: int, round_s: float = 1.0) -> NDArray[np.float64]:
    """(n,) per sample, the offset by the newest fit minus the true one, ns; NaN before the first fit."""
    samples, arrived, truth = recording.trains[rate], recording.arrived[rate], recording.truth
    window = EdgeWindow(EstimatorParameters())
    errors = np.full(len(truth), np.nan)
    next_step, done = int(truth[0, 1]), 0
    for k, (_, here, there) in enumerate(truth.tolist()):
        if here >= next_step:
            next_step += round(round_s * _NS)
            window.add(samples[done : arrived[k]])
            done = int(arrived[k])
            window.advance(here)
        if window.fit is not None:
            # Integers first: a float64 knows seconds to 240 ns only.
            change = window.fit.rate_ppb * 1e-9 * (here - window.fit.t_ns)
            errors[k] = window.fit.offset_ns - (there - here) + change
    return errors


def summary(errors: NDArray[np.float64]) -> dict[str, float]:
    """Quantiles of the size of errors, and their mean, which no memory lessens; ns."""
    there = errors[~np.isnan(errors)]
    if not len(there):
        return {}
    p50, p95, p99 = np.quantile(np.abs(there), (0.5, 0.95, 0.99))
    values = {"p50": p50, "p95": p95, "p99": p99, "mean": there.mean()}
    return {name: round(float(value), 1) for name, value in values.items()}


def rows(recordings: list[Recording]) -> Iterator[dict[str, object]]:
    """One for each load and contestant: the p95 of each recording, and the mean over recordings of all that counts."""
    parts: dict[tuple[str, str], list[dict[str, float]]] = {}
    for recording in recordings:
        errors = dict(recording.said)
        errors |= {f"replay {rate}/s": replay(recording, rate) for rate in sorted(recording.trains)}
        for load, first, end in recording.loads:
            for contestant, series in errors.items():
                if values := summary(series[first:end]):
                    parts.setdefault((load, contestant), []).append(values)
    for (load, contestant), each in sorted(parts.items()):
        mean = {name: round(float(np.mean([v[name] for v in each])), 1) for name in ("p50", "p95", "p99")}
        yield {
            "case": load,
            "contestant": contestant,
            **mean,
            "each_p95": [v["p95"] for v in each],
            "each_mean": [v["mean"] for v in each],
        }


def main() -> int:
    """Records, or replays."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.clocksync.replay", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    recorder = commands.add_parser("record", help="run the wire and keep its trains; as root")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--loads", default="0/0,80/20,90/90", help="per cent of the link each way, or hog")
    recorder.add_argument("--seconds", type=float, default=25.0, help="of each load, after it has settled")
    recorder.add_argument(
        "--wander", type=float, default=2.0, metavar="PPB", help="of each clock, ppb/sqrt(s)"
    )
    replayer = commands.add_parser("replay", help="fit what was recorded")
    replayer.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "record":
        loads = []
        for name in arguments.loads.split(","):
            forward, backward = (float(share) / 100 for share in name.replace("hog", "0/0").split("/"))
            loads.append((name, forward, backward, 2 if name == "hog" else 0))
        record(arguments.file, loads, arguments.seconds, arguments.wander)
        return 0
    for row in rows([Recording.load(path) for path in arguments.files]):
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
