"""The PromQL client against servers that are not well."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fabricpulse.core.errors import UserError
from fabricpulse.core.web import prometheus
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.prometheus import PromQl, RefusedError
from fabricpulse.why.gather import Times, gather
from fabricpulse.why.infer import infer
from fabricpulse.why.queries import Scope
from fabricpulse.why.resolve import Directory, Resolved, choose, workload_of_pod, workload_of_slurm_job
from fabricpulse.why.sources.timeline import Exporters, read_timelines


@asynccontextmanager
async def server(handle) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    async with serving(app) as url:
        yield url


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def vector(*samples: tuple[dict[str, str], str]) -> web.Response:
    result = [{"metric": labels | {"__name__": "x"}, "value": [1.0, value]} for labels, value in samples]
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


async def ask(url: str, **config) -> list[prometheus.Sample]:
    async with PromQl(url, HttpClientConfig(**config), tenant="team-1") as prom:
        return await prom.instant("x", 5.0)


async def test_what_is_sent(tmp_path: Path) -> None:
    """A form with query, time and a bound; the token, and the tenant for Mimir. NaN is no value."""
    seen: dict[str, Any] = {}
    (tmp_path / "token").write_text("secret")

    async def handle(request: web.Request) -> web.Response:
        seen.update(path=request.path, headers=dict(request.headers), form=dict(await request.post()))
        return vector(({"a": "1"}, "2.5"), ({"a": "2"}, "NaN"), ({"a": "3"}, "+Inf"))

    async with server(handle) as url:
        samples = await ask(f"{url}/prefix", token_file=str(tmp_path / "token"), timeout_s=4)
    assert [(s.labels, s.value) for s in samples] == [({"a": "1"}, 2.5), ({"a": "3"}, float("inf"))]
    assert seen["path"] == "/prefix/api/v1/query"
    # Without nocache VictoriaMetrics answers for a moment half a minute ago.
    assert seen["form"] == {"query": "x", "time": "5.000", "timeout": "4s", "nocache": "1"}
    assert (seen["headers"]["Authorization"], seen["headers"]["X-Scope-OrgID"]) == ("Bearer secret", "team-1")


ERROR = json.dumps({"status": "error", "errorType": "execution", "error": "too many samples"})


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (401, "no", UserError, "refuses us"),
        (200, "<html>", UserError, "does not answer as a Prometheus"),
        (200, "[]", UserError, "does not answer as a Prometheus"),
        (200, '{"status": "success"}', RefusedError, "HTTP 200"),
        (422, ERROR, RefusedError, "too many samples"),
        (503, "busy", RefusedError, "HTTP 503"),
    ],
)
async def test_answers_that_are_none(status: int, body: str, error: type[Exception], said: str) -> None:
    """Somebody else's answer is a sentence for a person; a refusal costs this question only."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with server(handle) as url:
        with pytest.raises(error, match=said):
            await ask(url)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, []),
        ({"warnings": None, "isPartial": None}, []),
        ({"warnings": ["store a is away"] * 2}, ["store a is away"]),
        ({"isPartial": True}, ["the answer is partial"]),
    ],
)
async def test_answers_that_are_not_whole(more: dict[str, Any], kept: list[str]) -> None:
    """The samples count, and that there may be others is kept; null, as a proxy may say it, is no warning."""

    async def handle(_: web.Request) -> web.Response:
        result = [{"metric": {}, "value": [1.0, "2"]}]
        return web.json_response(
            {"status": "success", "data": {"resultType": "vector", "result": result}} | more
        )

    async with server(handle) as url, PromQl(url, HttpClientConfig()) as prom:
        assert [s.value for s in await prom.instant("x")] == [2.0]
        assert list(prom.warnings) == kept


