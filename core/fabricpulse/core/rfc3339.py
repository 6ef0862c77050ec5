"""Moments as people and other programs read them (RFC 3339)."""

import time


def rfc3339(time_ns: int, digits: int = 9) -> str:
    """`time_ns` (since 1970, UTC) as `2026-01-31T12:00:00.000000000Z`, cut to so many digits of a second (0 to 9)."""
    seconds, ns = divmod(time_ns, 1_000_000_000)
    fraction = f".{ns:09d}"[: digits + 1] if digits else ""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}{fraction}Z"
