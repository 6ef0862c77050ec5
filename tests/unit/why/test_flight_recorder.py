"""Dumps of Flight Recorder. They are made here after PyTorch's format (version 2.10); none was captured from a job."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import UserError
from fabricpulse.why.command import command
from fabricpulse.why.sources.flight_recorder import mismatches, ranks, read_dumps


def entry(
    sequence: int, state: str = "completed", name: str = "nccl:all_reduce", **more: Any
) -> dict[str, Any]:
    start = 1_700_000_000_000_000_000 + sequence * 1_000_000_000
    return {
        "record_id": sequence,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": name,
        "time_created_ns": start,
        "time_discovered_started_ns": start + 1000 if state != "scheduled" else None,
        "time_discovered_completed_ns": start + 500_000_000 if state == "completed" else None,
        "input_sizes": ((1024,),),
        "state": state,
        "is_p2p": False,
        "frames": [],
        **more,
    }  # fmt: skip


def write(folder: Path, rank: int, entries: list[dict[str, Any]], *, form: str = "pickle") -> None:
    content = {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": "[0, 1, 2]"}}, "entries": entries}
    data = json.dumps(content).encode() if form == "json" else pickle.dumps(content)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


def stuck(folder: Path, form: str = "pickle") -> None:
    """Rank 1 has not entered collective 5, in which the others are."""
    for rank in range(3):
        done = [entry(n) for n in range(1, 5)]
        write(folder, rank, done if rank == 1 else [*done, entry(5, "started")], form=form)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_missing_rank_is_named(tmp_path: Path, form: str) -> None:
    """From dumps alone, without a Prometheus: which rank has not entered the collective."""
    stuck(tmp_path, form)
    result = CliRunner().invoke(
        command,
        ["job", "--prometheus", "http://127.0.0.1:1", "--flight-recorder", str(tmp_path), "--output", "json"],
    )
    document = json.loads(result.stdout)
    assert document["state"] == "stalled"
    assert [(c["cause"], c["where"]) for c in document["causes"]] == [("hang", "rank 1")]
    assert any("cannot ask" in line for line in document["unknown"])


def test_progress(tmp_path: Path) -> None:
    """Ended and unfinished collectives of each rank and group; sends and receives do not count."""
    write(tmp_path, 0, [entry(1), entry(2, "started"), entry(3, "scheduled"), entry(9, is_p2p=True)])
    (rank,) = ranks(read_dumps([tmp_path]))
    assert (rank.communicator, rank.rank, rank.operations, rank.in_progress) == ("0/default_pg", 0, 1, 2)


def test_a_deadlock_is_the_program_s(tmp_path: Path) -> None:
    """Ranks in different collectives of one number."""
    write(tmp_path, 0, [entry(1), entry(2, "started")])
    write(tmp_path, 1, [entry(1), entry(2, "started", "nccl:all_gather")])
    (told,) = mismatches(read_dumps([tmp_path]))
    assert "collective 2: nccl:all_gather on ranks 1, nccl:all_reduce on ranks 0" in told


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    """A file that would run a program when it is loaded is refused, and the program has not run."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": [Evil()]}))
    with pytest.raises(UserError, match="no dump of Flight Recorder"):
        read_dumps([tmp_path / "trace_0"])
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"entries": 5}', b'{"entries": [5]}', b"\x80\x04", b"\xff" * 99]
)
def test_what_is_no_dump(tmp_path: Path, data: bytes) -> None:
    """A sentence that names the file."""
    (tmp_path / "trace_0").write_bytes(data)
    with pytest.raises(UserError, match="trace_0"):
        read_dumps([tmp_path])


def test_two_of_one_rank(tmp_path: Path) -> None:
    """Dumps of two jobs in one folder are not mixed."""
    write(tmp_path, 0, [entry(1)])
    (tmp_path / "other_0").write_bytes((tmp_path / "nccl_trace_rank_0").read_bytes())
    with pytest.raises(UserError, match="rank 0 already"):
        read_dumps([tmp_path])
