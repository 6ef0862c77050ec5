"""JSON requests and answers of the receiver's HTTP API."""

from typing import Any

import msgspec
from aiohttp import web


def json_answer(value: Any) -> web.Response:
    """`value` as JSON."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def json_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object, {} for none. Raises HTTPBadRequest."""
    try:
        asked = msgspec.json.decode(await request.read() or b"{}")
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise web.HTTPBadRequest(text="the body is not JSON\n") from error
    if not isinstance(asked, dict):
        raise web.HTTPBadRequest(text="the body is not a JSON object\n")
    return asked


def number(text: str, name: str) -> float:
    """A number that is not negative. Raises HTTPBadRequest."""
    try:
        value = float(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{name}: not a number\n") from error
    if not 0 <= value < 1e12:
        raise web.HTTPBadRequest(text=f"{name}: out of range\n")
    return value
