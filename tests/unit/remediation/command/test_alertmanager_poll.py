"""Polling Alertmanagers behind a private authority, with a password; failures are None and leak nothing."""

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
from fabricpulse.remediation.receiver.alertmanager_poll import poll_alertmanagers

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
            found = await poll_alertmanagers(client, (f"{url}/am/", f"{url}/elsewhere", "http://127.0.0.1:1"))
        async with HttpClient(HttpClientConfig()) as client:
            hidden = url.replace("//", "//user:secret@")
            untrusted = await poll_alertmanagers(client, (f"{hidden}/am",))
    finally:
        await server.close()
    assert found[1:] == [None, None]
    assert found[0] is not None
    assert [alert.fingerprint for alert in found[0]] == ["f"]
    assert untrusted == [None]
    assert "secret" not in caplog.text
