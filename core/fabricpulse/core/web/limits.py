"""Limits of a server on its clients, before authentication."""

from dataclasses import dataclass

_MOST_CONNECTIONS = 16_384
# Files that a daemon needs beside its connections: sysfs, journals, sockets of jobs.
_RESERVED_FILES = 512


@dataclass(frozen=True)
class Limits:
    """Limits of one server.

    connections : in all. per_client : of one client (an IPv4 address, an IPv6 /64 network, all of a Unix socket).
    Either is a limit on what waits, not on who may come: at the limit, the connection of the largest client that has
    waited longest makes room for a new one, and only where all are being answered is the new one refused.

    handshake_s, head_s, idle_s : for a TLS handshake, for a whole request head, between two requests. A body must come
    with min_rate bytes/s after body_s; a client must take min_rate bytes/s of an answer, checked each write_s.
    head_bytes : of a request head. buffered_bytes : of all requests that have not been answered yet; above, the largest
    incomplete request of the client with most of them is dropped. An eighth of it is for requests of at most
    small_bytes: what large ones do to each other takes nothing from a scrape. unsent_bytes : of all answers that
    clients do not take as fast as they are written; above, the oldest of the client with most of them is dropped,
    where it has several.
    """

    connections: int = 8_192
    per_client: int = 4_096
    handshake_s: float = 10.0
    head_s: float = 10.0
    idle_s: float = 150.0
    body_s: float = 10.0
    write_s: float = 30.0
    min_rate: int = 16 << 10
    head_bytes: int = 4 << 20
    buffered_bytes: int = 256 << 20
    small_bytes: int = 64 << 10
    unsent_bytes: int = 64 << 20


def connections_for(files: int, in_use: int) -> int:
    """How many connections a process may have with a limit of `files` of which `in_use` are open; a share stays for
    everything else.
    """
    free = files - in_use - min(_RESERVED_FILES, files // 4)
    return max(16, min(free, _MOST_CONNECTIONS))
