"""Dumps of Flight Recorder. They are made here after PyTorch's format (version 2.10); those of jobs are in
test_captured_hangs.py."""

import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.fixtures.why.recorded import answer_of_dumps

from fabricpulse.core.errors import UserError
from fabricpulse.why.command import command
from fabricpulse.why.sources.flight_facts import mismatches, ranks, waits
from fabricpulse.why.sources.flight_recorder import read_dumps


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
    document = answer_of_dumps(tmp_path)
    assert document["state"] == "stalled"
    assert [(c["cause"], c["where"]) for c in document["causes"]] == [("hang", "rank 1")]
    assert any("cannot ask" in line for line in document["unknown"])


def test_progress(tmp_path: Path) -> None:
    """Ended and unfinished collectives of each rank and group; sends and receives do not count."""
    write(tmp_path, 0, [entry(1), entry(2, "started"), entry(3, "scheduled"), entry(9, is_p2p=True)])
    (rank,) = ranks(read_dumps([tmp_path]).found)
    assert (rank.communicator, rank.rank, rank.operations, rank.in_progress) == ("0/default_pg", 0, 1, 2)


def test_how_long_a_rank_stands_still(tmp_path: Path) -> None:
    """From the last collective that ended to the writing of the dump, not the window of Prometheus' rates."""
    done = entry(1)
    write(tmp_path, 0, [done, entry(2, "started")])
    written_s = done["time_discovered_completed_ns"] / 1e9 + 7
    os.utime(tmp_path / "nccl_trace_rank_0", (written_s, written_s))
    (rank,) = ranks(read_dumps([tmp_path]).found)
    assert rank.still_s == pytest.approx(7)
    write(tmp_path, 0, [entry(2, "started")])
    os.utime(tmp_path / "nccl_trace_rank_0", (written_s, written_s))
    (rank,) = ranks(read_dumps([tmp_path]).found)
    assert rank.still_s == pytest.approx(written_s - entry(2)["time_created_ns"] / 1e9)


def test_a_deadlock_is_the_program_s(tmp_path: Path) -> None:
    """Ranks in different collectives of one number."""
    write(tmp_path, 0, [entry(1), entry(2, "started")])
    write(tmp_path, 1, [entry(1), entry(2, "started", "nccl:all_gather")])
    (reported,) = mismatches(read_dumps([tmp_path]).found)
    assert "collective 2: nccl:all_gather on ranks 1, nccl:all_reduce on ranks 0" in reported


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


def test_half_a_dump_costs_its_own_rank(tmp_path: Path) -> None:
    """A rank that was killed while it wrote, and other files whose names end with a number, are named, no more."""
    stuck(tmp_path)
    whole = (tmp_path / "nccl_trace_rank_0").read_bytes()
    (tmp_path / "nccl_trace_rank_0").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "core.4711").write_bytes(b"\x7fELF" * 99)
    (tmp_path / "evil\x1b]0;x\x07_9").write_bytes(b"no dump")
    dumps = read_dumps([tmp_path])
    assert [d.rank for d in dumps.found] == [1, 2]
    reported, absent = dumps.limits
    assert (absent, dumps.missing) == ("no dump of ranks 0", (0,))
    assert all(name in reported for name in ("nccl_trace_rank_0", "core.4711", "evil"))
    assert "\x1b" not in reported
    with pytest.raises(UserError, match="nccl_trace_rank_0"):
        read_dumps([tmp_path / "nccl_trace_rank_0"])


def test_a_folder_without_dumps(tmp_path: Path) -> None:
    """The wrong folder is not taken for a job of which nothing is wrong."""
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(UserError, match="no file whose name ends with a rank"):
        read_dumps([tmp_path])


