"""Evaluating the mixin takes seconds; what was evaluated once in this process is the same the next time."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabricpulse.rules import mixin


@pytest.fixture(scope="session", autouse=True)
def _evaluated_once() -> Iterator[None]:
    evaluate = mixin._evaluate
    kept = functools.cache(evaluate)

    def cached(snippet: str, source: Path) -> Any:
        # Tests write the files of --config anew under the same name.
        return evaluate(snippet, source) if '(import "' in snippet else kept(snippet, source)

    mixin._evaluate = cached
    yield
    mixin._evaluate = evaluate
