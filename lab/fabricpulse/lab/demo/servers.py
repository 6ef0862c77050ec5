"""The configuration that the demo gives to Prometheus and Alertmanager, and the rules, rendered from the mixin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fabricpulse.rules.files import rendered_files, write
from fabricpulse.rules.mixin import compile_mixin


@dataclass(frozen=True)
class Target:
    """Something to scrape. job : Prometheus' job label. instance : its instance label."""

    job: str
    instance: str
    address: str


def write_rules(folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """Renders the mixin with other knobs into `folder`; returns the rule files."""
    write(folder, rendered_files(compile_mixin(settings=dict(settings))))
    return sorted(path for kind in ("alerts", "recording") for path in (folder / kind).glob("*.yaml"))


def prometheus_config(targets: Sequence[Target], rule_files: Sequence[Path], alertmanager: str) -> str:
    """Prometheus' configuration: everything once a second, instance = host name."""
    jobs: dict[str, list[Target]] = {}
    for target in targets:
        jobs.setdefault(target.job, []).append(target)
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rule_files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [target.address], "labels": {"instance": target.instance}}
                    for target in members
                ],
            }
            for job, members in jobs.items()
        ],
    }
    return yaml.safe_dump(config, sort_keys=False)


def alertmanager_config(webhook_url: str) -> str:
    """Alertmanager's configuration: each alert that asks for remediation on its own, at once, to the receiver.

    With Alertmanager's defaults (group_interval 5m) a second flapping NIC would reach remediation five minutes late.
    """
    at_once = {"group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    config: dict[str, Any] = {
        "route": {
            "receiver": "on-call",
            **at_once,
            "repeat_interval": "1h",
            "routes": [
                {
                    "receiver": "remediation",
                    "matchers": ['remediate="nccl"'],
                    **at_once,
                    "repeat_interval": "1m",
                    "continue": True,
                },
            ],
        },
        "receivers": [
            {"name": "on-call"},
            {"name": "remediation", "webhook_configs": [{"url": webhook_url, "send_resolved": True}]},
        ],
    }
    return yaml.safe_dump(config, sort_keys=False)
