"""Fixtures that more than one component's tests use."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from tests.fixtures.suite.memory_files import memory_folder, memory_path
from tests.fixtures.suite.run_order import run_order

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab, LabUnavailableError
from fabricpulse.lab.tools import Tools, find_tools

__all__ = ["memory_folder", "memory_path"]

# How long an example takes, or is made, says what else the machine does. The rest stays as Hypothesis has it, for CI as
# well.
settings.register_profile("untimed", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("untimed")

# A shell without job control lets what it runs in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules first, then those that wait among those that compute."""
    order = run_order(item.nodeid for item in items)
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps whether an item has failed, for `failed`."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Whether the test has failed so far: then what a fixture finds at its end is no news."""
    return lambda: request.node.stash.get(_FAILED, False)


def _start(lab: Lab) -> Lab:
    """Starts a lab, or skips the test with the reason; in CI a lab that cannot start is a failure."""
    try:
        return lab.start()
    except LabUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A fresh lab of 4 hosts and 2 rails."""
    with _start(Lab()) as started:
        yield started


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """A lab of 4 hosts and 2 rails for all tests of a module, which must leave it as they find it."""
    with _start(Lab()) as started:
        yield started
        left = started.faults
    assert left == (), "a test has left faults in the shared lab"


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Starts labs of any size, `make_lab(hosts=2, pods=2)`, and closes them after the test."""
    with ExitStack() as stack:

        def make(*args: object, **options: object) -> Lab:
            return stack.enter_context(_start(Lab(*args, **options)))  # type: ignore[arg-type]

        yield make


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Prometheus, promtool, Alertmanager, amtool; a test that needs them is skipped without, except in CI."""
    try:
        return find_tools()
    except UserError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
