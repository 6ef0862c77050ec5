"""Stamps of NICs from end to end: two QEMU guests, each with an igb and its PHC, and the host's clock as the truth.

Truth: the guests' raw clocks tick by the host's. A program on the host keeps its raw clock in memory that both guests
map; a guest reads it between two readings of its own. What is measured: the offset that the sidecar's estimator makes
of stamps of the NICs, which the engine's PhcLine has put on the raw clock, against that; and the same of the kernels'.
"""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabricpulse.clocksync.edge.estimator import EstimatorParameters
from fabricpulse.clocksync.edge.samples import SAMPLE_DTYPE
from fabricpulse.clocksync.edge.window import EdgeWindow
from fabricpulse.core.errors import UserError
from fabricpulse.core.shm.probe_ring import INBOUND, MAIN_PATH, OUTBOUND, RX_HARDWARE, TX_HARDWARE
from fabricpulse.lab.rdma.guest import Guest
from fabricpulse.lab.rdma.kernel import fetch_kernel, find_kernel, has_module
from fabricpulse.lab.rdma.qemu import fetch_qemu

ROOT = Path(__file__).parents[3]
_S = 10**9
_EPOCH_NS = 1_700_000_000 * _S
Report = Callable[..., None]


def bench_hardware(report: Report, seconds: float) -> None:
    """Prints the rows; one that says why when there are no such guests here."""
    try:
        guests = _measure(seconds)
    except UserError as error:
        report("hardware", "err_ns_p95", float("nan"), "ns", reason=str(error))
        return
    for name, guest in guests.items():
        refused = ", ".join(f"{one}: {said}" for one, said in guest.data["filters"].items())
        report(f"hardware, guest {name}", "truth_ns_p95", guest.truth_error_ns, "ns", filters=refused)
        report(f"hardware, guest {name}", "phc_lost", guest.data["lost"], "times", "== 0")
        worst = guest.conversion_error_ns()
        report(
            f"hardware, guest {name}", "conversion_ns_p99", worst, "ns", "<= 200", bracket_ns=guest.bracket_ns
        )
    # What QEMU itself does between the two stamps of a frame, two processes that wake each other, is in the offset, and
    # depends on who else wants this machine: no gate.
    fastest = {}
    for name, by_nic in (("NICs", True), ("kernels", False)):
        errors, bounds, delays = _offsets(guests["a"], guests["b"], by_nic)
        fastest[name] = sum(delays)
        case, p95 = f"hardware, stamps of {name}", _percentile(np.abs(errors), 95)
        report(
            case,
            "err_ns_p95",
            p95,
            "ns",
            median=_percentile(errors, 50),
            rounds=len(errors),
            fastest_ns=delays,
        )
        outside = float(np.sum(np.abs(errors) > bounds)) if len(errors) else float("nan")
        report(case, "bound_violations", outside, "rounds", "== 0", bound_ns_p50=_percentile(bounds, 50))
    # The fastest frames both ways: the kernels' stamps are taken outside of the NICs'.
    ratio = round(fastest["kernels"] / fastest["NICs"], 1)
    report(
        "hardware",
        "ratio_round_trip",
        ratio,
        "ratio",
        ">= 1.5",
        peer="kernels",
        peer_value=fastest["kernels"],
    )


def _percentile(values: NDArray[np.float64], q: float) -> float:
    return round(float(np.percentile(values, q)), 1) if len(values) else float("nan")


