"""The command line's requests to the receiver."""

import asyncio
import ssl
import sys
from typing import Any

import aiohttp
import msgspec

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.client_options import ClientOptions
from fabricpulse.core.web.urls import redact

_TIMEOUT_S = 10.0
# Of what reads the whole journal: as long as something comes, and ten minutes for the first byte of it.
_LONG = aiohttp.ClientTimeout(total=None, connect=_TIMEOUT_S, sock_read=600.0)
# Of an answer that is not copied as it comes.
_MOST_BODY = 256 << 20


class OperatorClient:
    """Requests to one receiver. Every failure is a UserError that names the URL, without its credentials."""

    def __init__(self, url: str, options: ClientOptions) -> None:
        config = options.config("--url", url)
        config = msgspec.structs.replace(config, timeout_s=max(config.timeout_s, _TIMEOUT_S))
        self._base = url.rstrip("/")
        self._shown = redact(url)
        self._config = config

    def get(self, path: str, *, is_long: bool = False) -> Any:
        """The JSON document at `path`. is_long : the receiver reads the whole journal for it."""
        options = {"timeout": _LONG} if is_long else {}
        return self._decode(asyncio.run(self._request("GET", path, **options)))

    def post(self, path: str, message: Any) -> str:
        """The receiver's answer to an order."""
        return printable(asyncio.run(self._request("POST", path, message)).decode("utf-8", "replace").strip())

    def copy(self, path: str) -> None:
        """Writes the document at `path` to standard output as it comes."""
        asyncio.run(self._copy(path))

    async def _request(self, method: str, path: str, message: Any = None, **options: Any) -> bytes:
        try:
            async with (
                HttpClient(self._config) as client,
                client.request(method, self._base + path, json=message, **options) as response,
            ):
                body = await read_body(response, _MOST_BODY)
                self._check(response, body)
                return body
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def _copy(self, path: str) -> None:
        try:
            async with (
                HttpClient(self._config) as client,
                client.get(self._base + path, timeout=_LONG) as response,
            ):
                if response.status != 200:
                    self._check(response, await response.content.read(500))
                async for block in response.content.iter_chunked(1 << 16):
                    sys.stdout.buffer.write(block)
        except BrokenPipeError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def _check(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        if response.status == 200:
            return
        detail = printable(body[:500].decode("utf-8", "replace").strip())
        hint = "; give --token-file, --cert-file or --http.config.file" if response.status == 401 else ""
        raise UserError(f"the receiver at {self._shown} refused: {detail or response.status}{hint}")

    def _unreachable(self, error: Exception) -> UserError:
        hint = "start it or give another --url"
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            hint = "give its authority with --ca-file"
        elif isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
            hint = "give --ca-file, --cert-file and --key-file, or --http.config.file"
        return UserError(f"cannot reach the receiver at {self._shown}: {printable(describe(error))}; {hint}")

    def _decode(self, body: bytes) -> Any:
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise UserError(f"what answers at {self._shown} is not a receiver: {error}") from error
