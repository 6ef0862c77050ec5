"""The line "no fault" of a state timeline stands only where all that was measured in the range still is."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.unit.rules.test_promtool import PROMTOOLS

from fabricpulse.rules.mixin import compile_mixin

pytestmark = pytest.mark.prometheus


def lines() -> dict[str, str]:
    """Panel -> query of its line, with a range of fifteen minutes over everything."""
    found = {}
    for name, dashboard in compile_mixin().dashboards.items():
        for panel in dashboard["panels"]:
            for query in panel.get("targets", ()):
                if query["legendFormat"] == "no fault":
                    asked = query["expr"].replace("$__range", "15m")
                    found[f"{name}: {panel['title']}"] = re.sub(r"\$\w+", ".*", asked)
    return found


def test_no_fault_is_said_of_what_is_measured(tmp_path: Path) -> None:
    """Healthy: said. A fault anywhere in the range, a NIC whose exporter fell silent, or no data: not said."""
    if PROMTOOLS[0] is None:
        pytest.skip("promtool is not installed; scripts/fetch_tools.sh gets it")
    queries = lines()
    assert len(queries) == 4
    well, silent, bad = "1+0x80", "1+0x30", "1+0x40 0 1+0x39"
    cases = {
        "healthy": (well, 1),
        "silent": (silent, 0),
        "fault": (bad, 0),
        "fault, then silent": ("1+0x30 0x10", 0),
    }
    names = ("fabricpulse_nic_connected", "fabricpulse_lane_state", "fabricpulse_nic_port_up")
    tests = [
        {
            "name": f"{panel}: {case}",
            "interval": "15s",
            "input_series": [
                {
                    "series": f'{name}{{instance="{host}", device="e0", workload="1", port="1"}}',
                    "values": values,
                }
                for name in names
                for host, values in (("h0", well), ("h1", other))
            ],
            "promql_expr_test": [
                {
                    "expr": query,
                    "eval_time": "15m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if said else [],
                }
            ],
        }
        for panel, query in queries.items()
        for case, (other, said) in cases.items()
    ]
    tests += [
        {
            "name": f"{panel}: no data",
            "promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": []}],
        }
        for panel, query in queries.items()
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": tests}))
    done = subprocess.run([PROMTOOLS[0], "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
