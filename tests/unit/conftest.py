"""Unit tests have their files in memory: no lab is there that would not see them."""

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """A folder of the test's own."""
    return memory_path
