"""`fabricpulse why` against a real Prometheus that holds jobs with played causes."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from tests.fixtures.why.blocks import create_blocks, write_openmetrics
from tests.fixtures.why.causes import CAUSES
from tests.fixtures.why.server import prometheus_over
from tests.fixtures.why.world import World, new_world

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl, RefusedError, Sample
from fabricpulse.lab.tools import Tools
from fabricpulse.why.command import command
from fabricpulse.why.facts import Facts
from fabricpulse.why.gather import Times, gather
from fabricpulse.why.queries import Scope

pytestmark = pytest.mark.prometheus
AT_S = int(time.time()) // 7200 * 7200 - 60
PLAYED = ("nic_flap", "straggler_rank", "incast", "hang_network", "contention_jobs", "rank_dead")


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    found = []
    for cause in PLAYED:
        found.append(new_world(cause.replace("_", "-"), 1, "ring", 4))
        CAUSES[cause](found[-1])
    found.append(new_world("healthy", 1, "ring", 4))
    proven = {"slurm_job": "4711", "user": "alice", "account": "physics", "nodes": "5", "source": "cgroup"}
    found[0].info.append(proven)
    # A process of another workload says that it is of the same job.
    found[1].info.append({"slurm_job": "4711", "user": "mallory", "source": "environment"})
    return found


@pytest.fixture(scope="module")
def url(worlds: list[World], tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("why")
    write_openmetrics(worlds, AT_S, folder / "in.om")
    create_blocks(tools.promtool, folder / "in.om", folder / "data")
    with prometheus_over(tools.prometheus, folder / "data") as address:
        yield address


def why(url: str, workload: str, *options: str) -> str:
    result = CliRunner().invoke(
        command,
        [workload, "--prometheus", url, "--at", str(AT_S), "--selector", f'cluster="{workload}"', *options],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("number", range(len(PLAYED)))
def test_the_cause_is_named(url: str, worlds: list[World], number: int) -> None:
    """The played cause is the first, at its place, with queries that the Prometheus answers."""
    world = worlds[number]
    document = json.loads(why(url, world.name, "--output", "json"))
    ((cause, place),) = world.truth
    first = document["causes"][0]
    assert (first["cause"], place in first["where"]) == (cause, True), document["causes"]
    assert first["confidence"] >= 0.8
    assert any(e["query"] for e in first["evidence"])


def test_healthy(url: str) -> None:
    """A healthy job of the same fleet is blamed for nothing, and every question was answered."""
    document = json.loads(why(url, "healthy", "--output", "json"))
    assert (document["state"], document["causes"], document["unknown"]) == ("healthy", [], [])


def test_a_union_says_what_its_questions_say(url: str, worlds: list[World]) -> None:
    """Put together and one by one, as to a server that refuses unions: the same facts, with a tenth of the requests."""

    async def asked(name: str, most: int) -> tuple[Facts, int]:
        async with PromQl(url, HttpClientConfig(timeout_s=60)) as prom:
            own, count = prom.instant, 0

            async def instant(query: str, at_s: float | None = None) -> list[Sample]:
                nonlocal count
                if query.count("fabricpulse_question") > most:
                    raise RefusedError("too long")
                count += 1
                return await own(query, at_s)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(prom, "instant", instant)
                scope = Scope(name, (), f'cluster="{name}"')
                return (await gather(prom, scope, Times(AT_S, AT_S - 3600)))[0], count

    for world in worlds[:3]:
        together, few = asyncio.run(asked(world.name, 1000))
        apart, many = asyncio.run(asked(world.name, 0))
        assert together == apart
        assert few * 5 < many


def test_text_and_html(url: str) -> None:
    """The other forms say the same; the page draws the bandwidth."""
    shown = why(url, "straggler-rank")
    assert "the network is not the reason" in shown
    assert "Since " in shown
    page = why(url, "straggler-rank", "--output", "html")
    assert "<svg" in page
    assert "the network is not the reason" in page


def test_between(url: str) -> None:
    """A stretch of time that lies in the past, whole."""
    document = json.loads(
        CliRunner()
        .invoke(
            command,
            [
                *("nic-flap", "--prometheus", url, "--selector", 'cluster="nic-flap"', "--output", "json"),
                *("--between", str(AT_S - 900), str(AT_S)),
            ],
        )
        .stdout
    )
    assert document["window_s"] == 900
    assert document["causes"][0]["cause"] == "nic_flap"


def test_nobody_of_that_name(url: str) -> None:
    """A name that nobody has: unknown, and what to check."""
    document = json.loads(why(url, "no such job", "--output", "json"))
    assert (document["state"], document["causes"]) == ("unknown", [])
    assert "is the name right" in document["unknown"][0]
    options = ["--prometheus", url, "--at", str(AT_S), "--output", "json"]
    document = json.loads(CliRunner().invoke(command, ["no such job", *options]).stdout)
    assert all(name in document["unknown"][0] for name in ("healthy", "nic-flap", "incast"))


def test_a_slurm_job(url: str) -> None:
    """By what cgroups prove, whoever else claims the job; its user and nodes are in the answer. Without such a series
    a job is a workload by its number. Exactly one name is asked about."""
    options = ["--prometheus", url, "--at", str(AT_S), "--output", "json"]
    document = json.loads(CliRunner().invoke(command, ["--slurm", "4711", *options]).stdout)
    assert document["workload"] == "nic-flap"
    assert document["origins"][0] == "Slurm job 4711 of alice, account physics, on 4 of 5 nodes"
    assert "oldest process since 2023-11-14" in document["origins"][1]
    assert document["causes"][0]["cause"] == "nic_flap"
    result = CliRunner().invoke(command, ["--slurm", "healthy", *options])
    assert json.loads(result.stdout)["workload"] == "healthy"
    error = CliRunner().invoke(command, ["--slurm", "4712", *options]).exception
    assert isinstance(error, UserError)
    assert "there are: 4711 (alice)" in str(error)
    assert isinstance(CliRunner().invoke(command, ["a", "--slurm", "b", *options]).exception, UserError)
    assert isinstance(CliRunner().invoke(command, [*options[:-1], "html"]).exception, UserError)


def test_a_slurm_job_that_is_not_seen(url: str) -> None:
    """At a time at which a job did not run: when it was last seen, and how to ask about that."""
    options = ["--slurm", "4711", "--prometheus", url, "--output", "json"]
    between_s = AT_S - 2000
    error = CliRunner().invoke(command, [*options, "--at", str(between_s)]).exception
    assert isinstance(error, UserError)
    seen_s = int(str(error).rpartition("--at ")[2])
    assert between_s - 1700 <= seen_s <= between_s - 1500
    document = json.loads(CliRunner().invoke(command, [*options, "--at", str(seen_s)]).stdout)
    assert document["workload"] == "nic-flap"


def test_without_a_name(url: str, worlds: list[World]) -> None:
    """The workloads that run, with what the scheduler calls them; cgroups before claims."""
    options = ["--prometheus", url, "--at", str(AT_S)]
    document = json.loads(CliRunner().invoke(command, [*options, "--output", "json"]).stdout)
    by_name = {w["workload"]: w for w in document["workloads"]}
    assert set(by_name) == {world.name for world in worlds}
    assert by_name["nic-flap"] == {
        "workload": "nic-flap",
        "hosts": 4,
        "started_s": 1.7e9,
        "slurm_jobs": ["4711"],
        "users": ["alice"],
        "accounts": ["physics"],
    }
    shown = CliRunner().invoke(command, options).stdout
    assert shown.startswith("WORKLOAD")
    assert "alice" in shown
