"""A measured matrix of traffic: CSV lines `from,to,bytes`, or JSON. Pure but for reading the file.

JSON is a square list of lists (row: from), or {"pairs": [{"from": 0, "to": 1, "bytes": 5e9}, …]}.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fabricpulse.core.errors import UserError
from fabricpulse.placement.traffic import MOST_PAIRS, Traffic, traffic_of

MOST_FILE = 1 << 30
_FORM = "write a line `from,to,bytes` for each pair, or JSON"


def read_matrix(path: Path, ranks: int) -> Traffic:
    """The traffic of so many ranks. Raises UserError: not such a file, ranks that do not exist, absurd numbers."""
    try:
        if path.stat().st_size > MOST_FILE:
            raise UserError(f"matrix {path} is larger than {MOST_FILE >> 30} GiB; leave small pairs out")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"cannot read matrix {path}: {reason}") from error
    is_json = text.lstrip()[:1] in ("[", "{")
    triples = list(_of_json(text, path, ranks) if is_json else _of_csv(text, path))
    if not triples:
        raise UserError(f"matrix {path} has no pair; {_FORM}")
    source, target, size = zip(*triples, strict=True)
    for rank in (*source, *target):
        if not 0 <= rank < ranks:
            raise UserError(f"matrix {path} names rank {rank}, of 0 to {ranks - 1} on these hosts")
    return traffic_of(
        ranks,
        np.array(source, dtype=np.int32),
        np.array(target, dtype=np.int32),
        np.array(size, dtype=np.float64),
    )


_Triple = tuple[int, int, float]


def _of_csv(text: str, path: Path) -> Iterator[_Triple]:
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or row[0].lstrip().startswith("#"):
            continue
        if number > MOST_PAIRS:
            raise UserError(f"matrix {path} has more than {MOST_PAIRS:,} lines; leave small pairs out")
        try:
            source, target, size = row
            yield int(source), int(target), float(size)
        except ValueError:
            if number == 1 and not any(cell.strip().isdigit() for cell in row):
                continue  # a header
            raise UserError(f"matrix {path}:{number}: {','.join(row)[:60]!r} is no pair; {_FORM}") from None


def _of_json(text: str, path: Path, ranks: int) -> Iterator[_Triple]:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"matrix {path} is not valid JSON: {error}") from None
    pairs = document.get("pairs") if isinstance(document, dict) else None
    try:
        if isinstance(document, list):
            if len(document) != ranks or any(len(row) != ranks for row in document):
                raise UserError(f"matrix {path} has not {ranks} rows of {ranks} numbers, one a rank")
            for source, row in enumerate(document):
                for target, size in enumerate(row):
                    if size:
                        yield source, target, _number(size)
        elif isinstance(pairs, list):
            for pair in pairs:
                yield _rank(pair["from"]), _rank(pair["to"]), _number(pair["bytes"])
        else:
            raise UserError(f"matrix {path} has no list `pairs`; {_FORM}")
    except (TypeError, KeyError, ValueError, OverflowError):
        raise UserError(f"matrix {path}: something in it is no pair of ranks with bytes; {_FORM}") from None


def _rank(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return float(value)
