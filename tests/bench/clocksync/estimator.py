"""The estimator of one edge, stage by stage: simulated wires and a recorded one, with each stage left out in turn.

`python -m tests.bench.clocksync.estimator` prints the rows. The recorded wire (`wire.npz`) is the lab's: two hosts in
namespaces, 200 Mbit/s shaped each way, kernel stamps, clocks that wander by 2 ppb/sqrt(s) each and are 35 ppm apart;
11 s each of no load, 40/40, 80/20, 90/90 and two processes that burn CPU, on a 2-core virtual machine that was
compiling meanwhile. `--record FILE` as root records another one.

The error is that of the edge's line whenever one looks, twenty times a second up to a second after each fit. The peer
is the minimum filter that is given the true rate: the middle of the fastest packets of 4 s.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.bench.clocksync.simulator import Clock, Edge, Queue, loaded_path
from tests.bench.rows import Rows

from fabricpulse.clocksync._edge_fit import Trains
from fabricpulse.clocksync.edge import filter as edge_filter
from fabricpulse.clocksync.edge import fit as edge_fit
from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND, RX_HARDWARE, TX_HARDWARE

WIRE = Path(__file__).parent / "wire.npz"
_NS = 10**9
_WINDOW = 4  # rounds of a second
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """A second of trains, and the truth of the second after it: (n, 2) both clocks."""

    outbound: Trains
    inbound: Trains
    truth: NDArray[np.int64]


def joined(parts: list[Trains]) -> Trains:
    """Trains of several rounds as one."""
    names = ("t_ns", "tx_ns", "rx_ns", "valid")
    return Trains(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def simulated(
    seed: int,
    load: tuple[float, float],
    *,
    rate: float = 50.0,
    seconds: int = 32,
    ramp_ppb_s: float = 0.0,
    step_ppb: float = 0.0,
    pause_ns: int = 0,
    busy: bool = False,
) -> list[Round]:
    """Two hops of 100 Gbit/s each way, stamps late by 10 ns (half normal), clocks that wander by 2 ppb/sqrt(s).

    busy : stamps as a busy machine's, late by 150 ns, and 3 % of those of departure by up to 400 ns.

    From half of the time on, of the second clock: ramp_ppb_s : its rate drifts, for 10 s. step_ppb : its rate has
    changed. pause_ns : it has lost this time.
    """
    rng = np.random.default_rng(seed)
    clocks = [
        Clock(rng, seconds + 10, offset_ns=1_700_000_000 * _NS + int(rng.integers(-5 * _NS, 5 * _NS)),
              rate_ppb=float(rng.uniform(-50_000, 50_000)))
        for _ in range(2)
    ]  # fmt: skip
    if ramp_ppb_s:
        for tenth in range(100):
            clocks[1].change_rate(seconds / 2 + tenth / 10, ramp_ppb_s / 10)
    if step_ppb:
        clocks[1].change_rate(seconds / 2 + 0.37, step_ppb)
    library: dict[float, list[Queue]] = {}
    base = float(rng.uniform(800, 3_000))
    paths = [loaded_path(rng, of, library, seconds=0.25, base_ns=base, noise_ns=10.0) for of in load]
    if busy:
        paths = [replace(path, noise_ns=150.0, late_stamp=0.03, late_ns=400.0) for path in paths]
    edge = Edge(clocks[0], clocks[1], paths[0], paths[1], rate)
    rounds = []
    for second in range(1, seconds):
        looks = np.arange(second + 1, second + 2, 0.05)
        truth = np.stack([clock.at(looks) for clock in clocks], axis=1)
        out, into = edge.window(rng, second, second + 1)
        if pause_ns and second >= seconds // 2:
            truth[:, 1] -= pause_ns
            out = Trains(out.t_ns, out.tx_ns, out.rx_ns - pause_ns, out.valid)
            into = Trains(into.t_ns, into.tx_ns - pause_ns, into.rx_ns, into.valid)
        rounds.append(Round(out, into, truth))
    return rounds


def pack(trains: Trains, base_ns: int) -> dict[str, NDArray[Any]]:
    """In as few bytes as it takes: first stamps from `base_ns`, the others from the first."""
    first = trains.tx_ns[:, 0]
    return {
        "tx": first - base_ns,
        "spacing": (trains.tx_ns[:, 1:] - first[:, None]).astype(np.int32),
        "delay": trains.rx_ns - trains.tx_ns,
        "valid": np.packbits(trains.valid, axis=1),
        "t": trains.t_ns - base_ns,
    }


def unpack(arrays: dict[str, NDArray[Any]], base_ns: int) -> Trains:
    """What `pack` made."""
    first = arrays["tx"] + base_ns
    tx = np.concatenate([first[:, None], first[:, None] + arrays["spacing"]], axis=1)
    valid = np.unpackbits(arrays["valid"], axis=1)[:, :3].astype(np.bool_)
    return Trains(arrays["t"] + base_ns, tx, tx + arrays["delay"], valid)


def recorded(path: Path = WIRE) -> dict[int, list[tuple[str, list[Round]]]]:
    """Of each probe rate the loads one after the other. Raises OSError, KeyError."""
    result: dict[int, list[tuple[str, list[Round]]]] = {}
    with np.load(path) as file:
        for name in file["cases"].tolist():
            load, rate = name.split(" ")
            rounds = []
            key = f"{name} "
            truth, ends = file[key + "truth"], file[key + "ends"]
            sides = []
            for side in ("out", "in"):
                base = int(file[f"{key}{side} base"])
                names = ("tx", "spacing", "delay", "valid", "t")
                sides.append(unpack({n: file[f"{key}{side} {n}"] for n in names}, base))
            begin = np.zeros(2, np.int64)
            for k, end in enumerate(ends):
                parts = [_part(side, int(a), int(b)) for side, a, b in zip(sides, begin, end, strict=True)]
                rounds.append(Round(parts[0], parts[1], truth[k]))
                begin = end
            result.setdefault(int(rate), []).append((load, rounds))
    return result


def _part(trains: Trains, begin: int, end: int) -> Trains:
    cut = slice(begin, end)
    return Trains(trains.t_ns[cut], trains.tx_ns[cut], trains.rx_ns[cut], trains.valid[cut])


def save(path: Path, cases: dict[str, list[Round]]) -> None:
    """cases : "load rate" -> rounds."""
    arrays: dict[str, NDArray[Any]] = {"cases": np.array(list(cases))}
    for name, rounds in cases.items():
        arrays[f"{name} truth"] = np.stack([r.truth for r in rounds])
        counts = np.array([(len(r.outbound), len(r.inbound)) for r in rounds])
        arrays[f"{name} ends"] = np.cumsum(counts, axis=0)
        for side, parts in (("out", [r.outbound for r in rounds]), ("in", [r.inbound for r in rounds])):
            whole = joined(parts)
            base = int(whole.tx_ns[0, 0])
            arrays[f"{name} {side} base"] = np.array(base)
            arrays |= {f"{name} {side} {key}": value for key, value in pack(whole, base).items()}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


class Follower:
    """The estimator as a sidecar runs it, a fit a round."""

    def __init__(self) -> None:
        self._window = EdgeWindow(EstimatorParameters(), _WINDOW * _NS)
        self.cpu_s, self.fits, self.outside = 0.0, 0, 0
        self.when_outside: list[int] = []
        self.bound_ns = np.nan  # of the last fit

    def errors(self, this: Round) -> Floats:
        """Of the round's looks, ns; NaN before the first fit. Counts fits, their CPU time, and broken bounds."""
        for trains, direction in ((this.outbound, OUTBOUND), (this.inbound, INBOUND)):
            block = np.zeros(len(trains), SAMPLE_DTYPE)
            block["direction"], block["flags"] = direction, MAIN_PATH
            block["tx_ns"], block["rx_ns"] = trains.tx_ns, trains.rx_ns
            block["tx_valid"] = block["rx_valid"] = trains.valid @ np.array([1, 2, 4])
            self._window.add(block)
        here, there = this.truth[:, 0], this.truth[:, 1]
        began = time.thread_time()
        fit = self._window.advance(int(here[0]))
        self.cpu_s += time.thread_time() - began
        self.fits += 1
        self.bound_ns = np.nan if fit is None else fit.bound_ns
        if fit is None:
            return np.full(len(here), np.nan)
        error: Floats = (fit.offset_ns - (there - here)).astype(np.float64)
        error += fit.rate_ppb * 1e-9 * (here - fit.t_ns)
        # The bound is of the last train; 250 ppb is how much clocks may stray until one looks.
        if abs(error[0]) > fit.bound_ns + 250e-9 * max(int(here[0]) - fit.t_last_ns, 0):
            self.outside += 1
            self.when_outside.append(self.fits - 1)
        return error