async def test_an_endless_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without end is cut at the bound."""
    monkeypatch.setattr(prometheus, "MOST_BODY", 1000)

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 100_000)

    async with server(handle) as url:
        with pytest.raises(RefusedError, match="larger than 1000 bytes"):
            await ask(url)


async def test_all_answers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that each are small enough are not taken once they are too much together; the answer says so."""
    body = {"metric": {"instance": "h0", "more": "x" * 2000}, "value": [1.0, "1"]}
    answer = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [body]}})
    monkeypatch.setattr(prometheus, "MOST_BYTES", 10 * len(answer))

    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=answer, content_type="application/json")

    async with server(handle) as url, PromQl(url, HttpClientConfig()) as prom:
        facts, _ = await gather(prom, Scope("train-7"), Times(1e9, 1e9 - 3600))
    # Those that were under way when the bound was met are cut; nobody is asked after that.
    assert 11 <= prom.asked <= 10 + prometheus.AT_ONCE
    assert prom.received <= (10 + prometheus.AT_ONCE) * len(answer)
    assert len([line for line in facts.unanswered if "narrow them with --selector" in line]) > 20


async def test_all_questions_together() -> None:
    """A backend that answers slowly is asked for a bounded time; what was not asked is named in the answer."""
    now_s = 0.0

    async def handle(_: web.Request) -> web.Response:
        nonlocal now_s
        now_s += 2.0
        return vector(({"instance": "h0"}, "1"))

    # 15 s by a clock that each answer moves on by two: the eighth is beyond.
    config = HttpClientConfig(timeout_s=5)
    async with server(handle) as url, PromQl(url, config, clock=lambda: now_s) as prom:
        facts, _ = await gather(prom, Scope("train-7"), Times(1e9, 1e9 - 3600))
    assert prom.asked <= 8 + prometheus.AT_ONCE
    assert len([line for line in facts.unanswered if "not asked" in line]) > 20


