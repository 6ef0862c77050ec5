"""What jobs on a GPU have left behind in real hangs: Flight Recorder's dumps, answers of RAS, files of Inspector, and
what the exporter said. tests/fixtures/why/captures/README.md says how each came about."""

import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.fixtures.why.recorded import answer_of_dumps

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes import hang, rank_dead
from fabricpulse.why.facts import Facts, Wait
from fabricpulse.why.hang import find_heads
from fabricpulse.why.sources import inspector, ras
from fabricpulse.why.sources.flight_recorder import read_dumps

CAPTURES = Path(__file__).parents[2] / "fixtures/why/captures"
# Torch waited for so long.
LIMIT_S = 8.0


def dumps_of(name: str, folder: Path, after_s: float = LIMIT_S) -> Path:
    """A copy with the times of files as they were: so long after the last entry of any rank."""
    shutil.copytree(CAPTURES / name, folder, ignore=shutil.ignore_patterns("ras.*", "qp.*"))
    stamps = [
        one.created_ns
        for dump in read_dumps([folder]).found
        for group in (dump.entries, dump.transfers)
        for one in group
    ]
    written_s = max(stamps) / 1e9 + after_s
    for path in folder.iterdir():
        os.utime(path, (written_s, written_s))
    return folder


@pytest.mark.parametrize(
    ("name", "where", "evidence"),
    [
        ("skip", "rank 1", "rank 1 has started 7 collectives, the others 8"),
        ("skip_json", "rank 1", "rank 1 has started 7 collectives, the others 8"),
        ("observed", "rank 1", "rank 1 has started 7 collectives, the others 8"),
        ("kinds", "deadlock of the program", "8: nccl:all_reduce on ranks 0, nccl:broadcast on ranks 1"),
        ("sizes", "deadlock of the program", "nccl:all_reduce of 262144 elements on ranks 0"),
        ("receive", "rank 1", "rank 1 has offered nothing for 8 s"),
        # What the dumps do not tell: who was the root, and what the network did.
        ("roots", "head of the chain unknown", "2 ranks are in one"),
        ("cut", "head of the chain unknown", "2 ranks are in one"),
    ],
)
def test_dumps(name: str, where: str, evidence: str, tmp_path: Path) -> None:
    """The answer from dumps alone. A batch of sends and receives that has ended is no deadlock of the program: its
    entries stay scheduled under the number of the collective before."""
    document = answer_of_dumps(dumps_of(name, tmp_path / name))
    assert [(c["cause"], c["where"]) for c in document["causes"]] == [("hang", where)]
    assert any(evidence in e["text"] for e in document["causes"][0]["evidence"])


def test_dumps_of_a_healthy_job(tmp_path: Path) -> None:
    """Made while it ran: nothing is wrong that is known."""
    document = answer_of_dumps(dumps_of("healthy", tmp_path / "healthy", after_s=0.01))
    assert (document["state"], document["causes"]) == ("unknown", [])


def answers_of(name: str) -> Analysis:
    """RAS, asked twice."""
    first = (CAPTURES / name / "ras.json").read_bytes()
    later = CAPTURES / name / "ras.json_later"
    second = later.read_bytes() if later.exists() else first
    facts = ras.facts_of(ras.parse(first, 0.0, "x"), ras.parse(second, 10.0, "x"))
    return Analysis(ras.add(Facts("job", 0.0), facts))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("healthy", []),
        ("healthy-2.32.3", []),
        ("skip", ["rank 1 on 10.97.2.2"]),
        ("skip-2.32.3", ["rank 1 on 10.97.2.2"]),
        ("kinds", ["deadlock of the program"]),
        ("kinds-2.32.3", ["deadlock of the program"]),
        # RAS says OK: all have launched the same.
        ("cut", []),
    ],
)
def test_answers_of_ras(name: str, where: list[str]) -> None:
    """NCCL 2.28.9, and another where the name says so."""
    assert [f.where for f in hang.find(answers_of(name))] == where


@pytest.mark.parametrize(
    ("name", "is_json"),
    [("stopped", False), ("killed", False), ("stopped-2.32.3", True), ("killed-2.32.3", True)],
)
def test_ras_of_a_rank_that_is_gone(name: str, is_json: bool) -> None:
    """A killed rank is at first one that does not answer; what NCCL 2.28 answers then is no JSON."""
    text = (CAPTURES / name / "ras.json").read_bytes().partition(b"{")[2].join([b"{", b""])
    with nullcontext() if is_json else pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert [f.where for f in rank_dead.find(answers_of(name))] == ["rank 1 on 10.97.2.2"]


def waits_of(name: str) -> list[Wait]:
    """What the exporter says of requests that wait."""
    found = []
    for line in (CAPTURES / name / "qp.metrics").read_text().splitlines():
        if line.startswith("fabricpulse_request_waiting_seconds"):
            label = dict(re.findall(r'(\w+)="([^"]*)"', line))
            rank, peer = int(label["rank"]), int(label["peer_rank"])
            age_s = float(line.rpartition(" ")[2])
            found.append(Wait(f"gpu-test-{rank}", rank, label["peer"], peer, label["waits_for"], age_s))
    return found


@pytest.mark.parametrize(
    ("name", "rank", "network"),
    [
        ("skip", 1, False),
        ("kinds", 1, False),
        ("receive", 1, False),
        ("roots", 0, None),
        ("cut", 0, True),
        ("sizes", 1, False),
    ],
)
def test_requests_that_wait(name: str, rank: int, network: bool | None) -> None:
    """The plugin's records name the head where dumps and RAS cannot: the network, and ranks that wait in a circle."""
    (head,) = find_heads(waits_of(name))
    assert (head.rank, head.network) == (rank, network)


@pytest.mark.parametrize("release", ["2.28.9", "2.30.7"])
def test_files_of_inspector(release: str) -> None:
    """Each line is a record; collectives are those that were made, and the hang after them is not seen."""
    log = inspector.read_logs([CAPTURES / f"inspector-{release}"])
    assert (log.torn, log.foreign, [len(own) for own in log.records]) == (0, (), [28, 28])
    last = log.records[0][-1]
    assert (last.function, last.number, last.size, last.ranks) == ("Broadcast", 5, 1 << 20, 2)
    ends_s = max(r.at_s for own in log.records for r in own)
    facts = inspector.add(Facts("job", ends_s), log, 60.0)
    assert {(r.rank, r.ranks, bool(r.duration_s)) for r in facts.ranks} == {(0, 2, True), (1, 2, True)}
    assert list(hang.find(Analysis(facts))) == []
    assert any("a hang is not seen in its files" in line for line in facts.limits)