def given_the_rate(rounds: list[Round]) -> Floats:
    """Errors of the minimum filter over _WINDOW rounds that is given the true rate, ns, one a round."""
    errors = []
    for k in range(_WINDOW, len(rounds)):
        last = rounds[k - _WINDOW + 1 : k + 1]
        (a0, b0), (a1, b1) = last[-1].truth[0].tolist(), last[0].truth[0].tolist()
        rate = ((b0 - a0) - (b1 - a1)) / (a0 - a1)
        ends = []
        for sign, trains in (
            (1, joined([r.outbound for r in last])),
            (-1, joined([r.inbound for r in last])),
        ):
            own = (trains.tx_ns if sign > 0 else trains.rx_ns)[:, 1:]
            offset = sign * (trains.rx_ns - trains.tx_ns)[:, 1:] - (b0 - a0)
            ends.append(sign * (sign * (offset - rate * (own - a0)))[trains.valid[:, 1:]].min())
        errors.append(sum(ends) / 2)
    return np.array(errors)


@contextmanager
def _set(module: Any, **values: object) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def _ranks(*ranks: float) -> Iterator[None]:
    with _set(edge_fit, RANKS=ranks), _set(edge_filter, RANKS=ranks):
        yield


# Each leaves one stage out.
ABLATIONS: dict[str, Callable[[], Any]] = {
    "as built": ExitStack,
    "no drift of the rate": lambda: _set(
        edge_filter, _DRIFT_PPB_S=0.0, _DRIFT_CHANGE=0.0, _OPEN=(0.1, 0.25, 0.0)
    ),
    "only the fastest packets": lambda: _ranks(0.0),
    "always an eighth": lambda: _ranks(1 / 8),
    "gaps do not weigh": lambda: _set(edge_filter, usual_gap=lambda gaps, _: (gaps[-1], 0.0)),
    "a rate that changes is not noticed": lambda: _set(edge_filter, _ASIDE_SIGMAS=1e9),
}


