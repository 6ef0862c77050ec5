"""Evaluating the mixin takes seconds and each worker of the tests does it: what one has evaluated is kept in build/ for
all, under the hash of everything that it depends on."""

import fcntl
import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fabricpulse.rules import mixin

_CACHE = Path(__file__).parents[3] / "build" / "test_mixin"
_evaluate = mixin._evaluate


def _key(snippet: str, source: Path) -> str:
    digest = hashlib.sha256(f"{version('jsonnet')}\n{source}\n{snippet}".encode())
    for path in sorted(source.rglob("*sonnet")):
        digest.update(f"\n{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _evaluate_once(snippet: str, source: Path) -> Any:
    # What a test writes and imports by its absolute path is no part of the key.
    if '(import "' in snippet:
        return _evaluate(snippet, source)
    _CACHE.mkdir(parents=True, exist_ok=True)
    path = _CACHE / f"{_key(snippet, source)}.json"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return json.loads(path.read_text())
        value = _evaluate(snippet, source)
        whole = path.with_suffix(".new")
        whole.write_text(json.dumps(value))
        whole.replace(path)
        for old in sorted(_CACHE.glob("*.json"), key=lambda each: each.stat().st_mtime)[:-40]:
            old.unlink()
        return value


# Here and not in a fixture: test modules compile the mixin as they are collected.
mixin._evaluate = _evaluate_once
