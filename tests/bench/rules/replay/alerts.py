"""Which alerts the shipped rules raise over a history, minute by minute: promtool evaluates all of them."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.bench.rules.replay.history import History
from tests.unit.rules.mutation import seconds
from tests.unit.rules.needed_rules import DUMPER

_QUERY = 'ALERTS{alertstate="firing",alertname!="FabricWatchdog"}'


def firing(
    promtool: str, groups: Sequence[Mapping[str, Any]], history: History, folder: Path
) -> list[list[dict[str, str]]]:
    """Labels of what fires at each minute. promtool evaluates each group each minute, whatever its interval.

    folder : for its files.
    """
    (folder / "rules.yaml").write_text(yaml.dump({"groups": list(groups)}, Dumper=DUMPER))
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in history.series()],
        # Nothing is expected: what is there is in the complaint.
        "promql_expr_test": [
            {"expr": _QUERY, "eval_time": f"{minute}m", "exp_samples": []}
            for minute in range(history.minutes)
        ],
    }
    content = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [test],
    }
    (folder / "test.yaml").write_text(yaml.dump(content, Dumper=DUMPER))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"],
        cwd=folder,
        env=os.environ | {"GOGC": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return read(done.stdout, history.minutes)


def read(text: str, minutes: int) -> list[list[dict[str, str]]]:
    """What promtool complains of, by minute. RuntimeError where it complains of anything else."""
    found: list[list[dict[str, str]]] = [[] for _ in range(minutes)]
    parts = re.split(r'^ +expr: "ALERTS.*", time: (\S+),$', text, flags=re.M)
    if (len(parts) == 1 and "SUCCESS" not in text) or re.search(r"^\s*(rule|error|parse)", parts[0], re.M):
        raise RuntimeError(f"promtool: {text[:3000]}")
    for at, said in zip(parts[1::2], parts[2::2], strict=True):
        number = seconds(at) // 60
        for labels in re.findall(r'\{__name__="ALERTS", (.*?)\}', said):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found[number].append({name: text for name, text in pairs.items() if name != "alertstate"})
    return found
