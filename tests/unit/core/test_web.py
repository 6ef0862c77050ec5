"""The HTTP server of a daemon, over real sockets."""

import asyncio
import gc
import socket
import subprocess
import sys
import weakref
from dataclasses import replace
from importlib.metadata import version

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from tests.unit.core.test_exposition import filled
from tests.unit.core.web_serving import (
    BODY,
    LOCAL,
    metrics,
    serving,
)

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.metrics.common import METRICS_VERSION
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.options import WebOptions, parse_address
from fabricpulse.core.web.server import WebServer
from fabricpulse.core.web.server_metrics import daemon_of


async def test_metrics_plain_and_compressed() -> None:
    """/metrics is the source's bytes and those of the process, compressed for who asks for it."""
    async with serving() as address, aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(f"http://{address}/metrics", headers={"Accept-Encoding": "identity"}) as plain:
            assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "Content-Encoding" not in plain.headers
            body = await plain.read()
            assert body.startswith(BODY)
            assert b"\nprocess_resident_memory_bytes " in body
        async with session.get(f"http://{address}/metrics", headers={"Accept-Encoding": "gzip"}) as packed:
            assert packed.headers["Content-Encoding"] == "gzip"
            assert (await packed.read())[:2] == b"\x1f\x8b"
    async with (
        serving() as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as response,
    ):
        assert (await response.read()).startswith(BODY)


async def test_every_daemon_exports_its_build_info() -> None:
    """Version, daemon and the state of its server; counters are exposed at 0 from the start."""
    async with serving() as address, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"http://{address}/metrics") as response:
                text = await response.text()
    assert f'fabricpulse_build_info{{version="{version("fabricpulse")}",daemon="test",' in text
    assert f',metrics_version="{METRICS_VERSION}"}} 1\n' in text
    assert 'fabricpulse_http_connections{phase="active"} 1\n' in text
    assert 'fabricpulse_http_responses_total{code="200"} 1\n' in text
    assert 'fabricpulse_http_responses_total{code="401"} 0\n' in text
    assert 'fabricpulse_http_connections_closed_total{reason="head_timeout"} 0\n' in text
    assert daemon_of("fabricpulse clocksync sidecar") == "clocksync-sidecar"


async def test_health_readiness_landing() -> None:
    """Healthy from the start, ready only once declared and not while stopping; the landing page escapes names."""
    life = Lifetime()
    async with serving(life=life) as address, aiohttp.ClientSession(f"http://{address}") as session:

        async def status(path: str) -> int:
            async with session.get(path) as response:
                return response.status

        assert await status("/-/healthy") == 200
        assert await status("/-/ready") == 503
        life.ready()
        assert await status("/-/ready") == 200
        life.stop()
        assert await status("/-/ready") == 503
        assert await status("/absent") == 404
        async with session.get("/") as response:
            text = await response.text()
        assert response.content_type == "text/html"
        assert '<a href="/metrics">' in text
        assert "&lt;X&gt;" in text


async def test_reload() -> None:
    """POST /-/reload runs the hooks; a failure is returned and GET is not offered."""
    life, calls = Lifetime(), []

    async def hook() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise UserError("bad file")

    life.on_reload(hook)
    async with serving(life=life) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.post("/-/reload") as good:
            assert good.status == 200
        async with session.post("/-/reload") as bad:
            assert bad.status == 500
            assert "bad file" in await bad.text()
        async with session.get("/-/reload") as wrong:
            assert wrong.status == 405
    assert len(calls) == 2


async def test_failing_scrape_is_one_failed_scrape(caplog: pytest.LogCaptureFixture) -> None:
    """A source that raises makes a 500 and the server lives on."""

    async def broken(_: TextFormat) -> bytes:
        raise RuntimeError("boom")

    async with serving(source=broken) as address, aiohttp.ClientSession(f"http://{address}") as session:
        for _ in range(2):
            async with session.get("/metrics") as response:
                assert response.status == 500
        async with session.get("/-/healthy") as response:
            assert response.status == 200
    assert "boom" in caplog.text


