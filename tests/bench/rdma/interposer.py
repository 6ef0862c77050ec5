"""What `make bench NAME=rdma` measures of the verbs interposer: NCCL's own InfiniBand transport with and without it.

`interposer_ratio`: bandwidth with it by that without. `interposer_exact`: messages and bytes in its files beside what
the program has sent and received. `matched_percent`: sampled messages of the sender that the receiver's file has too,
by queue pairs and index; their one-way delays beside netem's.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench.rows import Rows, quantile
from tests.fixtures.plugin.verbs_samples import read_samples

from fabricpulse.lab.rdma.fleet import HOSTS, RdmaFleet
from fabricpulse.plugin_ipc.verbs import OPCODES, VerbsTelemetryReader
from fabricpulse.verbs.locate import nccl_library

SIZE = 1 << 16
DELAYS_MS = (5, 1)

Environment = Callable[[int], dict[str, str]]
# Arguments of rdma_parts.measure() after program and the net's own.
Measure = Callable[[Environment, str, int, float], dict[str, dict[str, Any]]]


def interposer(
    fleet: RdmaFleet, rows: Rows, measure: Measure, plain: Environment, rounds: int, seconds: float
) -> None:
    """measure : runs NCCL's transport between the hosts. plain : a host's environment without the interposer."""
    ratios, wrong, checked = [], 0, 0
    matched = sampled = 0
    for _ in range(rounds):
        without = measure(plain, "bandwidth", SIZE, seconds)
        with tempfile.TemporaryDirectory() as folder:
            found = measure(_with(plain, Path(folder), every=16), "bandwidth", SIZE, seconds)
            files = _files(Path(folder))
            counts = _differences(found, files)
            wrong, checked = wrong + sum(counts), checked + len(counts)
            delays, of = _matched(files["send"], files["receive"])
            matched, sampled = matched + len(delays), sampled + of
        ratios.append(found["receive"]["gb_per_s"] / without["receive"]["gb_per_s"])
    rows.report(
        "NCCL IB, 64 KiB",
        "interposer_ratio",
        statistics.median(ratios),
        "ratio",
        ">= 0.98",
        rounds=rounds,
        least=min(ratios),
        most=max(ratios),
    )
    rows.report(
        "NCCL IB, 64 KiB",
        "interposer_exact",
        100 * (1 - wrong / checked),
        "%",
        "== 100",
        counts=checked,
    )
    rows.report(
        "NCCL IB, 64 KiB",
        "matched_percent",
        100 * matched / sampled if sampled else float("nan"),
        "%",
        ">= 99",
        sampled=sampled,
    )
    for ms in DELAYS_MS:
        reported, fastest = [], []
        for _ in range(rounds):
            usual = _delays_ms(measure, plain, seconds)
            with fleet.netem(HOSTS[1], 0, "delay", f"{ms}ms"):
                delayed = _delays_ms(measure, plain, seconds)
            reported.append(statistics.median(delayed) - statistics.median(usual))
            fastest.append(quantile(delayed, 0.1) - quantile(usual, 0.1))
        median = statistics.median(reported)
        rows.report(
            f"NCCL IB, 8 B, delay of {ms} ms",
            "matched_owd_error_percent",
            abs(median - ms) / ms * 100,
            "%",
            "<= 20",
            reported_ms=median,
            # Both ends poll on the one processor of the guest: what the fastest messages show has less of that noise.
            fastest_tenth_ms=statistics.median(fastest),
            rounds=rounds,
        )


def _with(plain: Environment, folder: Path, every: int) -> Environment:
    """A file a host."""

    def environment(host: int) -> dict[str, str]:
        run_dir = folder / ("receive", "send")[host]
        run_dir.mkdir(exist_ok=True)
        return {
            **plain(host),
            "LD_LIBRARY_PATH": str(nccl_library().parent),
            "FABRICPULSE_RUN_DIR": str(run_dir),
            "FABRICPULSE_VERBS_SAMPLE": str(every),
        }

    return environment


def _files(folder: Path) -> dict[str, VerbsTelemetryReader]:
    """Of each role: the file that its process has left."""
    found = {}
    for role in ("receive", "send"):
        (path,) = (folder / role / "plugin").glob("*.verbs")
        found[role] = VerbsTelemetryReader(path)
    return found


def _differences(
    found: Mapping[str, Mapping[str, Any]], files: Mapping[str, VerbsTelemetryReader]
) -> list[bool]:
    """Which of messages sent, bytes sent and messages received are not what the program says, and what was missed."""
    send, receive = files["send"].read(), files["receive"].read()
    sent = np.concatenate([send.queue_pairs["counters"], send.totals["counters"]])
    received = np.concatenate([receive.queue_pairs["counters"], receive.totals["counters"]])
    notifying = OPCODES.index("write_imm")
    messages = int(found["send"]["messages"])
    return [
        int(sent["messages_sent"].sum()) != messages,
        int(sent["posts"][:, notifying].sum()) != messages,
        int(sent["bytes"].sum()) != messages * SIZE,
        int(received["messages_received"].sum()) != int(found["receive"]["messages"]),
        bool(send.unseen_posts or send.unseen_completions or send.dropped_records),
        bool(receive.unseen_posts or receive.unseen_completions or receive.dropped_records),
    ]


_SENT, _RECEIVED = 1, 2


def _matched(sender: VerbsTelemetryReader, receiver: VerbsTelemetryReader) -> tuple[list[int], int]:
    """Delays of the sampled messages that both files have, ns, and how many the sender's has."""
    sent, _, _ = read_samples(sender, 0)
    received, _, _ = read_samples(receiver, 0)
    arrived = {
        (int(s["peer_number"]), int(s["number"]), int(s["psn"]), int(s["message"])): int(s["raw_ns"])
        for s in received
        if int(s["direction"]) == _RECEIVED
    }
    posted = {
        (int(s["number"]), int(s["peer_number"]), int(s["psn"]), int(s["message"])): int(s["raw_ns"])
        for s in sent
        if int(s["direction"]) == _SENT
    }
    return [arrived[key] - posted[key] for key in posted.keys() & arrived.keys()], len(posted)


def _delays_ms(measure: Measure, plain: Environment, seconds: float) -> list[float]:
    """One-way delays of small messages that go to and fro, from the second host to the first."""
    with tempfile.TemporaryDirectory() as folder:
        measure(_with(plain, Path(folder), every=1), "latency", 8, seconds)
        files = _files(Path(folder))
        delays, _ = _matched(files["send"], files["receive"])
    return [delay * 1e-6 for delay in delays]
