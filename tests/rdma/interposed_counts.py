"""What the verbs interposer counts of a program that knows nothing of it, on a kernel's verbs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from tests.fixtures.plugin.verbs_samples import read_samples

from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.lab.rdma.fleet import RdmaFleet
from fabricpulse.plugin_ipc.verbs import VerbsTelemetryReader
from fabricpulse.qp import metrics
from fabricpulse.qp.verbs_totals import VerbsTotals
from fabricpulse.verbs.locate import preload_library

MESSAGES = 40
SENT, RECEIVED = 1, 2


def check_counts(fleet: RdmaFleet, folder: Path) -> None:
    """Runs the program. AssertionError where a count is not exact, or the series do not name what they are of."""
    ends = [fleet.device("h0", 0), fleet.address("h0", 0), fleet.device("h1", 0), fleet.address("h1", 0)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.rdma.interposed_pair", *ends, str(MESSAGES)],
        env={
            **os.environ,
            "LD_PRELOAD": str(preload_library()),
            "FABRICPULSE_RUN_DIR": str(folder),
            "FABRICPULSE_VERBS_SAMPLE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (path,) = (folder / "plugin").glob("*.verbs")
    reader = VerbsTelemetryReader(path)
    snapshot = reader.read()
    counters = np.concatenate([snapshot.queue_pairs["counters"], snapshot.totals["counters"]])
    assert {
        "posts": int(counters["posts"].sum()),
        "bytes": int(counters["bytes"].sum()),
        "messages": int(counters["messages_sent"].sum()),
    } == said
    assert int(counters["messages_received"].sum()) == MESSAGES
    samples, _, lost = read_samples(reader, 0)
    sent, received = (
        {int(sample["message"]): int(sample["raw_ns"]) for sample in samples if sample["direction"] == way}
        for way in (SENT, RECEIVED)
    )
    assert lost == 0
    assert sent.keys() == received.keys() == set(range(MESSAGES))
    assert all(sent[number] < received[number] for number in sent)
    totals = VerbsTotals(300)
    totals.take([snapshot], [], 0.0, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))
    exposition = Exposition(10_000)
    exposition.declare(metrics.METRICS)
    totals.expose(exposition, 0)
    series = [
        sample.labels
        for family in text_string_to_metric_families(exposition.render().decode())
        for sample in family.samples
        if sample.name == "fabricpulse_verbs_messages_total" and sample.value == MESSAGES
    ]
    assert {
        (labels["device"], labels["rdma_device"], labels["port"], labels["peer_gid"], labels["direction"])
        for labels in series
    } == {
        ("rail0", ends[0], "1", ends[3], "sent"),
        ("rail0", ends[2], "1", ends[1], "received"),
    }