def bench_estimator(report: Callable[..., None], seeds: int = 10) -> None:
    """Simulated and recorded wires; gates on the estimator as it is, the ablations for comparison."""
    wires = recorded()
    cases = (((0.0, 0.0), None), ((0.8, 0.2), None), ((0.9, 0.4), "<= 20"), ((0.9, 0.9), "<= 40"))
    for load, must in cases:
        sim = [simulated(seed, load) for seed in range(seeds)]
        name = f"simulated {load[0] * 100:g}/{load[1] * 100:g}, 50/s, 10 ns stamps"
        _simulated_rows(report, name, sim, must)
    for rate in (16.0, 50.0, 100.0):
        sim = [simulated(seed, (0.0, 0.0), rate=rate, busy=True) for seed in range(min(seeds, 5))]
        _simulated_rows(report, f"simulated 0/0, {rate:g}/s, stamps of a busy machine", sim, None)
    for ramp in (300.0, 1_000.0):
        sim = [simulated(seed, (0.3, 0.1), ramp_ppb_s=ramp) for seed in range(min(seeds, 5))]
        _simulated_rows(report, f"simulated ramp of {ramp:g} ppb/s for 10 s, 30/10, 50/s", sim, None)
    for rate, parts in wires.items():
        peer = {name: float(np.quantile(np.abs(given_the_rate(rounds)), 0.95)) for name, rounds in parts}
        for ablation, without in ABLATIONS.items():
            with without():
                follower = Follower()
                for name, rounds in parts:
                    errors = [follower.errors(this) for this in rounds]
                    there = np.abs(np.concatenate(errors[4:]))
                    report(f"recorded {name}, {rate}/s", "edge_err_ns_p95", float(np.quantile(there, 0.95)), "ns",
                           stages=ablation, peer="minimum filter, given the rate", peer_value=round(peer[name], 1),
                           ratio=round(float(np.quantile(there, 0.95)) / peer[name], 2))  # fmt: skip


def bench_bounds(report: Callable[..., None], runs: int = 30) -> None:
    """The bound of an edge in frequency steps, ramps and pauses of every size: from two rounds after the event on it
    must hold, whatever it takes.
    """
    rng = np.random.default_rng(1)
    loads = ((0.0, 0.0), (0.3, 0.1), (0.8, 0.2))
    events: dict[str, Callable[[float], dict[str, Any]]] = {
        "frequency steps of 0.1 to 500 ppm": lambda u: {"step_ppb": 100 * 5_000**u},
        "ramps of 0.01 to 1 ppm/s": lambda u: {"ramp_ppb_s": 10 * 100**u},
        "pauses of 20 us to 10 s": lambda u: {"pause_ns": round(20_000 * 500_000**u)},
    }
    for name, of in events.items():
        late, early, looks, widths = 0, 0, 0, []
        for run in range(runs):
            more = {key: value * int(rng.choice([-1, 1])) for key, value in of((run + 0.5) / runs).items()}
            rounds = simulated(run, loads[run % len(loads)], seconds=28, **more)
            follower = Follower()
            for this in rounds:
                follower.errors(this)
                widths.append(follower.bound_ns)
            event = 28 // 2 - 1  # the round in whose trains it happens
            late += sum(when > event + 2 for when in follower.when_outside)
            early += sum(when <= event + 2 for when in follower.when_outside)
            looks += len(rounds)
        report(f"one edge, {name}", "bound_violations", late, "fits", "== 0", runs=runs, fits=looks,
               within_two_rounds=early, bound_ns_p50=round(float(np.nanmedian(widths))))  # fmt: skip