def test_a_few_bytes_that_ask_for_all_memory(tmp_path: Path) -> None:
    """A pickle may say that the next object is the two thousand millionth: 32 GiB for its place alone."""
    (tmp_path / "trace_0").write_bytes(b"\x80\x02Nr" + (0x7FFF_FFFF).to_bytes(4, "little") + b".")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(UserError, match="more memory than a dump needs"):
        read_dumps([tmp_path])
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A FIFO whose name ends with a rank."""
    os.mkfifo(tmp_path / "trace_0")
    with pytest.raises(UserError, match="not a regular file"):
        read_dumps([tmp_path / "trace_0"])


def test_absurd_numbers_are_no_collectives(tmp_path: Path) -> None:
    """Longer than any number that can be added up."""
    write(tmp_path, 0, [entry(1), entry(1) | {"collective_seq_id": 10**400}], form="json")
    (rank,) = ranks(read_dumps([tmp_path]).found)
    assert rank.operations == 1


def test_dumps_of_a_job_that_runs_tell_of_no_hang(tmp_path: Path) -> None:
    """Somebody has asked for them: the last collective was enqueued a second before."""
    stuck(tmp_path)
    for path in tmp_path.iterdir():
        os.utime(path, (1_700_000_006, 1_700_000_006))
    dumps = read_dumps([tmp_path])
    assert {r.rate for r in ranks(dumps.found)} == {None}
    assert "3 of 3 dumps were written while" in dumps.limits[0]
    reported = answer_of_dumps(tmp_path)
    assert (reported["state"], reported["causes"]) == ("unknown", [])
    assert any("tell of no hang" in line for line in reported["unknown"])


@pytest.mark.parametrize("argument", [[""], ["--slurm", ""], ["--pod", ""]])
def test_an_empty_name(argument: list[str]) -> None:
    """A variable that is not set must not become a question about everything without a label."""
    result = CliRunner().invoke(command, argument)
    assert "the name is empty" in str(result.exception)


def hangs(folder: Path) -> list[tuple[str, float]]:
    return [(c["where"], c["confidence"]) for c in answer_of_dumps(folder)["causes"]]


def members(**groups: list[int]) -> dict[str, Any]:
    return {
        name.removeprefix("g"): {"name": name, "ranks": str(ranks_of)} for name, ranks_of in groups.items()
    }


def dump(folder: Path, rank: int, config: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    content = {"version": "2.10", "pg_config": config, "entries": entries}
    (folder / f"dump_{rank}").write_text(json.dumps(content))


def of_group(name: str, count: int, *, stuck_in: bool) -> list[dict[str, Any]]:
    group = (name, f"pg{name}")
    done = [entry(n, process_group=group) for n in range(1, count + 1)]
    return [*done, entry(count + 1, "started", process_group=group)] if stuck_in else done


def test_groups_of_one_name_are_not_one(tmp_path: Path) -> None:
    """As `split_group` makes them: two pairs of ranks, each in collectives of its own. One rank is late in the group of
    all."""
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        tensor = [
            entry(n, name="nccl:x" if rank < 2 else "nccl:y", process_group=("1", "tp")) for n in range(1, 9)
        ]
        config = members(g0=[0, 1, 2, 3], g1=pair)
        dump(tmp_path, rank, config, [*of_group("0", 4, stuck_in=rank != 1), *tensor])
    assert hangs(tmp_path)[0][0] == "rank 1"


def test_who_waits_in_one_group_is_not_late_in_another(tmp_path: Path) -> None:
    """Rank 3 does not enter a collective of its pair, rank 2 waits for it there, and the others for both."""
    for rank in range(4):
        config = members(g0=[0, 1, 2, 3], **{"g1" if rank < 2 else "g2": [0, 1] if rank < 2 else [2, 3]})
        entries = of_group("0", 4, stuck_in=rank < 2)
        entries += of_group("1", 20, stuck_in=False) if rank < 2 else of_group("2", 8, stuck_in=rank == 2)
        dump(tmp_path, rank, config, entries)
    assert [where for where, _ in hangs(tmp_path)] == ["rank 3"]


@pytest.mark.parametrize("config", [{}, {"0": {"ranks": "[0, 1, 2, 3]"}}])
def test_a_rank_without_a_dump_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    """It has died before it could write one: all others wait in the same collective. Not as sure as a rank that is seen
    to be late."""
    for rank in (0, 1, 3):
        dump(tmp_path, rank, config, of_group("0", 4, stuck_in=True))
    ((where, confidence),) = hangs(tmp_path)
    assert (where, confidence < 0.9) == ("rank 2, without a dump", True)
    assert read_dumps([tmp_path]).limits == ("no dump of ranks 2",)


@pytest.mark.parametrize("listed", ["[0, 1", "[" * 5000, 7, ["a"], [1, 2], [-1, 0], {"0": 1}])
def test_members_that_are_none(tmp_path: Path, listed: Any) -> None:
    """Half a list, one that is too deep, and lists without the dump's own rank say nothing of who is missing."""
    dump(tmp_path, 0, {"0": {"ranks": listed}}, of_group("0", 4, stuck_in=True))
    assert read_dumps([tmp_path]).missing == ()


def transfer(number: int, name: str, *, ended: bool) -> list[dict[str, Any]]:
    """A batch of one send or receive, as torch 2.11 records it: its end has the number of the last collective."""
    batch = {"p2p_seq_id": number, "op_id": 100 + number}
    state = "completed" if ended else "scheduled"
    return [
        entry(1, "scheduled", f"nccl:{name}", is_p2p=True, **batch),
        entry(1, state, "nccl:coalesced", input_sizes=[], **batch),
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_who_has_not_sent(tmp_path: Path, whole: bool) -> None:
    """Rank 0 waits for the third of what rank 1 sends. Dumps whose beginnings are overwritten do not count them."""
    first = {"record_id": 0 if whole else 7}
    for rank, sent in ((0, ["recv 0<-1"] * 3), (1, ["send 1->0"] * 2)):
        batches = [transfer(n, name, ended=n < 2) for n, name in enumerate(sent)]
        write(tmp_path, rank, [entry(1) | first, *(one for batch in batches for one in batch)])
    found = [(w.rank, w.peer_rank, w.waits_for) for w in waits(read_dumps([tmp_path]).found)]
    assert found == ([(0, 1, "peer_send")] if whole else [])


def test_a_batch_of_transfers_is_no_collective(tmp_path: Path) -> None:
    """Ranks that have made different numbers of them are in the same collective."""
    write(tmp_path, 0, [entry(1), *transfer(1, "recv 0<-1", ended=True), entry(2, "started")])
    write(tmp_path, 1, [entry(1), entry(2, "started")])
    dumps = read_dumps([tmp_path]).found
    assert mismatches(dumps) == ()
    assert [(r.operations, r.in_progress) for r in ranks(dumps)] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("name", "state", "named"),
    [
        ("nccl:all_reduce", "started", True),
        # It has ended: whatever was wrong with it, nobody waits there.
        ("nccl:all_reduce", "completed", False),
        # Ranks may give different shares.
        ("nccl:all_gather", "started", False),
    ],
)
def test_sizes_that_differ(tmp_path: Path, name: str, state: str, named: bool) -> None:
    """Of collectives that each rank must call with the same size, and that have not ended."""
    for rank in range(2):
        write(tmp_path, rank, [entry(1), entry(2, state, name, input_sizes=[[4, 1024 >> rank]])])
    lines = mismatches(read_dumps([tmp_path]).found)
    assert [f"{name} of 2048 elements on ranks 1" in line for line in lines] == [True] * named
