"""A daemon's HTTP server for tests, and clients that show certificates and passwords."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import bcrypt
import trustme

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.server import MetricsSource, WebServer

BODY = b"fabricpulse_x 1\n"
LOCAL = WebOptions(("127.0.0.1:0",))


async def metrics(_: TextFormat) -> bytes:
    return BODY


@asynccontextmanager
async def serving(
    web_config: Path | None = None,
    life: Lifetime | None = None,
    source: MetricsSource = metrics,
    options: WebOptions = LOCAL,
) -> AsyncIterator[str]:
    """A running server; yields "127.0.0.1:PORT"."""
    options = replace(options, config=web_config)
    server = WebServer("test", life or Lifetime(), source, options, landing_links=[("/x", "<X>")])
    await server.start()
    try:
        yield f"127.0.0.1:{server.addresses[0][1]}"
    finally:
        await server.stop()


def write_certificate(folder: Path, authority: trustme.CA, name: str = "localhost") -> None:
    """cert.pem and key.pem, replaced as a certificate manager does it."""
    certificate = authority.issue_cert(name, "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "new-cert.pem")
    certificate.private_key_pem.write_to_path(folder / "new-key.pem")
    (folder / "new-cert.pem").replace(folder / "cert.pem")
    (folder / "new-key.pem").replace(folder / "key.pem")


def client_context(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        certificate.configure_cert(context)
    return context


async def get_with(address: str, context: ssl.SSLContext) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://{address}/metrics", ssl=context) as response,
    ):
        return response.status


def hash_of(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