async def test_openmetrics_for_clients_that_accept_it() -> None:
    """Prometheus' own header gets OpenMetrics, whole and with its end; the samples are those of the text format."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    formats = []

    async def source(text_format: TextFormat) -> bytes:
        formats.append(text_format)
        return filled().render(text_format)

    async with serving(source=source) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/metrics", headers={"Accept": accept}) as response:
            assert response.headers["Content-Type"] == TextFormat.OPENMETRICS.value
            assert response.headers["Vary"] == "Accept, Accept-Encoding"
            text = await response.text()
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"] == TextFormat.PLAIN.value
            plain = await response.text()
    assert formats == [TextFormat.OPENMETRICS, TextFormat.PLAIN]
    names = {family.name for family in openmetrics_families(text)}
    assert {"fabricpulse_test_sent", "process_cpu_seconds", "process_open_fds"} <= names

    def series(exposition: str) -> list[str]:
        return [row.rpartition(" ")[0] for row in exposition.splitlines() if not row.startswith("#")]

    assert series(text) == series(plain)


async def test_telemetry_path() -> None:
    """The metrics are where the option says and nowhere else; the landing page knows. At / there is no such page."""
    options = replace(LOCAL, telemetry_path="/telemetry")
    async with serving(options=options) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/telemetry") as response:
            assert (await response.read()).startswith(BODY)
        async with session.get("/metrics") as response:
            assert response.status == 404
        async with session.get("/") as response:
            assert '<a href="/telemetry">' in await response.text()
    options = replace(LOCAL, telemetry_path="/")
    async with serving(options=options) as address, aiohttp.ClientSession(f"http://{address}") as session:
        async with session.get("/") as response:
            assert (await response.read()).startswith(BODY)
        async with session.head("/") as response:
            assert response.status == 200


async def test_too_many_scrapes_at_a_time() -> None:
    """Above --web.max-requests it is 503 and the reason, for scrapes alone; a scrape that ends makes room."""
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: TextFormat) -> bytes:
        entered.release()
        await leave.wait()
        return BODY

    options = replace(LOCAL, max_requests=2)
    async with (
        serving(source=slow, options=options) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):

        async def scrape() -> int:
            async with session.get("/metrics") as response:
                return response.status

        running = [asyncio.create_task(scrape()) for _ in range(2)]
        for _ in running:
            await entered.acquire()
        async with session.get("/metrics") as response:
            assert response.status == 503
            assert "2 scrapes are being answered" in await response.text()
        async with session.get("/-/healthy") as response:
            assert response.status == 200
        leave.set()
        assert await asyncio.gather(*running) == [200, 200]
        assert await scrape() == 200


async def test_no_limit_of_scrapes() -> None:
    """--web.max-requests=0 is no limit."""
    async with (
        serving(options=replace(LOCAL, max_requests=0)) as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/metrics") as response,
    ):
        assert response.status == 200


async def test_port_in_use() -> None:
    """A taken port is one sentence that names the address and the way out."""
    async with serving() as address:
        with pytest.raises(UserError) as caught:
            await WebServer("test", Lifetime(), metrics, WebOptions((address,))).start()

    assert str(caught.value) == (
        f"cannot listen on {address}: address already in use; choose another --web.listen-address"
    )


@pytest.mark.parametrize("address", ["9610", "h:port", "127.0.0.1:", ""])
def test_malformed_address(address: str) -> None:
    """What is not HOST:PORT is refused by name."""
    with pytest.raises(UserError, match="is not HOST:PORT"):
        parse_address(address)


@pytest.mark.parametrize("port", ["65536", "99999", "9" * 5000])
def test_a_port_beyond_the_last(port: str) -> None:
    """It is HOST:PORT; what is wrong is the number."""
    with pytest.raises(UserError, match="ports are 1 to 65535"):
        parse_address(f":{port}")


@pytest.mark.parametrize(
    ("text", "parsed"), [(":9610", ("", 9610)), ("[::1]:80", ("::1", 80)), ("h0:1", ("h0", 1))]
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    """The forms that Prometheus' exporters take."""
    assert parse_address(text) == parsed


async def test_unknown_host() -> None:
    """A host name that does not resolve is a sentence."""
    with pytest.raises(UserError, match=r"cannot listen on nowhere\.invalid:1: "):
        await WebServer("test", Lifetime(), metrics, WebOptions(("nowhere.invalid:1",))).start()


async def test_hundreds_may_connect_at_once() -> None:
    """While the daemon is busy: this loop accepts nobody until all have connected."""
    async with serving() as address:
        host, _, port = address.partition(":")
        clients = [socket.create_connection((host, int(port)), timeout=0.9) for _ in range(300)]
    for client in clients:
        client.close()


def test_a_service_may_have_more_open_files_than_it_begins_with() -> None:
    """systemd's soft limit is 1,024; the hard one counts."""
    child = (
        "import resource as r\n"
        "from fabricpulse.core.descriptors import raise_file_limit\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
        "raise_file_limit()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0] == (65536 if hard == r.RLIM_INFINITY else min(hard, 65536)))\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (128, 300))\n"
        "raise_file_limit()\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])\n"
    )
    out = subprocess.run([sys.executable, "-I", "-c", child], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "300"]


async def test_a_stopped_server_is_garbage_collected() -> None:
    """No reference is left: objects of its handlers, native ones say, are released with it."""

    class Held:
        async def metrics(self, _: TextFormat) -> bytes:
            return BODY

    async def use() -> weakref.ref[Held]:
        held = Held()
        async with serving(source=held.metrics):  # no request: aiohttp caches the handlers of the last ones
            pass
        return weakref.ref(held)

    watcher = await asyncio.create_task(use())
    await asyncio.sleep(0)
    gc.collect()
    assert watcher() is None
