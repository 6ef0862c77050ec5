"""What the start of a daemon must not load. A host starts six at once, on cores that a job wants."""

import asyncio
import json
import os
import ssl
import sys
from pathlib import Path

import pytest
import trustme
from aiohttp import web

pytestmark = pytest.mark.thorough

# Runs a command up to where its daemon would run, and prints what is loaded by then.
_PROBE = """
import json, sys
import fabricpulse.core.daemon
def run_daemon(_):
    import gc, ssl, aiohttp.connector
    from fabricpulse.core.start import end_start
    searched = gc.isenabled()
    end_start()
    print(json.dumps({
        "loaded": sorted(sys.modules),
        "garbage": [searched, gc.isenabled(), gc.get_freeze_count() > 1_000],
        "authorities": aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509_ca"],
        "loads": ssl.SSLContext.load_default_certs.__qualname__,
    }))
fabricpulse.core.daemon.run_daemon = run_daemon
from fabricpulse.core.cli import cli
cli(prog_name="fabricpulse")
"""

# As a daemon: the answer of an https server whose authority is one of the system's, or why there is none.
_GET = """
import asyncio, sys
from fabricpulse.core.start import begin_start, end_start
begin_start()
from fabricpulse.core.web.client import HttpClient, describe
from fabricpulse.core.web.client_config import HttpClientConfig
end_start()
async def main():
    async with HttpClient(HttpClientConfig()) as client:
        try:
            async with client.get(sys.argv[1]) as response:
                print(response.status)
        except OSError as error:
            print(describe(error))
asyncio.run(main())
"""

_ARRAYS = {"numpy"}
_NEVER = {"rich", "psycopg", "matplotlib", "pygments", "pydoc", "fabricpulse.diagnosis.search.locate"}


async def python(code: str, *arguments: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-Ic", code, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    return out.decode()


@pytest.mark.parametrize(
    ("daemon", "without"),
    [
        ("mesh", _ARRAYS),
        ("nic", _ARRAYS),
        ("qp", {"scipy"}),
        ("clocksync sidecar", {"scipy"}),
        ("clocksync coordinator", {"scipy"}),
        ("remediation receiver", _ARRAYS),
        ("remediation node", {"scipy"}),
        ("audit node", {"scipy"}),
    ],
)
async def test_a_daemon_loads_what_it_needs(tmp_path: Path, daemon: str, without: set[str]) -> None:
    """No library of others or of us that only a command needs, no arrays where none are, no certificate authorities;
    and nobody looks for garbage in what stays."""
    config = tmp_path / "config.yaml"
    fleet = "hosts: [{name: h1, nics: [{device: eth1, address: 10.0.0.1, network: r}]}]"
    (tmp_path / "fleet.yaml").write_text(fleet)
    config.write_text(f"membership: {{file: {tmp_path}/fleet.yaml}}" if daemon == "mesh" else "")
    out = await python(
        _PROBE, *daemon.split(), "--config", str(config), FABRICPULSE_RUN_DIR=str(tmp_path / "run")
    )
    found = json.loads(out)
    assert set(found["loaded"]) & (without | _NEVER) == set()
    assert "aiohttp" in found["loaded"]
    assert found["garbage"] == [False, True, True]
    assert found["authorities"] == 0
    assert found["loads"] == "SSLContext.load_default_certs"


async def test_a_daemon_trusts_the_authorities_of_the_system(tmp_path: Path) -> None:
    """They are loaded for the first https request; without them nobody is trusted."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "none.pem").touch()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response()

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        assert await python(_GET, url, SSL_CERT_FILE=str(tmp_path / "ca.pem")) == "200\n"
        refused = await python(
            _GET, url, SSL_CERT_FILE=str(tmp_path / "none.pem"), SSL_CERT_DIR=str(tmp_path)
        )
        assert "certificate verify failed" in refused
    finally:
        await runner.cleanup()