def _simulated_rows(report: Callable[..., None], name: str, sim: list[list[Round]], must: str | None) -> None:
    for ablation, without in ABLATIONS.items():
        with without():
            errors, cpu, fits, outside = [], 0.0, 0, 0
            for rounds in sim:
                follower = Follower()
                seen = [follower.errors(this) for this in rounds]
                errors.append(np.concatenate(seen[10:]))
                cpu, fits, outside = cpu + follower.cpu_s, fits + follower.fits, outside + follower.outside
        there = np.concatenate(errors)
        gate = must if ablation == "as built" else None
        report(name, "edge_rms_ns", float(np.sqrt(np.nanmean(there**2))), "ns", gate,
               stages=ablation, p95=round(float(np.nanquantile(np.abs(there), 0.95)), 1), seeds=len(sim),
               fit_ms=round(1e3 * cpu / fits, 2), bounds_broken=outside)  # fmt: skip


def record(path: Path, seconds: float) -> None:
    """Runs the lab's wire with each load; as root."""
    from tests.bench.clocksync.__main__ import CASES
    from tests.bench.clocksync.wire import Wire

    from fabricpulse.clocksync.edge.samples import SampleReader
    from fabricpulse.core.shm.clock_page import raw_now_ns
    from fabricpulse.lab import Lab

    cases: dict[str, list[Round]] = {}
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=2, rails=1, mtu=1500))
        wire = Wire(lab, peers=False)
        stack.callback(wire.close)
        wire.wait(60)
        rings = {rate: SampleReader(i.directory(wire.a) / "probes") for rate, i in wire.instances.items()}
        for load, forward, backward, hogs in CASES:
            with wire.load(forward, backward, hogs):
                time.sleep(3)  # queues fill before the recording begins
                for ring in rings.values():
                    ring.read()
                for _ in range(round(seconds)):
                    looks: dict[int, list[tuple[int, int]]] = {rate: [] for rate in rings}
                    until = time.monotonic() + 1
                    while time.monotonic() < until:
                        raw = raw_now_ns()
                        for rate, i in wire.instances.items():
                            looks[rate].append((i.stamp_ns(wire.a, raw), i.stamp_ns(wire.b, raw)))
                        time.sleep(0.05)  # the clocks are sampled 20 times a second
                    for rate, ring in rings.items():
                        block = ring.read().astype(SAMPLE_DTYPE)
                        truth = np.array((looks[rate] * 20)[:20], np.int64)
                        rounds = cases.setdefault(f"{load} {rate}", [])
                        # The looks of this second are those behind the trains of the one before.
                        if rounds:
                            rounds[-1] = Round(rounds[-1].outbound, rounds[-1].inbound, truth)
                        rounds.append(Round(*trains_of(block), truth))
    save(path, {name: rounds[:-1] for name, rounds in cases.items()})


def trains_of(block: NDArray[np.void]) -> tuple[Trains, Trains]:
    """(outbound, inbound) of samples of one edge, main path, stamps of the kernel."""
    block = block[(block["flags"] & (MAIN_PATH | TX_HARDWARE | RX_HARDWARE)) == MAIN_PATH]
    result = []
    for direction, own in ((OUTBOUND, "tx_ns"), (INBOUND, "rx_ns")):
        part = block[block["direction"] == direction]
        valid = ((part["tx_valid"] & part["rx_valid"])[:, None] & np.array([1, 2, 4], np.uint8)) != 0
        part, valid = part[valid[:, 1:].any(axis=1)], valid[valid[:, 1:].any(axis=1)]
        one = np.where(valid[:, 1], 1, 2)[:, None]
        # Stamps that are not there are no numbers worth keeping.
        tx, rx = (np.where(valid, x, np.take_along_axis(x, one, 1)) for x in (part["tx_ns"], part["rx_ns"]))
        result.append(Trains((tx if own == "tx_ns" else rx)[np.arange(len(part)), one[:, 0]], tx, rx, valid))
    return result[0], result[1]


def main() -> int:
    """Prints the rows; 1 if a gate was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.clocksync.estimator", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="record the lab's wire instead; as root")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each load of a recording")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--bounds", action="store_true", help="only whether bounds hold when clocks change")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record, arguments.seconds)
        return 0
    rows = Rows("clocksync")
    bench_bounds(rows.report)
    if not arguments.bounds:
        bench_estimator(rows.report, arguments.seeds)
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
