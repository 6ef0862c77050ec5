"""A job's control socket, and the agent's side of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.plugin.control_server import ControlServer

from fabricpulse.remediation.node.plugins import Plugins


@pytest.fixture
def plugins(tmp_path: Path) -> Plugins:
    return Plugins(tmp_path, call_timeout_s=2.0, verify_timeout_s=1.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    made = ControlServer(tmp_path, ["rail0", "rail1"])
    yield made
    made.close()
