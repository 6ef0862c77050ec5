"""What was received, as it came: raw deliveries and dead letters, each table with a hash chain over its rows.

The oldest rows go, by age or for want of room. So a chain has two ends: the hash before the first row that is kept, and
that of the last one. Both are a row of `meta`, which the seal covers: rows that are missing between them, or were
changed, show. Rows from before there were chains are counted.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fabricpulse.remediation.receiver.store.database import Connection

GENESIS = "0" * 64
# Of a row, besides its body.
_ROW_BYTES = 150
_PAGE = 1_000
# Table -> what a row says besides its body.
_COLUMNS = {"delivery": ("received_at", "sha256", "deflated"), "dead_letter": ("received_at", "reason")}
# The table, and its part of the bytes that are kept.
PARTS = {"delivery": 1.0, "dead_letter": 0.125}

TABLES = (
    "CREATE TABLE IF NOT EXISTS delivery (id SERIAL, received_at REAL NOT NULL, sha256 TEXT NOT NULL,"
    " deflated INTEGER NOT NULL, body BLOB NOT NULL, hash TEXT NOT NULL DEFAULT '')",
    "CREATE INDEX IF NOT EXISTS delivery_received_at ON delivery (received_at)",
    "CREATE TABLE IF NOT EXISTS dead_letter (id SERIAL, received_at REAL NOT NULL, reason TEXT NOT NULL,"
    " body BLOB NOT NULL, hash TEXT NOT NULL DEFAULT '')",
    "CREATE INDEX IF NOT EXISTS dead_letter_received_at ON dead_letter (received_at)",
)


class Chain(msgspec.Struct, frozen=True):
    """first, last : ids of the rows that are kept. before : hash of the row before the first. head : of the last one.
    older : rows with lower ids, from before there were chains. missing : rows that were not there, or not written by
    this program, when they were to go."""

    first: int = 1
    last: int = 0
    before: str = GENESIS
    head: str = GENESIS
    older: int = 0
    missing: int = 0


Chains = dict[str, Chain]


class ChainError(Exception):
    """Rows of a table are not those that were written."""


def add_chains(connection: Connection) -> Chains:
    """To tables of a version without."""
    chains = {}
    for table in PARTS:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN hash TEXT NOT NULL DEFAULT ''")
        ((count, last),) = connection.execute(f"SELECT count(*), coalesce(max(id), 0) FROM {table}")  # noqa: S608
        chains[table] = Chain(first=last + 1, last=last, older=count)
    return chains


def bytes_in(connection: Connection, table: str) -> int:
    """Bytes that a table takes, about."""
    query = f"SELECT count(*), coalesce(sum(length(body)), 0) FROM {table}"  # noqa: S608 - a constant of this file
    ((count, size),) = connection.execute(query)
    return int(size) + int(count) * _ROW_BYTES


def insert(connection: Connection, table: str, chain: Chain, rows: Sequence[tuple[Any, ...]]) -> Chain:
    """rows : as in _COLUMNS, and the body."""
    last, head, chained = chain.last, chain.head, []
    for *fields, body in rows:
        # PostgreSQL's text holds no NUL.
        values = [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in fields]
        last += 1
        head = _hash(head, last, values, body)
        chained.append((last, *values, body, head))
    columns = ("id", *_COLUMNS[table], "body", "hash")
    connection.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",  # noqa: S608
        chained,
    )
    return msgspec.structs.replace(chain, last=last, head=head)


def size_of(rows: Sequence[tuple[Any, ...]]) -> int:
    """Bytes that such rows take, as `bytes_in` counts."""
    return sum(len(row[-1]) + _ROW_BYTES for row in rows)


def make_room(
    connection: Connection, table: str, chain: Chain, kept: int, most: int
) -> tuple[Chain, int, int]:
    """Drops the oldest rows until no more than `most` bytes are left. kept : now.

    Returns the chain, the bytes that are left, and how many rows went.
    """
    dropped = 0
    while kept > most:
        last: int | None = None
        query = f"SELECT id, length(body) FROM {table} ORDER BY id LIMIT ?"  # noqa: S608 - a constant of this file
        for number, size in connection.execute(query, (_PAGE,)):
            last = number
            dropped += 1
            kept -= size + _ROW_BYTES
            if kept <= most:
                break
        if last is None:
            return chain, 0, dropped  # the table is empty
        chain = _drop(connection, table, chain, last)
    return chain, kept, dropped


def drop_old(connection: Connection, table: str, chain: Chain, before: float, now: float) -> Chain:
    """Drops the rows that were received before that time, from the first one on: up to one that is younger. A row that
    is from later than `now` is from a clock that was wrong, and keeps no other one."""
    young = f"SELECT min(id) FROM {table} WHERE received_at >= ? AND received_at <= ?"  # noqa: S608
    ((first_young,),) = connection.execute(young, (before, now))
    if first_young is not None:
        last = first_young - 1
    else:
        old = f"SELECT max(id) FROM {table} WHERE received_at < ?"  # noqa: S608 - a constant of this file
        ((last,),) = connection.execute(old, (before,))
    return _drop(connection, table, chain, last) if last is not None else chain


def _drop(connection: Connection, table: str, chain: Chain, last: int) -> Chain:
    """All rows up to this id. That some of them are missing, or were added, must not stop a commit: it is kept in the
    chain."""
    count = f"SELECT count(*) FROM {table} WHERE id <= ?"  # noqa: S608 - a constant of this file
    ((found,),) = connection.execute(count, (last,))
    ((older,),) = connection.execute(count, (min(last, chain.first - 1),))
    top = min(last, chain.last)
    if top < chain.first:
        missing = chain.missing + max(0, found - chain.older)
        after = msgspec.structs.replace(chain, older=max(0, chain.older - found), missing=missing)
    else:
        before = chain.head
        if top < chain.last:
            ((before,),) = connection.execute(f"SELECT max(hash) FROM {table} WHERE id = ?", (top,))  # noqa: S608
        # Apart: a row that was moved to a lower id makes up for none.
        missing = chain.missing + abs(chain.older - older) + abs(top - chain.first + 1 - (found - older))
        after = Chain(top + 1, chain.last, before or "", chain.head, 0, missing)
    connection.execute(f"DELETE FROM {table} WHERE id <= ?", (last,))  # noqa: S608 - a constant of this file
    return after


def check(connection: Connection, chains: Chains) -> None:
    """Raises ChainError unless all rows are those that were written."""
    for table, chain in chains.items():
        if chain.missing:
            raise ChainError(f"{chain.missing} rows of {table} were missing when they were to go, or added")
        count = f"SELECT count(*) FROM {table} WHERE id < ?"  # noqa: S608 - a constant of this file
        for (found,) in connection.execute(count, (chain.first,)):
            if found != chain.older:
                raise ChainError(f"{found} rows of {table} before row {chain.first}, {chain.older} were kept")
        number, head = chain.first - 1, chain.before
        for found, fields, body, digest in _rows(connection, table, chain.first):
            number += 1
            head = _hash(head, found, fields, body)
            if head != digest or found != number:
                raise ChainError(f"row {found} of {table} does not follow from the rows before it")
        if (number, head) != (chain.last, chain.head):
            raise ChainError(f"{table} ends with row {number}, {chain.last} was written")


def _rows(connection: Connection, table: str, first: int) -> Iterator[tuple[int, Sequence[Any], bytes, str]]:
    columns = ", ".join(("id", *_COLUMNS[table], "body", "hash"))
    query = f"SELECT {columns} FROM {table} WHERE id >= ? ORDER BY id"  # noqa: S608 - constants of this file
    for number, *fields, body, digest in connection.execute(query, (first,)):
        yield number, fields, bytes(body), digest


def _hash(previous: str, number: int, fields: Sequence[Any], body: bytes) -> str:
    row = msgspec.json.encode([previous, number, *fields, hashlib.sha256(body).hexdigest()])
    return hashlib.sha256(row).hexdigest()
