"""How large a request's body may be, said where its handler is."""

from collections.abc import Callable
from typing import Any, TypeVar

_ATTRIBUTE = "fabricpulse_body_limit"
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


def body_limit(most_bytes: int) -> Callable[[_Handler], _Handler]:
    """Of a handler: its bodies have at most so many bytes, in place of the server's `max_body`. Larger ones are 413.

    A mark, no wrapper: comparisons of handlers (`own_authentication`) find the same one.
    """

    def mark(handler: _Handler) -> _Handler:
        setattr(handler, _ATTRIBUTE, most_bytes)
        return handler

    return mark


def body_limit_of(handler: object, default: int) -> int:
    """What `body_limit` said of this handler, `default` where it said nothing."""
    return int(getattr(handler, _ATTRIBUTE, default))
