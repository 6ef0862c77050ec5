"""Polling Alertmanagers behind a private authority, with a password; failures are None and leak nothing."""

import asyncio
import json
import ssl
from base64 import b64encode
from pathlib import Path

import pytest
import trustme
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from fabricpulse.core.config import parse_config
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.remediation.receiver import alertmanager_poll
from fabricpulse.remediation.receiver.alertmanager_poll import AlertmanagerPolls

ALERT = {
    "labels": {"alertname": "FabricNicFlapping", "instance": "h0", "device": "rail0"},
    "fingerprint": "f",
    "startsAt": "2026-11-21T06:00:00Z",
    "status": {"state": "active"},
}


async def test_private_authority_and_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the credentials the list comes; without, with a dead one or with one that is no list: None."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)
    (tmp_path / "password").write_text("hunter2\n")
    wanted = "Basic " + b64encode(b"fabricpulse:hunter2").decode()

    async def alerts(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != wanted:
            return web.Response(status=401)
        return web.Response(text=json.dumps([ALERT]), content_type="application/json")

    application = web.Application()
    application.router.add_get("/am/api/v2/alerts", alerts)
    settings = {
        "tls_config": {"ca_file": str(tmp_path / "ca.pem")},
        "basic_auth": {"username": "fabricpulse", "password_file": str(tmp_path / "password")},
    }
    server = TestServer(application, host="127.0.0.1", scheme="https")
    await server.start_server(ssl=context)
    url = f"https://127.0.0.1:{server.port}"
    try:
        trusted = parse_config(yaml.safe_dump(settings), HttpClientConfig, "test")
        async with HttpClient(trusted) as client:
            found = await AlertmanagerPolls(lambda: None).ask(
                client, (f"{url}/am/", f"{url}/elsewhere", "http://127.0.0.1:1")
            )
        async with HttpClient(HttpClientConfig()) as client:
            hidden = url.replace("//", "//user:secret@")
            untrusted = await AlertmanagerPolls(lambda: None).ask(client, (f"{hidden}/am",))
    finally:
        await server.close()
    assert found[1:] == [None, None]
    assert found[0] is not None
    assert [alert.fingerprint for alert in found[0]] == ["f"]
    assert untrusted == [None]
    assert "secret" not in caplog.text


async def test_one_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's answer counts without it; what it says at last is in the next round, which begins for it."""
    monkeypatch.setattr(alertmanager_poll, "_GRACE_S", 0.05)
    answers_now, woken, asked = asyncio.Event(), asyncio.Event(), 0

    async def alerts(request: web.Request) -> web.Response:
        nonlocal asked
        if request.path.startswith("/hangs"):
            asked += 1
            await answers_now.wait()
        return web.Response(text=json.dumps([ALERT]), content_type="application/json")

    application = web.Application()
    for name in ("well", "hangs"):
        application.router.add_get(f"/{name}/api/v2/alerts", alerts)
    async with TestServer(application) as server, HttpClient(HttpClientConfig(timeout_s=60)) as client:
        now = iter(range(1, 100))
        polls = AlertmanagerPolls(woken.set, lambda: float(next(now)))
        urls = tuple(str(server.make_url(f"/{name}")) for name in ("hangs", "well", "hangs"))
        for _ in range(3):
            assert [answer is not None for answer in await polls.ask(client, urls)] == [False, True, False]
        # In the first round two URLs were asked, in each later one the one that had answered.
        assert polls.answered_at == 4.0
        assert (asked, woken.is_set()) == (1, False)
        answers_now.set()
        async with asyncio.timeout(60):
            await woken.wait()
        assert None not in await polls.ask(client, urls)
        polls.cancel()


async def test_a_late_answer_is_as_old_as_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun since may not be in it: alerts that came meanwhile go on waiting."""
    monkeypatch.setattr(alertmanager_poll, "_GRACE_S", 0.05)
    may_answer, woken, statuses, now = asyncio.Event(), asyncio.Event(), iter([200, 500, 200]), 100.0

    async def late(_: web.Request) -> web.Response:
        await may_answer.wait()
        return web.Response(text=json.dumps([ALERT]), content_type="application/json")

    async def once(_: web.Request) -> web.Response:
        return web.Response(text="[]", content_type="application/json", status=next(statuses))

    application = web.Application()
    application.router.add_get("/late/api/v2/alerts", late)
    application.router.add_get("/once/api/v2/alerts", once)
    async with TestServer(application) as server, HttpClient(HttpClientConfig(timeout_s=60)) as client:
        polls = AlertmanagerPolls(woken.set, lambda: now)
        urls = tuple(str(server.make_url(f"/{name}")) for name in ("late", "once"))

        async def answered() -> list[bool]:
            return [answer is not None for answer in await polls.ask(client, urls)]

        assert await answered() == [False, True]
        now = 105.0
        may_answer.set()
        async with asyncio.timeout(60):
            await woken.wait()
        assert await answered() == [True, False]
        assert polls.answered_at == 100.0
        assert await answered() == [True, True]
        assert polls.answered_at == 105.0
        polls.cancel()