@dataclass
class _Measured:
    """What a guest has written, and its raw clock against the host's."""

    data: dict[str, Any]

    def __post_init__(self) -> None:
        rows = np.array(self.data["truth"], np.int64).reshape(-1, 3)
        width = rows[:, 2] - rows[:, 0]
        rows = rows[width <= np.percentile(width, 20) + 20] if len(rows) else rows
        if len(rows) < 30:
            raise UserError("a guest has hardly seen the host's clock: this machine is too busy")
        middle = (rows[:, 0] + rows[:, 2]) // 2
        self._from, self._ahead = int(middle[0]), int(rows[0, 1] - middle[0])
        ahead = (rows[:, 1] - middle - self._ahead).astype(float)
        since = (middle - self._from).astype(float)
        kept = np.ones(len(since), bool)
        for _ in range(10):
            # The program on the host may lose the processor between its clock and the memory: such a value is old.
            self._line = np.polyfit(since[kept], ahead[kept], 1)
            left = ahead - np.polyval(self._line, since)
            left -= np.median(left)
            kept = np.abs(left) <= max(4 * float(np.median(np.abs(left))), 20.0)
        left = left[kept]
        self.truth_error_ns = _percentile(np.abs(left), 95)

    def on_host(self, raw_ns: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """The host's raw clock: in a double, to 4 ns after a year. Late by what a store takes, in both guests alike."""
        since = np.asarray(raw_ns - self._from, float)
        return since + np.polyval(self._line, since) + float(self._from + self._ahead)

    @property
    def bracket_ns(self) -> float:
        readings = np.array(self.data["readings"], np.int64)
        return _percentile((readings[:, 2] - readings[:, 1]).astype(float), 50)

    def conversion_error_ns(self) -> float:
        """How far readings of the PHC lie from a line over the host's clock, by which QEMU makes it tick."""
        readings = np.array(self.data["readings"], np.int64)
        host = self.on_host((readings[:, 1] + readings[:, 2]) // 2)
        host -= host[0]
        ahead = (readings[:, 0] - readings[0, 0]).astype(float) - host
        narrow = readings[:, 2] - readings[:, 1] <= 1.5 * self.bracket_ns
        left = ahead[narrow] - np.polyval(np.polyfit(host[narrow], ahead[narrow], 1), host[narrow])
        return _percentile(np.abs(left), 99)

    def stamps(self, which: str, by_nic: bool) -> dict[int, tuple[int, int]]:
        """By number: (raw clock, error), the kernel's by the reading of both clocks next to it."""
        clocks = np.array(self.data["clocks"], np.int64)
        found = {}
        for number, kernel_ns, raw_ns, error_ns in self.data[which]:
            if by_nic and error_ns > 0:
                found[number] = raw_ns, error_ns
            elif not by_nic and kernel_ns > 0:
                real, raw = clocks[np.abs(clocks[:, 0] - kernel_ns).argmin()].tolist()
                found[number] = kernel_ns - real + raw, 0
        return found


def _offsets(
    a: _Measured, b: _Measured, by_nic: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[float]]:
    """Error and bound of guest b's clock minus guest a's, each round; the fastest delay each way, ns."""
    rows, delays = [], []
    for tx, rx, direction in ((a, b, OUTBOUND), (b, a, INBOUND)):
        sent, received = tx.stamps("sent", by_nic), rx.stamps("received", by_nic)
        pairs = [(*sent[n], *received[n]) for n in sent.keys() & received.keys()]
        late = [float(rx.on_host(to) - tx.on_host(begun)) for begun, _, to, _ in pairs]
        delays.append(round(min(late, default=float("nan")), 1))
        rows += [
            (begun if direction == OUTBOUND else to, direction, begun, to, e1, e2)
            for begun, e1, to, e2 in pairs
        ]
    rows.sort()
    block = np.zeros(len(rows), SAMPLE_DTYPE)
    for sample, (_, direction, begun, to, tx_error_ns, rx_error_ns) in zip(block, rows, strict=True):
        sample["direction"], sample["tx_valid"], sample["rx_valid"] = direction, 2, 2
        sample["flags"] = MAIN_PATH | (TX_HARDWARE | RX_HARDWARE if by_nic else 0)
        sample["tx_ns"][1], sample["rx_ns"][1] = begun + _EPOCH_NS, to + _EPOCH_NS
        sample["tx_error_ns"], sample["rx_error_ns"] = tx_error_ns, rx_error_ns
    at = np.array([row[0] for row in rows], np.int64)
    window, errors, bounds = EdgeWindow(EstimatorParameters()), [], []
    for end in range(int(at[0]) + _S, int(at[-1]), _S) if len(at) else ():
        window.add(block[(at >= end - _S) & (at < end)])
        fit = window.advance(end + _EPOCH_NS)
        # The first seconds of an edge: its rate is not known.
        if fit is None or end - int(at[0]) < 5 * _S:
            continue
        raw_ns = fit.t_last_ns - _EPOCH_NS
        errors.append(float(b.on_host(raw_ns + round(fit.at(fit.t_last_ns))) - a.on_host(raw_ns)))
        bounds.append(fit.bound_ns)
    return np.array(errors), np.array(bounds), delays


def _measure(seconds: float) -> dict[str, _Measured]:
    """Raises UserError."""
    qemu = fetch_qemu()
    kernel = find_kernel()
    if not has_module(kernel, "igb"):
        kernel = fetch_kernel(module="igb")
    with tempfile.TemporaryDirectory(prefix="fp-igb-", dir="/dev/shm") as name:
        folder = Path(name)
        with _host_time(folder), _first_on_path(qemu):
            return _run(kernel, folder, seconds)


@contextmanager
def _host_time(folder: Path) -> Iterator[None]:
    """Keeps the host's raw clock in folder/page."""
    source = ROOT / "tests" / "native" / "clocks" / "host_time.c"
    flags: list[str | Path] = ["gcc", "-O2", "-Wall", "-Werror", source]
    subprocess.run([*flags, "-o", folder / "host_time"], check=True)
    subprocess.run([*flags, "-shared", "-fPIC", "-o", folder / "host_time.so"], check=True)
    (folder / "page").write_bytes(bytes(1 << 20))
    writer = subprocess.Popen([folder / "host_time", folder / "page"])
    try:
        yield
    finally:
        writer.kill()
        writer.wait()


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _run(kernel: Path, folder: Path, seconds: float) -> dict[str, _Measured]:
    ended: dict[str, int | UserError] = {}

    def run(name: str, listens: bool) -> None:
        wire = f"stream,id=wire,addr.type=unix,addr.path={folder}/wire,server={'on' if listens else 'off'}"
        devices = ["-netdev", wire + ("" if listens else ",reconnect-ms=200")]
        devices += ["-device", f"igb,netdev=wire,mac=52:54:00:00:00:0{1 + listens}"]
        devices += ["-object", f"memory-backend-file,id=host,share=on,size=1M,mem-path={folder}/page"]
        devices += ["-device", "ivshmem-plain,memdev=host"]
        # The program writes to a register of the NIC, which its driver holds: iomem=relaxed.
        guest = Guest(kernel, 512, modules=("igb",), devices=devices, cpus=1, kernel_options="iomem=relaxed")
        program = ROOT / "tests" / "bench" / "clocksync" / "guest_stamps.py"
        command: list[str | Path] = [
            ROOT / ".venv/bin/python",
            program,
            str(seconds),
            f"{folder}/{name}.json",
            f"{folder}/host_time.so",
        ]
        log = folder / f"{name}.log"
        try:
            with log.open("wb") as out:
                ended[name] = guest.run(
                    command, writable=[folder], cwd=ROOT, timeout=120 + 4 * seconds, stdout=out, stderr=out
                )
        except UserError as error:
            ended[name] = error

    threads = [threading.Thread(target=run, args=(name, name == "a")) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        if ended[name] != 0:
            raise UserError(f"guest {name}: {ended[name]}; {(folder / f'{name}.log').read_text()[-300:]}")
    return {name: _Measured(json.loads((folder / f"{name}.json").read_text())) for name in "ab"}
