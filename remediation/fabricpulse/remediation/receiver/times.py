"""Times as people write them in the configuration."""

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=1024)
def moment(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time; without an offset it is UTC. Raises ValueError."""
    parsed = datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()


@lru_cache(maxsize=1024)
def time_of_day_s(text: str) -> float:
    """Seconds since midnight of `HH:MM`. Raises ValueError."""
    parsed = datetime.strptime(text, "%H:%M")  # noqa: DTZ007 - a time of day has no zone
    return parsed.hour * 3600.0 + parsed.minute * 60.0
