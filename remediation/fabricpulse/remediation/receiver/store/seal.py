"""The seal of a journal: one hash over its lines and over the state beside them.

The hash of the state is a sum over its rows (a multiset hash), so that a commit costs what it changes. An editor of the
file who knows this can make a seal that fits: what gives him away is the seal kept elsewhere, which is why it is a
metric. `number` is its first 48 bits, which a sample carries exactly.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

_MODULUS = 2**256


def row_hash(table: str, key: str, document: str) -> int:
    """Hash of one row."""
    text = f"{len(table)}:{table}{len(key)}:{key}{document}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


def sum_rows(rows: Iterable[tuple[str, str, str]]) -> int:
    """Hash of a set of rows (table, key, document)."""
    return sum(row_hash(*row) for row in rows) % _MODULUS


def with_row(total: int, removed: int, added: int) -> int:
    """The hash after a row was replaced; 0 for no row."""
    return (total - removed + added) % _MODULUS


@dataclass(frozen=True)
class Seal:
    """length, head : of the chain of lines. state : hash of the rows of the state."""

    length: int
    head: str
    state: int

    @property
    def digest(self) -> str:
        """The seal itself."""
        return hashlib.sha256(f"{self.length} {self.head} {self.state:064x}".encode()).hexdigest()

    @property
    def number(self) -> int:
        """Its first 48 bits."""
        return int(self.digest[:12], 16)
