"""How the suite is run: skips that fail, on how many processes, and what becomes of a process that crashes.

In continuous integration a test that is skipped has failed: what was not run was not shown to work. Elsewhere a test
may skip with a reason (no root, no Prometheus). With CI=true each skip is a failure that gives the reason, unless the
reason begins with "hardware:", for what only machines with that device or kernel can show.

`-n auto` (make test) is three processes a core: more than half of what tests do is wait for daemons. With the slow
tests it is two: they measure what fleets do, each of dozens of processes.
"""

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

# As in an activated environment: tests find its cmake, ninja and fabricpulse before the system's.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
ALLOWED_PREFIX = "hardware:"


# What is imported and collected stays: a search for garbage need not go through it again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """From now on there is garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test."""
    return _gate((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself while it is collected."""
    return _gate((yield))


def _gate(report: Report) -> Report:
    if not (IN_CI and report.skipped) or hasattr(report, "wasxfail"):
        return report
    # (path, line, "Skipped: reason")
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_PREFIX):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where everything must run: {reason}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Not more than 16: beyond that the longest module decides how long it takes."""
    a_core = 3 if "not slow" in config.option.markexpr else 2
    return min(16, a_core * len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Before there are several processes. This one collects nothing."""
    gc.enable()
    # What runs without xdist has no use for it.
    from tests.fixtures.native.compiled_tests import compile_tests

    compile_tests(config.rootpath, len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """One whose run ends when a worker crashes."""
    from tests.fixtures.suite import crashed_workers  # needs xdist

    return crashed_workers.pytest_xdist_make_scheduler(config, log)
