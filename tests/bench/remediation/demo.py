"""The demo's scenarios in which remediation acts: what the job carries afterwards, by what the links left allow."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.rows import Rows

HOSTS = 4
RAILS = 2
_LONGEST_S = 580.0
# How long a demo that gets SIGTERM may take to end its lab: all of its processes, namespaces and cables.
_CLEANUP_S = 60.0


def demo(rows: Rows, rounds: int) -> None:
    """`fabricpulse demo --headless` of each; needs root."""
    for number in range(rounds):
        _flap(rows, f"flap_round{number}", _play("flap"))
        _contention(rows, f"contention_round{number}", _play("contention"))


def _play(scenario: str) -> dict[str, Any]:
    """The result of a run; fails with its text where that has none."""
    with tempfile.TemporaryDirectory(prefix="bench-demo-") as folder:
        path = Path(folder) / "result.json"
        said = run_to_end(
            [
                *(sys.executable, "-m", "fabricpulse.core.cli", "demo", "--headless", "--scenario", scenario),
                *("--hosts", str(HOSTS), "--rails", str(RAILS), "--json", str(path)),
            ],
            _LONGEST_S,
        )
        assert path.exists(), said
        result: dict[str, Any] = json.loads(path.read_text())
    missing = [entry["name"] for entry in result["milestones"] if not entry["seen"]]
    return result | {"missing": missing, "load": os.getloadavg()[0]}


def run_to_end(command: list[str], limit_s: float) -> str:
    """What a program writes. One that takes too long gets SIGTERM, and has time for it, then killed: whoever kills a
    demo at once leaves its lab, which is in a session of its own. Raises TimeoutExpired then."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            return process.communicate(timeout=limit_s)[0]
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=_CLEANUP_S)
            finally:
                process.kill()
            raise


def _flap(rows: Rows, case: str, result: dict[str, Any]) -> None:
    before, during, after = (result[f"bandwidth_{when}"] for when in ("before", "during", "after"))
    left = (RAILS - 1) / RAILS
    _share(rows, case, "out_of_service_share", during, before and before * left, result)
    _share(rows, case, "back_in_service_share", after, before, result)
    _others(rows, case, result)


def _contention(rows: Rows, case: str, result: dict[str, Any]) -> None:
    _share(rows, case, "rebalanced_share", result["bandwidth_after"], result["bandwidth_alone"], result)
    gain, predicted = result["gain_measured"], result["gain_predicted"]
    rows.report(case, "gain", gain or 0.0, "ratio", ">= 1.1", predicted=predicted, tries=result["new_paths"])
    rows.report(case, "wrong_actions", result["wrong_actions"], "1", "== 0")
    _others(rows, case, result)


def _share(
    rows: Rows, case: str, name: str, had: float | None, allowed: float | None, result: dict[str, Any]
) -> None:
    share = had / allowed if had and allowed else 0.0
    shown = {key: value for key, value in result.items() if key.startswith("bandwidth_")}
    rows.report(case, name, share, "ratio", ">= 0.95", load=result["load"], **shown)


def _others(rows: Rows, case: str, result: dict[str, Any]) -> None:
    rows.report(case, "other_pages", result["other_pages"], "1", "== 0")
    rows.report(case, "milestones_missing", len(result["missing"]), "1", "== 0", names=result["missing"])
