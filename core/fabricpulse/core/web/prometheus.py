"""PromQL over HTTP: any server with Prometheus' API (Prometheus, Thanos, Mimir, VictoriaMetrics).

Bounded: bytes and seconds of a response and of all together, and the number of concurrent queries. A query that fails
(a limit of the backend, a timeout) is counted and does not affect the others.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from fabricpulse.core.errors import OptionError, UserError
from fabricpulse.core.output import printable
from fabricpulse.core.web.client import HttpClient, describe
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.urls import check_base_url, redact

AT_ONCE = 8
MOST_BODY = 64 << 20
MOST_SERIES = 200_000
# Of all responses together: decoded, they take several times as much memory.
MOST_BYTES = 256 << 20
# No query starts later than this many timeouts after the first.
MOST_TIMEOUTS = 3
MOST_WARNINGS = 5
_SHOWN = 300


# Without cycles, and of a large job there are 200,000: gc=False leaves them out of each pass of the garbage collector.
class _Series(msgspec.Struct, gc=False):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - as in the API
    result: list[_Series]


class _Response(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    # Null where a proxy encodes an answer anew.
    warnings: list[str] | None = None
    isPartial: bool | None = None  # noqa: N815 - VictoriaMetrics


_DECODER = msgspec.json.Decoder(_Response)


class Sample(msgspec.Struct, frozen=True, gc=False):
    """labels : without the name; the caller owns them. value : never NaN; +-Inf as they are."""

    labels: dict[str, str]
    value: float


class RefusedError(Exception):
    """This query failed; others may succeed."""


@dataclass
class PromQl:
    """Queries to one server. Used as `async with`. asked : number of queries sent. received : bytes of responses.
    warnings : of answers that are not whole, each once (Thanos, Mimir: a store was away; VictoriaMetrics: isPartial).

    Raises OptionError at construction for a URL or credentials that cannot be used.
    """

    url: str
    config: HttpClientConfig
    tenant: str = ""
    asked: int = 0
    received: int = 0
    warnings: dict[str, None] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _client: HttpClient | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            check_base_url("--prometheus", self.url)
        except ValueError as error:
            raise OptionError(str(error)) from error
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._deadline_s = math.inf

    async def __aenter__(self) -> "PromQl":
        self._client = HttpClient(self.config, connections=AT_ONCE)
        self._deadline_s = self.clock() + MOST_TIMEOUTS * self.config.timeout_s
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def instant(self, query: str, at_s: float | None = None) -> list[Sample]:
        """The instant vector at a time, or at what is now for the server; samples that are NaN are left out.

        Raises RefusedError when it is not answered, UserError when nothing there answers as Prometheus does.
        """
        at = {} if at_s is None else {"time": f"{at_s:.3f}"}
        data = await self._query("query", {"query": query, **at})
        for series in data.result:
            series.metric.pop("__name__", None)
        return [
            Sample(series.metric, value)
            for series in data.result
            if series.value is not None and not math.isnan(value := _number(series.value[1]))
        ]

    async def history(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> list[tuple[float, float]]:
        """(time, value) of the first series of a range; raises as `instant` does."""
        parameters = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        data = await self._query("query_range", parameters)
        pairs = data.result[0].values if data.result else []
        return [(at_s, value) for at_s, text in pairs if math.isfinite(value := _number(text))]

    async def _query(self, path: str, parameters: dict[str, str]) -> _Data:
        if self._client is None:
            raise RuntimeError("used outside of `async with`")
        headers = {"X-Scope-OrgID": self.tenant} if self.tenant else {}
        # POST: with many hosts a query is longer than proxies take as URL.
        # VictoriaMetrics answers for a moment of the last 30 s as of 30 s ago, at which its caches are whole, unless it
        # may not use them: a job that runs would seem to have ended.
        parameters = {**parameters, "timeout": f"{self.config.timeout_s:g}s", "nocache": "1"}
        async with self._slots:
            self._check_bounds()
            self.asked += 1
            try:
                async with self._client.post(
                    f"{self.url.rstrip('/')}/api/v1/{path}", data=parameters, headers=headers
                ) as response:
                    status, body = response.status, await self._read(response)
            except TimeoutError as error:
                raise RefusedError(f"no answer within {self.config.timeout_s:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise UserError(
                    f"cannot ask {redact(self.url)}: {printable(describe(error))}; give the URL of a Prometheus with "
                    "--prometheus"
                ) from error
        return self._decode(status, body)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Raises RefusedError where the answer, or all answers together, are larger than what is kept."""
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            self.received += len(chunk)
            if len(body) > MOST_BODY:
                response.close()
                raise RefusedError(f"the answer is larger than {MOST_BODY} bytes")
            if self.received > MOST_BYTES:
                response.close()
                self._check_bounds()
        return bytes(body)

    def _check_bounds(self) -> None:
        """Raises RefusedError once all answers together are too large, or took too long."""
        if self.received > MOST_BYTES:
            raise RefusedError(
                f"all answers together are larger than {MOST_BYTES} bytes; narrow them with --selector"
            )
        if self.clock() > self._deadline_s:
            raise RefusedError(
                f"not asked: the others took {MOST_TIMEOUTS * self.config.timeout_s:g} s; give more with --timeout"
            )

    def _decode(self, status: int, body: bytes) -> _Data:
        if status in (401, 403):
            raise UserError(
                f"{redact(self.url)} refuses us ({status}): give --token-file, --cert-file or --http.config.file"
            )
        try:
            answer = _DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if status in (429, 502, 503, 504):
                raise RefusedError(f"HTTP {status}") from error
            shown = printable(body[:_SHOWN].decode("utf-8", "replace"))
            raise UserError(
                f"{redact(self.url)} does not answer as a Prometheus does (HTTP {status}): {shown!r}"
            ) from error
        if answer.status != "success" or answer.data is None:
            raise RefusedError(printable(answer.error[:_SHOWN]) or f"HTTP {status}")
        # Remarks on the query itself begin so; what is left says that something is missing.
        said = [text for text in answer.warnings or () if not text.startswith("PromQL")]
        said += ["the answer is partial"] if answer.isPartial else []
        for text in said[:MOST_WARNINGS]:
            if len(self.warnings) < MOST_WARNINGS:
                self.warnings[printable(text[:_SHOWN])] = None
        if len(answer.data.result) > MOST_SERIES:
            raise RefusedError(f"more than {MOST_SERIES} series")
        return answer.data


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan
