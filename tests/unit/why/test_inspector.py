"""Files of NCCL's Inspector. They are made here after its documented format v4.0; those of a job are
in test_captured_hangs.py, a line of another in tests/peers/test_why_captures.py."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabricpulse.core.errors import UserError
from fabricpulse.why.command import command
from fabricpulse.why.facts import Facts
from fabricpulse.why.sources import inspector
from fabricpulse.why.sources.inspector import add, read_logs

# Of files that end now.
T0_US = round((time.time() - 600) * 1e6)


def line(rank: int, number: int, at_s: float, took_us: float, **more: Any) -> str:
    performance = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 1 << 30,
        "coll_exec_time_us": round(took_us),
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 277.2,
        "coll_busbw_gbs": 485.1,
    }
    return json.dumps(
        {
            "header": {
                "id": "0x7f8c496ae9f661",
                "rank": rank,
                "n_ranks": more.pop("n_ranks", 8),
                "nnodes": 4,
            },
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": T0_US + round(at_s * 1e6),
                "hostname": f"node{rank // 2}",
                "pid": 100 + rank,
            },
            "coll_perf": performance | more,
        }
    )


def job(folder: Path, late: int | None, rng: random.Random, ranks: int = 8) -> None:
    """Ten minutes of a job, each rank sampled at moments of its own. late : a rank that enters late."""
    for rank in range(ranks):
        lines, at_s = [], rng.random()
        while at_s < 600:
            took_us = 60_000 * rng.uniform(0.97, 1.03) * (0.4 if rank == late else 1)
            lines.append(line(rank, round(at_s * 10), at_s, took_us, n_ranks=ranks))
            at_s += rng.uniform(1, 5)
        (folder / f"node{rank // 2}-pid{100 + rank}.log").write_text("\n".join(lines) + "\n")


def why(*options: str) -> dict[str, Any]:
    # The moment is that of the files, however long ago this module was imported.
    at = () if "--at" in options else ("--at", str(round(T0_US / 1e6 + 600)))
    result = CliRunner().invoke(
        command, ["job", "--prometheus", "http://127.0.0.1:1", *at, *options, "--output", "json"]
    )
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_the_late_rank_is_named_without_a_prometheus(tmp_path: Path) -> None:
    """From files alone: which rank enters late, on which host."""
    job(tmp_path, 5, random.Random(1))
    document = why("--inspector", str(tmp_path))
    assert [(c["cause"], c["where"]) for c in document["causes"]] == [("straggler_rank", "rank 5 on node2")]
    assert any("a hang is not seen" in said for said in document["unknown"])


def test_random_jobs(tmp_path: Path) -> None:
    """Whichever rank is late is named, and nobody where none is, though no two ranks tell of the same collectives."""
    rng = random.Random(2)
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks = rng.randint(4, 8)
        late = rng.choice([None, rng.randrange(ranks)])
        job(folder, late, rng, ranks)
        causes = why("--inspector", str(folder))["causes"]
        named = [c["where"].split()[1] for c in causes if c["cause"] == "straggler_rank"]
        assert named == ([] if late is None else [str(late)])


def test_slower_than_before(tmp_path: Path) -> None:
    """Collectives that take twice as long in the last window as before; a rate by NCCL's numbers, in spite of gaps."""
    for rank in range(4):
        lines = [line(rank, 10 * s, s, 60_000 * (2 if s > 500 else 1), n_ranks=4) for s in range(0, 600, 4)]
        (tmp_path / f"{rank}.log").write_text("\n".join(lines))
    facts = add(Facts("job", T0_US / 1e6 + 600), read_logs([tmp_path]), 90.0)
    (collective,) = facts.collectives
    assert collective.bandwidth is not None
    assert collective.bandwidth_before is not None
    assert collective.bandwidth_before / collective.bandwidth == pytest.approx(2)
    assert [r.rate for r in facts.ranks] == [pytest.approx(10)] * 4
    assert why("--inspector", str(tmp_path), "--window", "90")["state"] == "slow"


def test_only_like_is_compared(tmp_path: Path) -> None:
    """A rank that reports small collectives is not taken for a late one; that this is unknown is reported."""
    for rank in range(4):
        size = 1 << 10 if rank == 2 else 1 << 30
        lines = [
            line(rank, n, 570 + n, 50 if rank == 2 else 60_000, n_ranks=5, coll_msg_size_bytes=size)
            for n in range(30)
        ]
        (tmp_path / f"{rank}.log").write_text("\n".join(lines))
    document = why("--inspector", str(tmp_path))
    assert document["causes"] == []
    assert any("4 of 5 ranks of 0x7f8c496ae9f661" in said for said in document["unknown"])
    assert any("late ranks of them are not found" in said for said in document["unknown"])


