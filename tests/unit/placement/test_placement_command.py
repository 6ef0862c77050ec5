"""`fabricpulse placement`: the page's example, files, and errors as one sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fabricpulse.core.cli import cli
from fabricpulse.core.errors import UserError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/placement.md").read_text()


def blocks() -> list[str]:
    """Fenced blocks of the page."""
    return re.findall(r"```\w*\n(.*?)```", PAGE, re.S)


def run(*arguments: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["placement", *arguments], **more)


def good(*arguments: str, **more: Any) -> str:
    result = run(*arguments, **more)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def error(*arguments: str, **more: Any) -> str:
    """The sentence of the error."""
    result = run(*arguments, **more)
    assert result.exit_code != 0
    if isinstance(result.exception, UserError):
        return str(result.exception)
    return result.output


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The file of places of the page."""
    path = tmp_path / "places.yaml"
    path.write_text(next(block for block in blocks() if block.startswith("leaves:")))
    return path


def test_the_example_of_the_page(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the worked example prints what the page shows."""
    monkeypatch.chdir(tmp_path)
    shown = [block for block in blocks() if block.startswith("$ fabricpulse placement")]
    assert len(shown) >= 3
    for block in shown:
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            assert good(*line.split()[2:]).strip() == output.strip(), line


def test_json_and_files(example: Path, tmp_path: Path) -> None:
    """All formats have the same order; bytes are those of the text; the gain is that of the costs."""
    paths = {name: tmp_path / name for name in ("hostfile", "rankfile", "kubectl")}
    flags = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    shape = ["--places", str(example), "--tensor", "8", "--pipeline", "4", "--cores-per-rank", "8"]
    found = json.loads(good("order", *shape, *flags, "--output", "json"))

    ranks = found["ranks"]
    assert [each["rank"] for each in ranks] == list(range(128))
    hosts = [each["host"] for each in ranks]
    assert paths["hostfile"].read_text().split() == hosts
    assert re.findall(r"=(\S+) slot", paths["rankfile"].read_text()) == hosts
    ranks = dict(re.findall(r"node (\S+) fabricpulse.io/placement-ranks=(\S+)", paths["kubectl"].read_text()))
    assert ranks == {each["host"]: f"{min(each['ranks'])}-{max(each['ranks'])}" for each in found["hosts"]}
    assert found["gain"]["by_name"] == pytest.approx(found["by_name"]["cost"] / found["order"]["cost"])
    weights = found["weights"]
    cost = sum(weights[tier] * size for tier, size in found["order"]["bytes"].items())
    assert cost == pytest.approx(found["order"]["cost"])
    assert found["improved"]
    assert found["complete"]


def test_a_matrix(example: Path, tmp_path: Path) -> None:
    """Measured pairs, as CSV with a header, as pairs and as a square: the same order."""
    pairs = [(0, 3, 1e9), (3, 0, 1e9), (1, 2, 5e8)]
    (tmp_path / "a.csv").write_text("from,to,bytes\n" + "".join(f"{a},{b},{s:g}\n" for a, b, s in pairs))
    (tmp_path / "b.json").write_text(
        json.dumps({"pairs": [{"from": a, "to": b, "bytes": s} for a, b, s in pairs]})
    )
    square = [[0.0] * 4 for _ in range(4)]
    for a, b, size in pairs:
        square[a][b] = size
    (tmp_path / "c.json").write_text(json.dumps(square))
    flags = [
        "--places",
        str(example),
        "--hosts",
        "gpu-[01-02,05-06]",
        "--gpus-per-host",
        "1",
        "--output",
        "json",
    ]
    found = [
        json.loads(good("order", *flags, "--matrix", str(tmp_path / name)))
        for name in ("a.csv", "b.json", "c.json")
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["order"]["bytes"] == {"host": 0, "leaf": 2.5e9, "pod": 0, "beyond": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n", "a:1"),
        ("from,to,bytes\n0,x,1\n", "a:2"),
        ("0,99,1\n", "rank 99, of 0 to 3"),
        ("0,-1,1\n", "rank -1"),
        ("0,99999999999999999999,1\n", "of 0 to 3"),
        ("0,1,nan\n", "bytes must be"),
        ("0,1,-4\n", "bytes must be"),
        ("", "no pair"),
        ("from,to,bytes\n", "no pair"),
        ("[1", "not valid JSON"),
        ("[[0,1],[1,0]]", "not 4 rows"),
        ("[0,1,2,3]", "no pair of ranks"),
        ('{"pairs": [{"from": 0.5, "to": 1, "bytes": 1}]}', "no pair of ranks"),
        ('{"pairs": 4}', "no list"),
    ],
)
def test_wrong_matrices(example: Path, tmp_path: Path, text: str, message: str) -> None:
    """One sentence each."""
    (tmp_path / "a").write_text(text)
    flags = ["--places", str(example), "--hosts", "gpu-[01-04]", "--gpus-per-host", "1"]
    assert message in error("order", *flags, "--matrix", str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["order"], "which hosts?"),
        (["order", "--places", "P", "--tensor", "3"], "does not divide the 128 GPUs"),
        (
            ["order", "--places", "P", "--tensor", "8", "--data", "3"],
            "is 24 ranks, and the hosts have 128 GPUs",
        ),
        (["order", "--places", "P", "--expert", "3"], "do not divide the 128 data ranks"),
        (["order", "--places", "P", "--hosts", "gpu-01,gpu-01.x"], "is named twice"),
        (["order", "--places", "P", "--hosts", ""], "the list is empty"),
        (["order", "--places", "P", "--exclude", "gpu-[01-16]"], "all hosts are excluded"),
        (["order", "--places", "P", "--model", "layers=x"], "is no number"),
        (["order", "--places", "P", "--model", "layers=1.5"], "whole number"),
        (["order", "--places", "P", "--model", "layers=nan"], "whole number"),
        (["order", "--places", "P", "--model", "depth=1"], "there is no 'depth'"),
        (["order", "--places", "P", "--payload", "tensor=-1"], "must be 0 to"),
        (["order", "--places", "P", "--payload", "tensor=nan"], "must be 0 to"),
        (["order", "--places", "P", "--weight", "leaf=9"], "weights"),
        (["order", "--places", "P", "--weight", "leaf=2", "--weight", "leaf=2"], "given twice"),
        (["order", "--places", "P", "--rankfile", "x"], "--cores-per-rank"),
        (["order", "--places", "P", "--slurm-topology", "P"], "exclude each other"),
        (["order", "--places", "P", "--hostfile", "/nowhere/at/all"], "cannot write"),
        (["choose", "--places", "P", "--count", "17"], "there are 16 hosts"),
        (["choose", "--places", "P", "--count", "3", "--segment", "2"], "a multiple"),
        (["topology", "--slurm-topology", "P"], "is no switch of topology/tree"),
    ],
)
def test_errors(example: Path, flags: list[str], message: str) -> None:
    """What cannot be meant is one sentence and no traceback."""
    assert message in error(*(str(example) if flag == "P" else flag for flag in flags))


def test_hosts_that_failed_the_audit(example: Path, tmp_path: Path) -> None:
    """Are left out; a note says how many have no result."""
    labels = [
        {"node": "gpu-01.example.com", "audit": "failed", "reason": "x"},
        {"node": "gpu-02", "audit": "unknown", "reason": "x"},
        {"node": "gpu-03", "audit": "passed", "reason": ""},
    ]
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    flags = ["choose", "--places", str(example), "--audit", str(tmp_path / "labels.json"), "--count", "15"]
    found = json.loads(good(*flags, "--output", "json"))
    assert {f"gpu-{n:02}" for n in range(2, 17)} == {each["host"] for each in found["hosts"]}
    assert any("does not know" in note for note in found["notes"])
    (tmp_path / "labels.json").write_text("{}")
    assert "labels RUN --output json" in error(*flags)


def test_hosts_from_standard_input(example: Path) -> None:
    """As kubectl writes them; a note names those that no file declares."""
    text = good(
        *("choose", "--places", str(example), "--hosts", "-", "--count", "3"),
        input="node/gpu-01\nnode/gpu-77\nnode/gpu-05\n",
    )
    assert "gpu-77" in text
    assert "is not known" in text


def test_contiguous(example: Path) -> None:
    """As torchrun numbers ranks: each host has consecutive ones, whatever the tensor group."""
    found = json.loads(
        good("order", "--places", str(example), "--tensor", "2", "--contiguous", "--output", "json")
    )
    for index, each in enumerate(found["hosts"]):
        assert each["ranks"] == list(range(8 * index, 8 * index + 8))
