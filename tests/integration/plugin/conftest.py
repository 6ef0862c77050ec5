"""What several tests of the plugin need."""

from pathlib import Path

import pytest
from tests.fixtures.native.programs import native


@pytest.fixture
def profiler_host() -> Path:
    """A program that drives the profiler symbols as NCCL does: a job that needs no NIC."""
    return native("plugin_profiler_host")
