"""The compiled mixin in the forms in which other systems take it: Kubernetes objects, files for Grafana and Perses.

PrometheusRule : monitoring.coreos.com/v1, as the Prometheus operator reads it.
ConfigMap : v1, one for each dashboard, with the label by which Grafana's sidecar finds it. One for all would be near
the 1 MiB that the API server allows.
Grafana : dashboards and the provider that names their folder, as its provisioning reads them.
Perses : resources of kind Dashboard, as `percli apply` and its provisioning read them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fabricpulse.core.errors import OptionError
from fabricpulse.rules.files import HEADER, json_text, rendered_files, rules_yaml
from fabricpulse.rules.mixin import Mixin
from fabricpulse.rules.perses import DEFAULT_PROJECT, perses_dashboards

FORMATS = ("prometheus", "prometheusrule", "configmap", "grafana", "perses")
GRAFANA_LABEL = "grafana_dashboard"
# RFC 1123 label, which names and namespaces of Kubernetes are; label values may have `_` and `.` as well, or be empty.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class Placement:
    """Where objects belong. namespace : of Kubernetes objects. labels : by which an operator or a sidecar selects them.
    project : of Perses.

    Raises OptionError for what the API server would refuse.
    """

    namespace: str = "monitoring"
    labels: Mapping[str, str] = field(default_factory=dict)
    project: str = DEFAULT_PROJECT

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.namespace):
            raise OptionError(
                f"--namespace {self.namespace}: no name of a namespace: a-z, 0-9 and -, at most 63"
            )
        for key, value in self.labels.items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise OptionError(f"--label {key}={value}: no label that Kubernetes takes")


def files_of(mixin: Mixin, form: str, place: Placement, folder: Path) -> dict[str, str]:
    """Path within the output folder -> content, in the form `form` of FORMATS. folder : where they will be."""
    if form == "prometheus":
        return rendered_files(mixin)
    if form == "prometheusrule":
        return {"prometheusrule.yaml": _documents([prometheus_rule(mixin, place)])}
    if form == "configmap":
        return {
            f"configmaps/{config_map['metadata']['name']}.yaml": _documents([config_map])
            for config_map in config_maps(mixin, place)
        }
    if form == "perses":
        resources = perses_dashboards(mixin.dashboards, place.project)
        return {f"perses/{name}": json_text(resource) for name, resource in resources.items()}
    dashboards = {
        path: text for path, text in rendered_files(mixin).items() if path.startswith("dashboards/")
    }
    return dashboards | {"provisioning/fabricpulse.yaml": grafana_provider(folder)}


def text_of(mixin: Mixin, form: str, place: Placement) -> str:
    """The same as one text for standard output. Raises OptionError for dashboards, which are several files."""
    if form == "prometheus":
        return rules_yaml(mixin.alerts + mixin.rules)
    if form == "prometheusrule":
        return _documents([prometheus_rule(mixin, place)])
    if form == "configmap":
        return _documents(config_maps(mixin, place))
    raise OptionError(f"--format {form} needs --output-dir: dashboards are a file each")


def grafana_provider(folder: Path) -> str:
    """What Grafana's provisioning needs to find the dashboards below `folder`."""
    options = {"path": str(folder.absolute() / "dashboards")}
    provider = {"name": "fabricpulse", "folder": "Fabricpulse", "type": "file", "allowUiUpdates": False}
    return _documents([{"apiVersion": 1, "providers": [provider | {"options": options}]}])


def prometheus_rule(mixin: Mixin, place: Placement) -> dict[str, Any]:
    """All groups as one object."""
    groups = yaml.safe_load(rules_yaml(mixin.alerts + mixin.rules))["groups"]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata("fabricpulse", place),
        "spec": {"groups": groups},
    }


def config_maps(mixin: Mixin, place: Placement) -> list[dict[str, Any]]:
    """One object a dashboard, in the order of their names."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(name.removesuffix(".json"), place, {GRAFANA_LABEL: "1"}),
            "data": {name: json.dumps(dashboard, ensure_ascii=False, separators=(",", ":"))},
        }
        for name, dashboard in sorted(mixin.dashboards.items())
    ]


def _metadata(name: str, place: Placement, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    own = {"app.kubernetes.io/name": "fabricpulse"} | dict(labels or {}) | dict(place.labels)
    return {"name": name, "namespace": place.namespace, "labels": own}


def _documents(objects: list[dict[str, Any]]) -> str:
    return HEADER + yaml.safe_dump_all(objects, sort_keys=False, width=10_000, allow_unicode=True)
