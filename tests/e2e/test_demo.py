"""`fabricpulse demo --headless --json`: a whole run on real daemons, and its checks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.waiting import wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.lab.demo.scenarios import SCENARIOS
from fabricpulse.lab.demo.scenarios.base import Fleet
from fabricpulse.lab.tools import find_tools

pytestmark = [pytest.mark.root, pytest.mark.prometheus]

DEMO = (sys.executable, "-m", "fabricpulse.core.cli", "demo", "--headless")
FIGURES = (
    "detect_s", "alert_s", "action_s", "stall_ms", "errors", "corrupt_bytes",
    "bandwidth_before", "bandwidth_during", "bandwidth_after", "detect_late_s", "stall_late_ms",
    "page_s", "other_pages",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _needs() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to build network namespaces")
    try:
        find_tools()
    except UserError as error:
        pytest.skip(str(error))


def lab_of(pid: int) -> Path:
    """The directory of the lab that a process has built."""
    for description in Path(tempfile.gettempdir()).glob("fabricpulse-lab-*/lab.json"):
        with suppress(OSError, ValueError):  # that of another lab, which comes or goes just now
            if json.loads(description.read_text()).get("parent_pid") == pid:
                return description.parent
    raise AssertionError(f"process {pid} has no lab")


@pytest.mark.timeout(600)
def test_flap_is_detected_alerted_acted_on_and_survived(tmp_path: Path) -> None:
    """Every milestone is seen; detection within 1 s, stall within 300 ms, or this machine late by what is beyond."""
    result_file = tmp_path / "result.json"
    done = subprocess.run(
        [*DEMO, "--json", result_file], capture_output=True, text=True, check=False, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(result_file.read_text())
    assert list(result) == ["scenario", "milestones", "promises", *FIGURES]
    assert result["scenario"] == "flap"
    expected = [
        milestone.name
        for phase in SCENARIOS["flap"](Fleet(("h0", "h1"), ("rail0",))).phases()
        for milestone in phase.milestones
    ]
    assert [entry["name"] for entry in result["milestones"]] == expected
    assert all(entry["seen"] for entry in result["milestones"])
    assert result["promises"].keys() == {"detect_s", "stall_ms", "other_pages", "errors", "corrupt_bytes"}
    assert "broken" not in result["promises"].values()
    assert 0 < result["detect_s"] <= 1.0 + result["detect_late_s"]
    assert result["detect_s"] < result["alert_s"] < result["page_s"]
    assert result["other_pages"] == 0
    assert 0 < result["stall_ms"] <= 300 + result["stall_late_ms"]
    assert result["errors"] == 0
    assert result["corrupt_bytes"] == 0
    before, during, after = (result[f"bandwidth_{when}"] for when in ("before", "during", "after"))
    # One of the two rails of one host is out: the ring, as slow as its slowest link, runs at about half.
    assert 0.3 * before < during < 0.8 * before
    assert after > 0.8 * before


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "scenario",
    [
        "gray-loss", "slow-path", "contention", "incast", "misrouted", "mtu", "dead-host", "dead-leaf", "hang",
        "straggler", "clock-step",
    ],
)  # fmt: skip
def test_one_page(scenario: str, tmp_path: Path) -> None:
    """A NIC that loses packets or large ones or is slow, a host that dies or loses time, a rank that stops or is late,
    a flow that meets another job or takes a longer path, senders that meet at a NIC: on-call is notified of it, and of
    nothing that follows.
    """
    result_file = tmp_path / "result.json"
    done = subprocess.run(
        [
            *(*DEMO, "--scenario", scenario, "--json", result_file),
            # It takes no more for the story, and a host more has six daemons.
            *("--hosts", str(SCENARIOS[scenario].least_hosts)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(result_file.read_text())
    assert all(entry["seen"] for entry in result["milestones"])
    assert (result["other_pages"], result["corrupt_bytes"]) == (0, 0)
    # The ranks beside a dead one have lost it.
    assert scenario == "dead-host" or result["errors"] == 0
    assert 0 < result["alert_s"] < result["page_s"]


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_the_demo_leaves_nothing_behind(signum: signal.Signals) -> None:
    """Interrupted, terminated or killed in the middle: within seconds no process and no namespace of it is left."""
    small = ("--hosts", "2")
    with subprocess.Popen([*DEMO, *small], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "PHASE" in line:
                break
        processes = children(demo.pid)
        directory = lab_of(demo.pid)
        assert len(processes) > 15
        demo.send_signal(signum)
        wait_for(lambda: demo.poll() is not None, 10, "the end of the demo")
        code = demo.returncode
    if signum is signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130
        assert not directory.exists()
    # After kill -9 the files stay: nobody was left to remove them, and they hold no process.
    shutil.rmtree(directory, ignore_errors=True)
    wait_for(lambda: not any(map(alive, processes)), 10, f"the end of {processes}")


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
