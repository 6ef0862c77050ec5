"""A decorator of handlers: how large a request's body may be."""

from collections.abc import Callable
from typing import Any, TypeVar

_ATTRIBUTE = "fabricpulse_body_limit"
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


def body_limit(most_bytes: int) -> Callable[[_Handler], _Handler]:
    """Limits the bodies of a handler to `most_bytes`, in place of the server's `max_body`. Larger ones get 413.

    Sets an attribute and does not wrap, so that handlers still compare equal (`own_authentication`).
    """

    def mark(handler: _Handler) -> _Handler:
        setattr(handler, _ATTRIBUTE, most_bytes)
        return handler

    return mark


def body_limit_of(handler: object, default: int) -> int:
    """The limit that `body_limit` has set on this handler, else `default`."""
    return int(getattr(handler, _ATTRIBUTE, default))
