"""Moments as people type them."""

import math
import re
from datetime import UTC, datetime

from fabricpulse.core.errors import OptionError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_moment(option: str, text: str, now_s: float) -> float:
    """Seconds since 1970 of RFC 3339 (without an offset: UTC), a number of seconds since 1970, or `-15m` before now.

    option : that it was given to, for the message. Raises OptionError for anything else, and for a moment in the
    future.
    """
    moment = _parse(text.strip(), now_s)
    if moment is None or not math.isfinite(moment) or moment < 0:
        raise OptionError(
            f"{option}: {text!r} is no time: give 2026-11-22T10:00:00Z, seconds since 1970, or -15m"
        )
    if moment > now_s + 60:
        raise OptionError(f"{option}: {text!r} is in the future")
    return moment


def _parse(text: str, now_s: float) -> float | None:
    if match := re.fullmatch(r"-(\d{1,9})([smhdw])", text, re.ASCII):
        return now_s - int(match[1]) * _UNITS[match[2]]
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def when(at_s: float) -> str:
    """A time for people, in UTC."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"{at_s:g}"