def test_files_as_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is being written, sends and receives, absurd numbers, other files: passed over; of a file that has
    grown large the end is read, from a whole line on."""
    good = [line(0, n, n, 1000) for n in range(20)]
    p2p = json.loads(good[0]) | {"p2p_perf": {"p2p": "Send"}}
    del p2p["coll_perf"]
    absurd = [
        line(9, 1, 1, 1),
        line(0, -1, 1, 1),
        line(0, 1, 1, 0),
        line(0, 1, 1, 2e12),
        line(0, 1, -1e13, 1),
    ]
    file = tmp_path / "a.log"
    file.write_text("\n".join([*good, json.dumps(p2p), *absurd, "", good[0][:50]]))
    (tmp_path / "metrics.prom").write_text("nccl_bus_bandwidth_gbs 1")
    (tmp_path / "folder.log").mkdir()
    os.mkfifo(tmp_path / "pipe.log")
    log = read_logs([tmp_path])
    assert [[r.number for r in records] for records in log.records] == [list(range(20))]
    assert log.torn == 1
    file.write_text("\n".join(good) + "\n")
    monkeypatch.setattr(inspector, "MOST_BYTES_EACH", len(good[-1]) * 3 + 20)
    assert [r.number for r in read_logs([tmp_path]).records[0]] == [17, 18, 19]


@pytest.mark.parametrize("data", [b"hello", b"{}", b"[1]", b"\xff\xfe", b'{"header": 5}', b"[" * 100_000])
def test_what_is_no_file_of_inspector(tmp_path: Path, data: bytes) -> None:
    """A sentence that names the file; an empty file, of a process that has not written yet, is none."""
    (tmp_path / "empty.log").touch()
    assert read_logs([tmp_path]).records == ((),)
    (tmp_path / "bad.log").write_bytes(data)
    with pytest.raises(UserError, match=r"bad\.log is no file of NCCL's Inspector"):
        read_logs([tmp_path / "bad.log"])
    (reported,) = read_logs([tmp_path]).foreign
    assert "bad.log" in reported
    (tmp_path / "empty.log").unlink()
    with pytest.raises(UserError, match=r"bad\.log is no file of NCCL's Inspector"):
        read_logs([tmp_path])


def test_no_file_at_all(tmp_path: Path) -> None:
    """An empty folder is a mistake, not a healthy job."""
    with pytest.raises(UserError, match="there is no"):
        read_logs([tmp_path])


def test_other_files_of_a_folder_are_passed_over(tmp_path: Path) -> None:
    """A folder of a job has logs of other programs, and a file whose first line is half written."""
    whole = line(0, 1, 1.0, 60_000)
    (tmp_path / "a.log").write_text(whole + "\n")
    (tmp_path / "b.log").write_text(whole[:80])
    (tmp_path / "train.log").write_text("epoch 1\nepoch 2\n")
    log = read_logs([tmp_path])
    assert [len(records) for records in log.records] == [1]
    reported = add(Facts("job", T0_US / 1e6 + 600), log, 90.0).limits
    assert any("b.log" in text and "train.log" in text for text in reported)
    with pytest.raises(UserError, match=r"train\.log"):
        read_logs([tmp_path / "train.log"])


def test_absurd_numbers_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(line(0, 1, 1.0, 60_000) + "\n" + line(0, 10**400, 2.0, 60_000) + "\n")
    assert [r.number for r in read_logs([tmp_path]).records[0]] == [1]


def test_a_job_that_writes_nothing_any_more_is_not_quick(tmp_path: Path) -> None:
    """It has ended or it hangs; and so may ranks whose files end long before those of the others."""
    job(tmp_path, None, random.Random(3))
    assert why("--inspector", str(tmp_path))["state"] == "healthy"
    later = why("--inspector", str(tmp_path), "--at", str(round(T0_US / 1e6 + 600)))
    assert later["state"] == "healthy"
    file = next(tmp_path.glob("*-pid102.log"))
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[: len(lines) // 3]))
    partly = why("--inspector", str(tmp_path))
    assert partly["state"] == "unknown"
    assert any("1 of 8 of Inspector's files end" in said for said in partly["unknown"])
    log = read_logs([tmp_path])
    gone = add(Facts("job", T0_US / 1e6 + 3600), log, 120.0)
    assert (gone.ranks, gone.collectives) == ((), ())
    assert any("or hangs" in said for said in gone.limits)
    # A file has a line every five seconds at least.
    for quiet_s, known in ((20, True), (90, False)):
        assert bool(add(Facts("job", T0_US / 1e6 + 600 + quiet_s), log, 120.0).ranks) is known
    # What was written after the moment asked about is not of it.
    assert add(Facts("job", T0_US / 1e6 - 3600), log, 120.0).collectives == ()
