"""Tests of this folder run in a guest with Soft-RoCE: here they are only handed over and their reports replayed.

On the first test of a module all selected tests of that module go to one guest; its pytest writes a report a line into
a folder that both see. `-k`, `-v`, skips and failures come out as if they had run here. Fixtures run in the guest only.
Without QEMU, a kernel or pyverbs the tests are skipped with the reason; with CI set they fail.
"""

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabricpulse.core.errors import UserError
from fabricpulse.lab.rdma.fleet import RdmaFleet, build
from fabricpulse.lab.rdma.guest import Guest, require_programs
from fabricpulse.lab.rdma.kernel import find_kernel
from fabricpulse.lab.rdma.pyverbs import require_pyverbs

REPORTS_ENV = "FABRICPULSE_RDMA_REPORTS"
IN_GUEST = os.environ.get("FABRICPULSE_RDMA_GUEST") == "1"
# All tests of a module, the slow ones too, on half a core that also emulates.
GUEST_TIMEOUT_S = 1100.0

# Of each module that was handed over: node -> its reports, and what the guest printed.
Replies = tuple[dict[str, list[pytest.TestReport]], str]
_replies: dict[Path, Replies] = {}


@pytest.fixture(scope="module")
def fleet() -> Iterator[RdmaFleet]:
    """Two hosts, two rails. It ends with the guest."""
    yield build(rails=2)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the guest: hands the report out."""
    path = os.environ.get(REPORTS_ENV)
    if IN_GUEST and path:
        with Path(path).open("a") as file:
            file.write(json.dumps(report._to_json()) + "\n")


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """On the host: replays what the guest has reported of this test."""
    # pytest-xdist asks the hooks of all folders for each test.
    if IN_GUEST or item.get_closest_marker("rdma") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item) -> list[pytest.TestReport]:
    missing = _missing()
    if missing is not None:
        outcome = "failed" if os.environ.get("CI") else "skipped"
        return [_made_up(item, outcome, missing)]
    if item.path not in _replies:
        _replies[item.path] = _hand_over(item)
    by_node, printed = _replies[item.path]
    reports = by_node.get(item.nodeid, [])
    if not reports or reports[-1].when != "teardown":
        reports = [
            *reports,
            _made_up(item, "failed", f"the guest ended in this test or before it\n{printed}"),
        ]
    return reports


def _missing() -> str | None:
    try:
        require_programs()
        find_kernel()
        require_pyverbs()
    except UserError as error:
        return str(error)
    return None


def _made_up(item: pytest.Item, outcome: Any, text: str) -> pytest.TestReport:
    path, line, _ = item.location
    longrepr: Any = text if outcome == "failed" else (path, line or 0, f"Skipped: hardware: {text}")
    return pytest.TestReport(item.nodeid, item.location, {}, outcome, longrepr, "setup")


def _hand_over(item: pytest.Item) -> Replies:
    nodes = [other.nodeid for other in item.session.items if other.path == item.path]
    root = item.config.rootpath
    with tempfile.TemporaryDirectory(prefix="fabricpulse-rdma-reports-") as name:
        reports = Path(name) / "reports"
        printed = io.BytesIO()
        guest = Guest(find_kernel(), environment={REPORTS_ENV: str(reports)})
        # Short of what is of no use there: a cache, other processes, durations.
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "-o", "addopts="]
        options += [
            "--import-mode=importlib",
            "--strict-markers",
            "-o",
            "timeout=300",
            "--rootdir",
            str(root),
        ]
        command = [sys.executable, "-P", "-m", "pytest", *options, *nodes]
        try:
            status = guest.run(
                command,
                writable=[Path(name)],
                cwd=root,
                timeout=GUEST_TIMEOUT_S,
                stdout=printed,
                stderr=printed,
            )
            ending = f"exit status {status}"
        except UserError as error:
            ending = str(error)
        by_node: dict[str, list[pytest.TestReport]] = {}
        if reports.exists():
            for line in reports.read_text().splitlines():
                report = pytest.TestReport._from_json(json.loads(line))
                if isinstance(report.longrepr, list):  # of a skip: JSON has no tuple
                    report.longrepr = tuple(report.longrepr)
                by_node.setdefault(report.nodeid, []).append(report)
        return by_node, f"{ending}\n{printed.getvalue().decode(errors='replace')[-6000:]}"
