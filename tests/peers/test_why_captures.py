"""`fabricpulse why` on what jobs have really said: answers of NCCL's RAS that Ray keeps for its own tests, and a line
of NCCL's Inspector that Datadog's agent keeps.

Their data is not in this repository. RAY_SOURCE and DATADOG_SOURCE name checkouts, bare ones too, or the file itself.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from fabricpulse.why.analysis import Analysis
from fabricpulse.why.causes import hang, rank_dead
from fabricpulse.why.facts import Facts
from fabricpulse.why.sources import ras
from fabricpulse.why.sources.inspector import read_logs

RAY = os.environ.get("RAY_SOURCE", "")
RAY_FILE = "python/ray/train/v2/tests/test_nccl_ras_callback.py"
DATADOG = os.environ.get("DATADOG_SOURCE", "")
DATADOG_WORDS = "copied verbatim from the NCCL Inspector dump"


def text_of(source: str, path: str) -> str:
    """The file itself, or that file of a checkout."""
    if Path(source).is_file():
        return Path(source).read_text()
    return subprocess.run(
        ["git", "-C", source, "show", f"HEAD:{path}"], capture_output=True, text=True, check=True
    ).stdout


def answers() -> dict[str, bytes]:
    """By the names that Ray gives them: two ranks that move, one that was killed, one that is behind."""
    found = re.findall(r'^(\w+_RAS_JSON) = """(.*?)"""$', text_of(RAY, RAY_FILE), re.M | re.S)
    return {name.removesuffix("_RAS_JSON").lower(): text.encode() for name, text in found}


def asked_twice(answer: bytes) -> Analysis:
    """Nothing has moved between the two."""
    first, second = ras.parse(b"OK\nOK\n" + answer, 0.0, "x"), ras.parse(answer, 10.0, "x")
    return Analysis(ras.add(Facts("job", 0.0), ras.facts_of(first, second)))


@pytest.mark.skipif(not RAY, reason="needs RAY_SOURCE, a checkout of ray-project/ray")
def test_answers_of_nccl_2_28() -> None:
    """It leaves out a comma for a rank that it misses. Ranks and hosts are those of the answers."""
    of = {name: asked_twice(answer) for name, answer in answers().items()}
    assert [f.where for f in rank_dead.find(of["dead_rank"])] == ["rank 1 on 10.0.77.184"]
    assert [f.where for f in hang.find(of["multi_comm"])] == ["rank 1 on 10.0.77.184"]
    assert list(rank_dead.find(of["healthy"])) == []
    assert [(r.rank, r.operations, r.ranks) for r in of["healthy"].facts.ranks] == [(0, 2.0, 2), (1, 2.0, 2)]


@pytest.mark.skipif(not DATADOG, reason="needs DATADOG_SOURCE, the file of DataDog/datadog-agent")
def test_a_line_of_inspector(tmp_path: Path) -> None:
    """Of a rank of three; numbers are those of the line."""
    captured = text_of(DATADOG, "").partition(DATADOG_WORDS)[2]
    (line,) = re.findall(r"`(\{.*?\})`", captured)[:1]
    (tmp_path / "worker-pid48.log").write_text(line + "\n")
    ((record,),) = read_logs([tmp_path]).records
    assert f'"coll_sn":{record.number},' in line
    assert f'"coll_msg_size_bytes":{record.size},' in line
    assert f'"hostname":"{record.host}"' in line
    assert (record.rank, record.ranks) == (1, 3)
    assert record.took_s == pytest.approx(5663e-6)
