"""Metrics of every daemon: build information, and the state of its HTTP server."""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from platform import python_version
from typing import TypeVar

from fabricpulse.core.metrics.common import (
    BUILD_INFO,
    HTTP_ACCEPT_FAILURES,
    HTTP_CLOSED,
    HTTP_CONNECTIONS,
    HTTP_REQUEST_BYTES,
    HTTP_RESPONSES,
    METRICS_VERSION,
)
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.connection_table import Phase
from fabricpulse.core.web.connections import Connections

_K = TypeVar("_K")

# Exposed at 0 from the start: increase() is 0 for a counter that is first seen above 0.
CLOSE_REASONS = (
    "handshake_timeout",
    "handshake_failed",
    "head_timeout",
    "head_too_large",
    "body_timeout",
    "write_timeout",
    "unsent_limit",
    "idle_timeout",
    "client_limit",
    "server_limit",
    "buffer_limit",
    "no_descriptors",
    "refused",
)
CODES = (200, 400, 401, 403, 404, 413, 429, 500, 503)


def daemon_of(name: str) -> str:
    """Label `daemon` of what is called `name`: "fabricpulse clocksync sidecar" is clocksync-sidecar."""
    return name.removeprefix("fabricpulse ").replace(" ", "-")


def server_metrics(
    name: str, connections: Connections, responses: Counter[int], text_format: TextFormat
) -> bytes:
    """The families of one server; a part of an exposition, without its end and without its sample count."""
    out = Exposition()
    build = (version("fabricpulse"), daemon_of(name), python_version(), str(METRICS_VERSION))
    out.add(BUILD_INFO, build, 1)
    for phase in Phase:
        out.add(HTTP_CONNECTIONS, (phase.value,), connections.table.count(phase))
    closed = connections.closed + Counter(refused=connections.refused)
    for reason in _known_first(CLOSE_REASONS, closed):
        out.add(HTTP_CLOSED, (reason,), closed[reason])
    for code in _known_first(CODES, responses):
        out.add(HTTP_RESPONSES, (str(code),), responses[code])
    out.add(HTTP_REQUEST_BYTES, (), connections.table.buffered)
    out.add(HTTP_ACCEPT_FAILURES, (), connections.exhausted)
    return out.render(text_format, count_samples=False)


def _known_first(known: tuple[_K, ...], counted: Counter[_K]) -> Iterator[_K]:
    yield from known
    yield from (key for key in counted if key not in known)
