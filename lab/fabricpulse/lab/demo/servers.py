"""The configuration that the demo gives to Prometheus and Alertmanager, and the rules, rendered from the mixin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fabricpulse.deploy.catalogue import data_folder, find
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


def alertmanager_config(remediation_url: str, on_call_url: str, repaths: bool = False) -> str:
    """Alertmanager's configuration as shipped (deploy/alertmanager.yml): routes, groups, what mutes what.

    Only where it sends alerts that ask for remediation, and how on-call is notified, is ours.

    repaths : with the route of its comment, for a rule with `lane.repath`.
    """
    shipped = find("alertmanager.yml")
    config: dict[str, Any] = yaml.safe_load((data_folder() / shipped.source).read_text(encoding="utf-8"))
    if repaths:
        contended = {
            "matchers": ['alertname="FabricPathContended"'],
            "receiver": "remediation",
            "group_by": ["..."],
            "group_wait": "0s",
            "repeat_interval": "5m",
            "continue": True,
        }
        config["route"]["routes"].insert(0, contended)
    urls = {"remediation": remediation_url, "on-call": on_call_url}
    for receiver in config["receivers"]:
        if receiver["name"] in urls:
            receiver["webhook_configs"] = [{"url": urls[receiver["name"]], "send_resolved": True}]
    return yaml.safe_dump(config, sort_keys=False)