async def test_a_silent_server() -> None:
    """One that accepts and says nothing is given up after the time that was given."""

    async def handle(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return vector()

    async with server(handle) as url:
        with pytest.raises(RefusedError, match=r"within 0\.1 s"):
            await ask(url, timeout_s=0.1)


async def test_no_server_at_the_url_is_an_error_that_names_the_option() -> None:
    """No server: which URL, and which option mends it; no password of the URL."""
    with pytest.raises(UserError, match="--prometheus") as caught:
        await ask("http://user:secret@127.0.0.1:1")
    assert "secret" not in str(caught.value)


async def test_one_refusal_costs_one_question() -> None:
    """A backend that cannot answer one question still gets an answer out of the others, and the gap is named."""

    async def handle(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        if "owd_seconds_bucket" in query:
            return web.Response(status=422, text=ERROR)
        if "qp_processes" in query:
            return vector(({"instance": "h0"}, "1"))
        return vector()

    async with server(handle) as url, PromQl(url, HttpClientConfig()) as prom:
        facts, _ = await gather(prom, Scope("train-7"), Times(1e9, 1e9 - 3600))
    answer = infer(facts)
    assert [h.name for h in facts.hosts] == ["h0"]
    assert any("delay (too many samples)" in line for line in answer.unknown)


async def test_absurd_labels() -> None:
    """Series without labels, or with values that mean nothing, cost themselves."""

    async def handle(request: web.Request) -> web.Response:
        if "qp_processes" in str((await request.post())["query"]):
            return vector(({"instance": "h0"}, "1"), ({}, "1e308"))
        return vector(({}, "-1"), ({"instance": "h0", "device": "", "rank": "x", "le": "y"}, "+Inf"))

    async with server(handle) as url, PromQl(url, HttpClientConfig()) as prom:
        facts, _ = await gather(prom, Scope("train-7"), Times(1e9, 1e9 - 3600))
    assert infer(facts).state


class Fleet:
    """A server with the series that names are looked up in. asked : the queries."""

    def __init__(self, **series: list[dict[str, str]]) -> None:
        self.series = series
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        self.asked.append(query)
        for name, labels in self.series.items():
            if name in query and "1d:" not in query:
                return vector(*((one, "1") for one in labels))
        return vector()


async def pod(fleet: Fleet) -> Resolved:
    async with server(fleet.handle) as url, PromQl(url, HttpClientConfig()) as prom:
        return await workload_of_pod(Directory(prom, 5.0, extra='cluster="a"'), "ml/train-0")


def info(workload: str, source: str = "cgroup", host: str = "n1") -> dict[str, str]:
    return {"workload": workload, "source": source, "instance": host}


POD = [{"node": "n1", "uid": "u-1"}]


async def test_a_pod_by_its_uid() -> None:
    """Exact, also where the node has several workloads; all of the workload is asked about, in this cluster."""
    fleet = Fleet(
        kube_pod_info=POD,
        fabricpulse_workload_info=[info("train-7")],
        fabricpulse_qp_processes=[{"workload": "a"}, {"workload": "b"}],
    )
    assert await pod(fleet) == Resolved("train-7")
    assert 'pod="train-0", namespace="ml"' in fleet.asked[0]
    assert 'pod_uid=~"u-1"' in fleet.asked[1]
    assert all('cluster="a"' in query for query in fleet.asked)


async def test_a_pod_without_kube_state_metrics() -> None:
    """By what its processes say of themselves; not where kube-state-metrics knows it and no cgroup has its uid."""
    reported = [info("train-7", "environment")]
    assert await pod(Fleet(fabricpulse_workload_info=reported)) == Resolved("train-7")
    fleet = Fleet(kube_pod_info=POD, fabricpulse_qp_processes=[{"workload": "b"}])
    assert await pod(fleet) == Resolved("b")
    assert not any("pod_name" in query for query in fleet.asked)


async def test_a_pod_by_its_node() -> None:
    """With an exporter that knows no pods: the one workload of the node; several are not guessed among."""
    names = [{"workload": name} for name in ("a", "b")]
    assert await pod(Fleet(kube_pod_info=POD, fabricpulse_qp_processes=names[:1])) == Resolved("a")
    with pytest.raises(UserError, match="give one of a, b"):
        await pod(Fleet(kube_pod_info=POD, fabricpulse_qp_processes=names))
    with pytest.raises(UserError, match="no workload runs"):
        await pod(Fleet(kube_pod_info=POD))
    with pytest.raises(UserError, match="kube-state-metrics"):
        await pod(Fleet())


async def test_two_jobs_of_one_name() -> None:
    """A Slurm job whose workload has the name of another job's is asked about on its own hosts alone."""

    async def handle(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        if 'slurm_job!="4711"' in query:
            return vector((info("train", host="n3"), "1"))
        return vector(*((info("train", host=f"n{n}"), "1") for n in (1, 2)))

    async with server(handle) as url, PromQl(url, HttpClientConfig()) as prom:
        found = await workload_of_slurm_job(Directory(prom, 5.0), "4711")
    assert found == Resolved("train", ("n1", "n2"))
    filled = Scope(found.workload, only=found.hosts).fill("x{{job}}")
    assert filled == 'x{workload="train", instance=~"n1|n2"}'


def test_claims_do_not_count_beside_proof() -> None:
    """Who says that it is another's job is not taken for it; where nothing is proven, several are not guessed among."""
    samples = [prometheus.Sample(info(*one), 1.0) for one in (("mine", "environment"), ("job", "cgroup"))]
    assert choose(samples, "x").workload == "job"
    with pytest.raises(UserError, match="several workloads: give one of a, b"):
        choose([prometheus.Sample(info(name, "environment"), 1.0) for name in "ab"], "x")


async def test_timelines_of_hosts() -> None:
    """Each host's answer, by name; a host that fails, is silent, answers nonsense or has no host name is reported."""

    async def handle(request: web.Request) -> web.Response:
        host = request.match_info["host"]
        assert request.query == {"workload": "train 7&x", "seconds": "60"}
        if host == "h2":
            return web.Response(status=404)
        if host == "h3":
            await asyncio.Event().wait()
        if host == "h4":
            return web.Response(text='{"host": "h4", "processes": [{"workload": 7}]}')
        process = {
            "workload": "train 7&x",
            "rank": 0,
            "pid": 1,
            "operations": [["ab", 1, "f", 0, 9, 1, 2, 3]],
        }
        return web.json_response({"host": host, "processes": [process]})

    app = web.Application()
    app.router.add_get("/{host}/api/v1/timeline", handle)
    async with serving(app) as url:
        exporters = Exporters(f"{url}/{{host}}", HttpClientConfig(timeout_s=1), "train 7&x", 60)
        found, silent = await read_timelines(exporters, ["h1", "h0", "h2", "h3", "h4", "../x"])
    assert [t.host for t in found] == ["h0", "h1"]
    assert found[0].processes[0].operations[0].end_ns == 9
    (reported,) = silent
    for part in ("../x (no host name)", "h2 (status 404)", "h3 (", "h4 (what answers"):
        assert part in reported
