"""Every metric is read by a rule, a panel or a runbook, or it is said why it is exported all the same."""

import json
import re
from pathlib import Path

import yaml

from fabricpulse.core.metrics.catalogue import load_catalogue

ROOT = Path(__file__).parents[3]


def used() -> set[str]:
    """Metrics that are named in rules, panels and runbooks, without the suffixes of histograms and summaries."""
    texts = [path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")]
    for folder in ("alerts", "recording"):
        for path in (ROOT / "rules" / folder).glob("*.yaml"):
            groups = yaml.safe_load(path.read_text())["groups"]
            texts += [rule["expr"] for group in groups for rule in group["rules"]]
    texts += [
        json.dumps(json.loads(path.read_text())) for path in (ROOT / "rules" / "dashboards").glob("*.json")
    ]
    names = set(re.findall(r"(?<![a-z0-9_:])fabricpulse_[a-z0-9_]+", "\n".join(texts)))
    return names | {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_each_metric_is_used_or_said_why_not() -> None:
    """A metric that nothing reads fits one key of rules/unused_metrics.yaml, and each key fits one at least."""
    reasons: dict[str, str] = yaml.safe_load((ROOT / "rules" / "unused_metrics.yaml").read_text())
    read = used()
    unused = [name.removeprefix("fabricpulse_") for name in load_catalogue() if name not in read]

    without = [name for name in unused if not any(re.fullmatch(key, name) for key in reasons)]
    assert without == [], (
        "no rule, panel or runbook reads it: say in rules/unused_metrics.yaml why it is exported"
    )
    assert [key for key in reasons if not any(re.fullmatch(key, name) for name in unused)] == []
    assert all(len(reason.split()) >= 4 for reason in reasons.values())
