"""One round of a sidecar: whatever goes wrong with its coordinators, its neighbours are there."""

import asyncio
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.fixtures.waiting import until
from tests.integration.clocksync.synthetic_fleet import RingWriter

from fabricpulse.clocksync.clock.cross_timestamp import CrossTimestamp
from fabricpulse.clocksync.clock.fleet_clock import Correction, FleetClockParameters
from fabricpulse.clocksync.sidecar import published_clock
from fabricpulse.clocksync.sidecar.sidecar import Sidecar
from fabricpulse.clocksync.wire.messages import ROUND_PATH
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import RUN_DIR_ENV, clock_page_path, probe_ring_path
from fabricpulse.core.shm.clock_page import ClockPage, ClockPageReader, ClockStatus
from fabricpulse.core.shm.probe_ring import EDGES_SEQUENCE_OFFSET, OUTBOUND, VERSION
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.options import WebOptions


async def test_neighbours_are_asked_after_a_report_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault on the way to the coordinators is logged and does not end the round."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    sidecar = Sidecar(
        DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"),
        Lifetime(),
    )
    asked = []

    async def report(*_: object, **__: object) -> None:
        raise ValueError("of a kind that nobody has thought of")

    async def ask(client: HttpClient) -> None:
        asked.append(client)

    monkeypatch.setattr(sidecar._coordinator, "report", report)
    monkeypatch.setattr(sidecar, "_ask_neighbours", ask)
    async with HttpClient(HttpClientConfig()) as client:
        await sidecar._round(client)
    sidecar._leave()

    assert asked == [client]
    assert "reports to the coordinators failed" in [r.getMessage() for r in caplog.records]


