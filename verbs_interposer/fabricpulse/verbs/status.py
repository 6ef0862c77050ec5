"""What `fabricpulse verbs status` shows of the processes of this host."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fabricpulse.core.files import named
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.plugin_ipc.table_file import TornReadError, text
from fabricpulse.plugin_ipc.verbs import STATUSES, Bypass, VerbsSnapshot, VerbsTelemetryReader, peer_name


def snapshots(folder: Path) -> tuple[list[VerbsSnapshot], list[str]]:
    """Of running processes, by pid; and what cannot be read, one sentence each."""
    found, complaints = [], []
    try:
        paths = sorted(named(folder, ".verbs"))
    except OSError as error:
        return [], [f"{folder}: {error.strerror}"]
    for path in paths:
        try:
            reader = VerbsTelemetryReader(path)
            try:
                snapshot = reader.read()
            finally:
                reader.close()
        except FileNotFoundError:
            continue
        except (OSError, LayoutError, TornReadError) as error:
            complaints.append(str(error) if str(error).startswith(str(path)) else f"{path}: {error}")
            continue
        if snapshot.running:
            found.append(snapshot)
    return sorted(found, key=lambda snapshot: snapshot.pid), complaints


def describe(snapshot: VerbsSnapshot, raw_ns: int) -> dict[str, Any]:
    """As JSON. raw_ns : CLOCK_MONOTONIC_RAW."""
    return {
        "pid": snapshot.pid,
        "rank": snapshot.rank,
        "workload": snapshot.workload,
        "host": snapshot.host,
        "not_seen": not_seen(snapshot),
        "queue_pairs": [_queue_pair(snapshot, record, raw_ns) for record in snapshot.queue_pairs],
    }


def not_seen(snapshot: VerbsSnapshot) -> list[str]:
    """What passed the interposer by, one sentence each."""
    complaints = []
    if Bypass.DIRECT in snapshot.bypass:
        complaints.append("the program writes into queues itself (mlx5dv_init_obj): that work is not counted")
    if Bypass.DEVX in snapshot.bypass:
        complaints.append("the program makes queues by DEVX, past libibverbs: their work is not counted")
    if snapshot.unseen_posts:
        complaints.append(f"{snapshot.unseen_posts} posts on queue pairs whose creation was not seen")
    if snapshot.unseen_completions:
        complaints.append(f"{snapshot.unseen_completions} completions of queue pairs that are not known")
    if snapshot.dropped_records:
        complaints.append(f"{snapshot.dropped_records} objects more than there is room for")
    return complaints


def _queue_pair(snapshot: VerbsSnapshot, record: np.void, raw_ns: int) -> dict[str, Any]:
    counters = record["counters"]
    waiting = int(record["outstanding_signaled"]) > 0
    since = max(int(record["oldest_post_raw_ns"]), int(record["last_progress_raw_ns"]))
    delays = int(counters["delay"]["count"])
    return {
        "number": int(record["number"]),
        "peer_number": int(record["peer_number"]),
        "rdma_device": snapshot.devices.get(int(record["device"]), ""),
        "device": text(record["netdev"]),
        "peer": peer_name(bytes(record["peer_gid"]), int(record["peer_lid"])),
        "posts": int(counters["posts"].sum()),
        "sent_bytes": int(counters["bytes"].sum()),
        "received_bytes": int(counters["received_bytes"]),
        "messages_sent": int(counters["messages_sent"]),
        "messages_received": int(counters["messages_received"]),
        "outstanding": int(record["outstanding"]),
        "waiting_ms": round(max(0, raw_ns - since) / 1e6, 1) if waiting else 0.0,
        "mean_completion_us": round(int(counters["delay"]["sum_ns"]) / delays / 1e3, 1) if delays else None,
        "errors": {
            name: int(count) for name, count in zip(STATUSES, counters["errors"], strict=True) if count
        },
    }


def status_tables(found: Sequence[VerbsSnapshot]) -> list[Table]:
    """One table a process."""
    raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    tables = []
    for snapshot in found:
        entry = describe(snapshot, raw_ns)
        table = Table(
            title=f"process {snapshot.pid}, workload {snapshot.workload} on {snapshot.host}",
            caption="\n".join(entry["not_seen"]) or None,
            title_justify="left",
            caption_justify="left",
            box=None,
            pad_edge=False,
        )
        for name in ("queue pair", "device", "peer"):
            table.add_column(name)
        for name in (
            "posts",
            "sent",
            "received",
            "messages",
            "outstanding",
            "waiting",
            "completion",
            "errors",
        ):
            table.add_column(name, justify="right")
        for pair in entry["queue_pairs"]:
            mean = pair["mean_completion_us"]
            table.add_row(
                f"{pair['number']} → {pair['peer_number']}",
                pair["device"] or pair["rdma_device"],
                pair["peer"],
                str(pair["posts"]),
                str(pair["sent_bytes"]),
                str(pair["received_bytes"]),
                f"{pair['messages_sent']} / {pair['messages_received']}",
                str(pair["outstanding"]),
                f"{pair['waiting_ms']:.0f} ms" if pair["waiting_ms"] else "",
                "" if mean is None else f"{mean:.0f} µs",
                " ".join(f"{name} {count}" for name, count in pair["errors"].items()),
            )
        tables.append(table)
    return tables
