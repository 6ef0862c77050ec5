"""Whether on-call gets the right page, and only that, in each scenario of the demo: real links, all daemons, the
shipped rules and routes.

A run is right when its milestones were all seen, the page of the fault among them. Precision: of all pages those that
were right. Recall: of all faults those that on-call had the right page of. A seed is one more run: what differs is
when the fault falls between scrapes and evaluations, and what the machine does beside it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.lab.demo.scenarios import SCENARIOS

_LONGEST_S = 900


@dataclass(frozen=True)
class Played:
    """One run. paged : whether on-call had the right page; others : the number of other pages. alert_s, page_s : since
    the fault. failures : what the demo says of a run that is not right.
    """

    scenario: str
    complete: bool
    paged: bool
    others: int
    alert_s: float | None
    page_s: float | None
    failures: Sequence[str]


def play(scenario: str, folder: Path) -> Played:
    """Plays a scenario with as few hosts as it takes. folder : for its result."""
    file = folder / f"{scenario}.json"
    file.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "fabricpulse.core.cli", "demo", "--headless", "--scenario", scenario]
    argv += ["--hosts", str(SCENARIOS[scenario].least_hosts), "--json", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    result = json.loads(file.read_text()) if file.exists() else {"milestones": []}
    missed = [entry["name"] for entry in result["milestones"] if not entry["seen"]]
    paged = any(entry["name"] == "paged" and entry["seen"] for entry in result["milestones"])
    broken = [name for name, judgement in result.get("promises", {}).items() if judgement == "broken"]
    # Without a result nobody knows what was paged.
    complete = done.returncode == 0 and bool(result["milestones"])
    return Played(
        scenario,
        complete,
        paged,
        int(result.get("other_pages", 0)),
        result.get("alert_s"),
        result.get("page_s"),
        [] if complete else [*missed, *broken, *done.stderr.splitlines()[-3:]],
    )
