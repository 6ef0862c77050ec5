"""Arguments of `fabricpulse plugin ctl` (`device=eth1 lane=3`), typed as the control protocol has them."""

from typing import Any

import msgspec

from fabricpulse.core.errors import OptionError

_LANE: dict[str, Any] = {"connection": str, "lane": int}
# Type of each argument, by operation (docs/control-protocol.md).
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "hello": {},
    "status": {"connections": bool, "after": str, "limit": int, "op_id": str},
    "events": {"since": int},
    "nic.avoid": {"device": str},
    "nic.restore": {"device": str},
    "lane.disable": _LANE,
    "lane.enable": _LANE,
    "lane.weight": {**_LANE, "weight": int | None},
    "lane.repath": {**_LANE, "entropy": int | None},
    "detail": {"level": int},
}
_EXPECTED = {int: "an integer", bool: "true or false", int | None: "an integer or null"}


def parse_arguments(operation: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """`("device=eth1", "lane=3", "weight=null")` as values. Text is taken as it is: a connection whose 16 digits
    are all decimal stays text.

    Raises OptionError for an operation that is not known, an argument that it does not have, or a value of another
    type.
    """
    if operation not in _ARGUMENTS:
        raise OptionError(f"operation {operation!r} is not known; known are {', '.join(_ARGUMENTS)}")
    return dict(_parse(operation, text) for text in texts)


def _parse(operation: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise OptionError(f"argument {text!r} is not of the form key=value")
    types = _ARGUMENTS[operation]
    if key not in types:
        known = ", ".join(types) or "none"
        raise OptionError(f"{operation} has no argument {key!r}; it has {known}")
    wanted = types[key]
    if wanted is str:
        return key, value
    try:
        return key, msgspec.json.decode(value.encode(), type=wanted)
    except msgspec.DecodeError as error:
        raise OptionError(f"argument {text!r}: {key} takes {_EXPECTED[wanted]}") from error
