"""One source of `fabricpulse why` that does not answer is missing and named; the others answer all the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.fixtures.web.loopback_http import LoopbackServer, Reply
from tests.unit.why.test_credentials import prometheus
from tests.unit.why.test_flight_recorder import stuck
from tests.unit.why.test_ras import document, nobody, rank, service

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.why.command import command

NO_PROMETHEUS = ("--prometheus", "http://127.0.0.1:1")


def ask(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*options, "--ras-seconds", "1", "--output", "json"])
    assert result.exit_code == 0, result.exception
    return dict(json.loads(result.stdout))


def test_without_ras_the_others_answer(tmp_path: Path) -> None:
    """Dumps, Prometheus: each says what it has."""
    stuck(tmp_path)
    answer = ask("job", *NO_PROMETHEUS, "--ras", nobody(), "--flight-recorder", str(tmp_path))
    assert [(c["cause"], c["where"]) for c in answer["causes"]] == [("hang", "rank 1")]
    assert any("NCCL_RAS_ADDR" in line for line in answer["unknown"])
    with LoopbackServer(prometheus) as server:
        answer = ask("job", "--prometheus", server.url, "--ras", nobody())
    assert answer["state"] == "unknown"
    assert any("NCCL_RAS_ADDR" in line for line in answer["unknown"])


def test_where_nobody_answers_all_are_named() -> None:
    result = CliRunner().invoke(command, ["job", *NO_PROMETHEUS, "--ras", nobody()])
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_code == 1
    assert "cannot ask http://127.0.0.1:1" in str(result.exception)
    assert "NCCL_RAS_ADDR" in str(result.exception)


@pytest.mark.parametrize("option", [("--slurm", "4711"), ("--pod", "ml/train-0")])
def test_ras_needs_nobody_who_knows_the_name(option: tuple[str, str]) -> None:
    """What the scheduler shows is looked up in Prometheus, which is not there."""
    still = document([rank(n, 6 if n == 2 else 7) for n in range(4)])
    with service(still, still) as (address, _):
        answer = ask(*option, *NO_PROMETHEUS, "--ras", address)
    assert answer["workload"] == option[1]
    assert [c["where"] for c in answer["causes"]] == ["rank 2 on 10.0.0.2"]
    assert [line for line in answer["unknown"] if "cannot ask http://127.0.0.1:1" in line]


def test_a_name_that_nobody_knows_is_said_beside_ras() -> None:
    """Prometheus answers, and has no such job."""
    still = document([rank(n, 6 if n == 2 else 7) for n in range(4)])
    with LoopbackServer(prometheus) as server, service(still, still) as (address, _):
        answer = ask("--slurm", "4711", "--prometheus", server.url, "--ras", address)
    assert [c["where"] for c in answer["causes"]] == ["rank 2 on 10.0.0.2"]
    assert any("no host runs Slurm job 4711" in line for line in answer["unknown"])


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)//x", "grafana:3000", "http://", "http://g/?x=1", "data:text/html,x", " http://g"],
)
def test_a_grafana_that_is_no_url_is_a_wrong_option(url: str) -> None:
    """It becomes links of a page: one that runs a script is refused before anybody is asked."""
    with LoopbackServer(lambda _: Reply()) as server:
        result = CliRunner().invoke(command, ["job", "--prometheus", server.url, "--grafana", url])
        assert server.requests == []
    assert isinstance(result.exception, OptionError)
    assert "--grafana" in str(result.exception)


def test_a_grafana_below_a_path_is_linked() -> None:
    with LoopbackServer(prometheus) as server:
        answer = ask("job", "--prometheus", server.url, "--grafana", "https://u:p@ops.example/grafana/")
    assert {link.split("/d/")[0] for link in answer["dashboards"].values()} == {"https://ops.example/grafana"}


def test_a_trace_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    """Not after a minute of questions."""
    with LoopbackServer(prometheus) as server:
        for place in (tmp_path, tmp_path / "nosuch" / "why.json"):
            result = CliRunner().invoke(command, ["job", "--prometheus", server.url, "--trace", str(place)])
            assert result.exit_code != 0
        assert server.requests == []
