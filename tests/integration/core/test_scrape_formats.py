"""A real Prometheus with its own Accept header scrapes OpenMetrics, and stores the series of the text format."""

import asyncio
import json
import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from tests.fixtures.ports import reserved_port
from tests.unit.core.test_exposition import filled

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.server import WebServer
from fabricpulse.lab.tools import Tools

pytestmark = pytest.mark.prometheus

Series = frozenset[tuple[str, str]]


@contextmanager
def scraping(tools: Tools, folder: Path, targets: dict[str, str]) -> Iterator[str]:
    """A Prometheus that scrapes `targets` (path -> address), one job a path; yields its URL."""
    address = f"127.0.0.1:{reserved_port()}"
    jobs = [
        {"job_name": path, "metrics_path": path, "static_configs": [{"targets": [target]}]}
        for path, target in targets.items()
    ]
    config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                tools.prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


async def stored(url: str, job: str) -> dict[Series, str]:
    """Series of a job without the labels of the target -> value."""
    # Not those of the server itself, which /plain does not have.
    names = '__name__=~"fabricpulse_.+",__name__!~"fabricpulse_(build|http)_.+"'
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/api/v1/query", params={"query": f'{{job="{job}",{names}}}'}) as answer,
    ):
        result: list[dict[str, Any]] = json.loads(await answer.text())["data"]["result"]
    return {
        frozenset((k, v) for k, v in row["metric"].items() if k not in ("job", "instance")): row["value"][1]
        for row in result
    }


async def test_prometheus_stores_the_same_series(tools: Tools, tmp_path: Path) -> None:
    """Counters, histograms and all: the format that Prometheus negotiates changes neither names nor labels."""
    served: dict[str, asyncio.Semaphore] = {"/metrics": asyncio.Semaphore(0), "/plain": asyncio.Semaphore(0)}
    formats: list[TextFormat] = []
    body = filled()

    async def source(text_format: TextFormat) -> bytes:
        formats.append(text_format)
        served["/metrics"].release()
        return body.render(text_format)

    async def plain(_: web.Request) -> web.Response:
        served["/plain"].release()
        return web.Response(body=body.render(), headers={"Content-Type": TextFormat.PLAIN.value})

    server = WebServer("test", Lifetime(), source, WebOptions(("127.0.0.1:0",)))
    server.router.add_get("/plain", plain)
    await server.start()
    target = f"127.0.0.1:{server.addresses[0][1]}"
    try:
        with scraping(tools, tmp_path, {"/metrics": target, "/plain": target}) as url:
            for scrapes in served.values():
                for _ in range(3):  # a third scrape begins when the first has been stored
                    await asyncio.wait_for(scrapes.acquire(), 60)
            negotiated, as_text = await stored(url, "/metrics"), await stored(url, "/plain")
    finally:
        await server.stop()

    assert set(formats) == {TextFormat.OPENMETRICS}
    samples = [s for f in text_string_to_metric_families(body.render().decode()) for s in f.samples]
    assert len(negotiated) == len(samples)
    assert negotiated == as_text
    sent = negotiated[frozenset({("__name__", "fabricpulse_test_sent_total")})]
    assert math.isclose(float(sent), 12345678901234)
