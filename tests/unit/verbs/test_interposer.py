"""The interposer on stand-ins for libibverbs: what a program posts and polls is counted exactly."""

import json
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.native.fuzzing import SECONDS, run_target
from tests.fixtures.native.programs import native

from fabricpulse.plugin_ipc.verbs import VerbsSnapshot, VerbsTelemetryReader

# Slow: three builds with sanitizers.
pytestmark = [pytest.mark.build, pytest.mark.slow, pytest.mark.timeout(900 + SECONDS)]


def run(
    folder: Path, variant: str, *arguments: str, complaints: int = 0
) -> tuple[dict[str, int], dict[int, VerbsSnapshot]]:
    """What the program counted, and the file of each process by its pid. complaints : lines on standard error."""
    environment = os.environ | {"FABRICPULSE_RUN_DIR": str(folder), "FABRICPULSE_VERBS_SAMPLE": "1"}
    command = [str(native("verbs_interposer_host", variant)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == complaints, done.stderr
    files = [VerbsTelemetryReader(path).read() for path in (folder / "plugin").glob("*.verbs")]
    return json.loads(done.stdout), {file.pid: file for file in files}


def counted(snapshot: VerbsSnapshot) -> dict[str, int]:
    """Sums over queue pairs that are there and that were."""
    counters = np.concatenate([snapshot.queue_pairs["counters"], snapshot.totals["counters"]])
    return {
        "posts": int(counters["posts"].sum()),
        "bytes": int(counters["bytes"].sum()),
        "completions": int(counters["completions"].sum()),
        "errors": int(counters["errors"].sum()),
        "receives": int(counters["receives"].sum()),
        "received_bytes": int(counters["received_bytes"].sum()),
        "messages": int(counters["messages_sent"].sum()),
    }


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_exact_under_random_faults(tmp_path: Path, seed: int) -> None:
    """Posts, bytes, completions, errors, receives, messages: the program's own numbers, with queue pairs that fail."""
    expected, files = run(tmp_path, "address", "faults", str(seed))
    [file] = files.values()
    found = counted(file)
    # The direction of a completion with error is inferred; those of sends are among both.
    assert expected["completions"] <= found.pop("completions") <= expected["completions"] + expected["errors"]
    assert int(file.totals["counters"]["delay"]["count"].sum()) == expected.pop("completions")
    assert int(file.totals["counters"]["untracked_posts"].sum()) == 0
    assert found == expected
    assert expected["posts"] > 1000
    assert file.unseen_posts == file.unseen_completions == file.dropped_records == 0
    assert not file.running


@pytest.mark.parametrize("variant", ["address", "thread"])
def test_threads_post_and_poll_at_the_same_time(tmp_path: Path, variant: str) -> None:
    """Ordinary and extended calls of several threads: no race, exact counts; no refused or aborted work."""
    expected, files = run(tmp_path, variant, "threads")
    [file] = files.values()
    assert counted(file) == expected
    assert int(file.totals["counters"]["refused_posts"].sum()) == 900
    assert int(file.totals["counters"]["delay"]["count"].sum()) == expected["completions"]


def test_a_child_of_fork_has_a_file_of_its_own(tmp_path: Path) -> None:
    """What the child does to its parent's queue pairs is passed on and counted nowhere; its own are in its own file."""
    expected, files = run(tmp_path, "address", "fork")
    assert len(files) == 2
    parent, child = sorted(files.values(), key=lambda file: file.start_raw_ns)
    assert counted(parent) == expected
    assert counted(child)["posts"] == 3 * 2 + 3 * 2
    assert list(child.queue_pairs["number"]) == [200]


def test_a_bad_variable_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process that opens the first device, not by its children again; the rank is unknown."""
    monkeypatch.setenv("FABRICPULSE_RANK", "first")
    _, files = run(tmp_path, "address", "fork", complaints=1)
    assert [file.rank for file in files.values()] == [None, None]


def test_fuzz_of_calls_leaves_the_meter_sound(tmp_path: Path) -> None:
    """A fuzz of posts and completions in any order, with wrong ids, statuses and opcodes."""
    source = random.Random(5)
    corpus = {f"seed{n}": source.randbytes(200) for n in range(8)}
    tried = run_target(native("verbs_meter_fuzz", "fuzz"), corpus, tmp_path, 20_000)
    assert tried >= 20_000 or SECONDS