async def test_a_sidecar_follows_the_engine_and_says_so_of_a_time_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trains are 10 ms apart, and no more come: readers see no synchronized time, and what is reported afterwards
    says that the line is unverified.
    """
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    ring = RingWriter(probe_ring_path(), "h0", [("rail0", "h1", "rail0")])
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    fleet, published = sidecar._clock.fleet, list[ClockStatus]()
    fleet.parameters = replace(fleet.parameters, holdover_after_ns=3_600 * 10**9)

    def publish(page: ClockPage, now: CrossTimestamp, _: int) -> None:
        if (status := page.at(now.raw_ns).status) not in published[-1:]:
            published.append(status)

    monkeypatch.setattr(sidecar._clock.outputs, "publish", publish)
    sidecar._clock.correct(Correction(sidecar._clock.stamp_now_ns(), 0, 0.0, 1_000))
    reader = ClockPageReader(clock_page_path())

    def synchronized() -> bool:
        sidecar._clock.tick()  # after which this process must have a core again within 40 ms
        return reader.now().status == ClockStatus.SYNCHRONIZED

    await until(synchronized)
    for train in range(4):
        stamps = [10_000_000 * train + 1_000 * packet for packet in range(3)]
        ring.write(0, train + 1, OUTBOUND, stamps, [stamp + 1_500 for stamp in stamps])
    sidecar._edges.read()
    assert not sidecar._report(with_info=False).unverified

    def unwatched() -> bool:
        sidecar._clock.tick()
        return sidecar._clock.fleet.unverified_raw_ns is not None

    await until(unwatched)
    assert reader.now().status == ClockStatus.HOLDOVER
    assert sidecar._report(with_info=False).unverified
    # The clock would be synchronized for seconds yet: what others get of it is not.
    assert sidecar._clock.fleet.page.status == ClockStatus.SYNCHRONIZED
    assert sidecar._view().status()["status"] == "holdover"
    assert "no new probe samples" in sidecar._view().status()["why"]
    assert b"fabricpulse_clock_synchronized 0" in await sidecar._metrics(TextFormat.PLAIN)
    assert published == [ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER]
    sidecar._leave()


async def test_what_contradicts_the_page_reaches_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine writes that delays contradict fleet time, and that a jump may be hidden: both take effect at once."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    ring = RingWriter(probe_ring_path(), "h0", [("rail0", "h1", "rail0")])
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    sidecar._edges.read()
    watch = asyncio.create_task(sidecar._watch_causality())
    ring.map[EDGES_SEQUENCE_OFFSET + 16 : EDGES_SEQUENCE_OFFSET + 24] = (1).to_bytes(8, "little")
    await until(lambda: sidecar._clock.contradictions["causality"] == 1)
    ring.map[EDGES_SEQUENCE_OFFSET + 32 : EDGES_SEQUENCE_OFFSET + 40] = (900).to_bytes(8, "little")
    await until(lambda: sidecar._clock.fleet.hidden_jump_ns == 900)
    watch.cancel()
    await asyncio.wait([watch])
    assert "causality" not in {thread.name for thread in threading.enumerate()}
    sidecar._leave()


async def test_what_contradicts_the_page_is_heeded_before_a_correction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped may have the correction before the notice: the page would go on as synchronized."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    ring = RingWriter(probe_ring_path(), "h0", [("rail0", "h1", "rail0")])
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    sidecar._edges.read()
    sidecar._apply(Correction(sidecar._clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    ring.map[EDGES_SEQUENCE_OFFSET + 16 : EDGES_SEQUENCE_OFFSET + 24] = (1).to_bytes(8, "little")
    sidecar._apply(Correction(sidecar._clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    assert sidecar._clock.contradictions["causality"] == 1
    assert sidecar._clock.fleet.page.status == ClockStatus.DISRUPTED
    sidecar._leave()


async def test_a_slew_ends_in_time_though_the_tick_was_to_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correction that slews comes while the tick task sleeps: it would wake long after the slew's end."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    monkeypatch.setattr(published_clock, "_TICK_S", 3_600.0)
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    clock = sidecar._clock
    clock.fleet.parameters = FleetClockParameters(slew_time_ns=1_000_000)
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_000_000, 0.0, 1_000))
    ticks = asyncio.create_task(sidecar._tick_forever())
    await asyncio.sleep(0)  # it waits for the end of the hour
    ticked, tick = asyncio.Event(), clock.tick

    def tick_and_say() -> None:
        tick()
        ticked.set()

    monkeypatch.setattr(clock, "tick", tick_and_say)
    clock.correct(Correction(clock.stamp_now_ns(), 3_600_000_001_000, 0.0, 1_000))
    await asyncio.wait_for(ticked.wait(), 5.0)
    ticks.cancel()
    await asyncio.wait([ticks])
    sidecar._leave()


async def test_a_tick_that_fails_ends_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervision sees the task end; nothing ticks after it."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    monkeypatch.setattr(sidecar._clock, "tick", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(sidecar._tick_forever(), 5.0)
    assert sidecar._clock.planned is published_clock.no_op
    sidecar._leave()


async def test_who_is_not_believed_does_not_ask_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that answers knows that the host's edges contradict each other; when it is gone, neighbours are
    asked."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    asked = []
    silent_s = 0.0

    async def report(*_: object, **__: object) -> None:
        sidecar._suspect = "its edges contradict each other"

    async def ask(client: HttpClient) -> None:
        asked.append(client)

    monkeypatch.setattr(sidecar._coordinator, "report", report)
    monkeypatch.setattr(sidecar._coordinator, "unplaced_s", lambda: 60.0)
    monkeypatch.setattr(sidecar._coordinator, "silent_s", lambda: silent_s)
    monkeypatch.setattr(sidecar, "_ask_neighbours", ask)
    async with HttpClient(HttpClientConfig()) as client:
        await sidecar._round(client)
        assert asked == []
        silent_s = 60.0
        await sidecar._round(client)
    sidecar._leave()
    assert asked == [client]


async def test_a_ring_of_another_version_keeps_nobody_from_reporting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The mesh was upgraded first: said once, without a traceback, shown in the status; over with a ring we know."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    path = probe_ring_path()
    RingWriter(path, "h0", [("rail0", "h1", "rail0")])
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    reported, asked = [], []

    async def report(*_: object, **__: object) -> None:
        reported.append(sidecar.host)

    async def ask(client: HttpClient) -> None:
        asked.append(client)

    monkeypatch.setattr(sidecar._coordinator, "report", report)
    monkeypatch.setattr(sidecar, "_ask_neighbours", ask)
    async with HttpClient(HttpClientConfig()) as client:
        await sidecar._round(client)
        content = bytearray(path.read_bytes())
        content[8] += 1
        path.unlink()
        path.write_bytes(content)
        for _ in range(2):
            await sidecar._round(client)
        refused = sidecar._view().status()["why"]
        RingWriter(path, "h0", [("rail0", "h1", "rail0")])
        await sidecar._round(client)
    sidecar._leave()

    assert reported == ["h0"] * 4
    assert len(asked) == 4
    said = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in said] == ["no probe samples"]
    assert not said[0].exc_info
    for words in (str(path), f"version {VERSION + 1}, this fabricpulse reads", "upgrade the older"):
        assert words in refused
    assert sidecar._view().status()["why"].startswith("no edge has samples")


async def test_the_status_says_why_the_coordinator_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does answer: what is wrong is the token, and the first thing to look at says so."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))

    async def serve_round(_: web.Request) -> web.Response:
        return web.Response(status=401, text="this coordinator asks for a bearer token\n")

    app = web.Application()
    app.router.add_post(ROUND_PATH, serve_round)
    async with TestServer(app) as server, HttpClient(HttpClientConfig()) as client:
        url = str(server.make_url("")).rstrip("/")
        config = tmp_path / "sidecar.yml"
        config.write_text(f"coordinators: [{url}]\n")
        RingWriter(probe_ring_path(), "h0", [("rail0", "h1", "rail0")])
        sidecar = Sidecar(DaemonOptions(config, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
        monkeypatch.setattr(sidecar._edges, "fits", lambda: [None])
        await sidecar._round(client)
        why = sidecar._view().status()["why"]
        await sidecar._coordinator.close()
    sidecar._leave()
    assert why.endswith(f"{url}: 401 this coordinator asks for a bearer token")


async def test_a_reload_trusts_the_authority_that_is_in_the_file_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the rotation of a CA; a file that cannot be used fails the reload and leaves what was."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    old, new = trustme.CA(), trustme.CA()
    authority = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(str(authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    new.issue_cert("localhost").configure_cert(context)
    reports = []

    async def serve_round(request: web.Request) -> web.Response:
        reports.append(await request.read())
        return web.Response(status=503)

    app = web.Application()
    app.router.add_post(ROUND_PATH, serve_round)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    async with server:
        config = tmp_path / "sidecar.yml"
        config.write_text(
            f"coordinators: ['https://localhost:{server.port}']\n"
            f"http_client: {{tls_config: {{ca_file: {authority}}}}}\n"
        )
        life = Lifetime()
        sidecar = Sidecar(DaemonOptions(config, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), life)
        monkeypatch.setattr(sidecar._edges, "fits", lambda: [None])
        RingWriter(probe_ring_path(), "h0", [("rail0", "h1", "rail0")])
        client = HttpClient(sidecar._http_client)
        await sidecar._round(client)
        assert reports == []
        assert "CERTIFICATE_VERIFY_FAILED" in sidecar._view().status()["why"]
        authority.write_text("no certificate")
        with pytest.raises(ConfigError, match=r"ca\.pem"):
            await life.reload()
        new.cert_pem.write_to_path(str(authority))
        await life.reload()
        await sidecar._round(client)
        assert len(reports) == 1
        await sidecar._coordinator.close()
        await client.close()
    sidecar._leave()
