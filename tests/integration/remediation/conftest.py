"""A stack of real processes for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.remediation.stack import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Nothing started yet."""
    made = Stack(tmp_path, forked=True)
    yield made
    made.close()
