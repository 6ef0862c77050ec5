"""Which metrics rules, panels and runbooks read, and why others are exported all the same."""

import json
import re
from pathlib import Path

import yaml

from fabricpulse.core.metrics.catalogue import load_catalogue

_ROOT = Path(__file__).parents[3]


def used() -> set[str]:
    """Metrics that are named in rules, panels and runbooks, without the suffixes of histograms and summaries."""
    texts = [path.read_text() for path in (_ROOT / "docs" / "runbooks").glob("*.md")]
    for folder in ("alerts", "recording"):
        for path in (_ROOT / "rules" / folder).glob("*.yaml"):
            groups = yaml.safe_load(path.read_text())["groups"]
            texts += [rule["expr"] for group in groups for rule in group["rules"]]
    texts += [
        json.dumps(json.loads(path.read_text())) for path in (_ROOT / "rules" / "dashboards").glob("*.json")
    ]
    names = set(re.findall(r"(?<![a-z0-9_:])fabricpulse_[a-z0-9_]+", "\n".join(texts)))
    return names | {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def unused() -> list[str]:
    """Metrics of the catalogue that none of these reads, without `fabricpulse_`."""
    read = used()
    return [name.removeprefix("fabricpulse_") for name in load_catalogue() if name not in read]


def reasons() -> dict[str, str]:
    """Why, by patterns of names (rules/unused_metrics.yaml)."""
    found: dict[str, str] = yaml.safe_load((_ROOT / "rules" / "unused_metrics.yaml").read_text())
    return found


def without_reason() -> list[str]:
    """Those of the unused that no pattern fits."""
    return [name for name in unused() if not any(re.fullmatch(key, name) for key in reasons())]
