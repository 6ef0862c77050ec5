"""Real Prometheus and Alertmanager in a lab."""

import os
import re
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from tests.fixtures.waiting import wait_for

from fabricpulse.core.errors import UserError
from fabricpulse.lab import Lab
from fabricpulse.lab.servers import start_alertmanager, start_prometheus
from fabricpulse.lab.tools import Tools, find_tools

pytestmark = [pytest.mark.root, pytest.mark.prometheus]

NO_RECEIVER = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}


def version_of(program: Path) -> tuple[int, ...]:
    """(2, 42, 0) of Prometheus."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
    match = re.search(r"version (\d+(?:\.\d+)+)", said.stdout + said.stderr)
    assert match, said
    return tuple(int(part) for part in match.group(1).split("."))


def test_a_scrape_becomes_an_alert_in_alertmanager(lab: Lab, tools: Tools) -> None:
    """A program on h0 is scraped by name, a rule on it fires, Alertmanager has the alert, a browser sees both."""
    place = lab.directory / "exporter"
    place.mkdir()
    (place / "metrics").write_text("fabric_test_value 3\n")
    exporter = lab.popen("h0", ["python3", "-m", "http.server", "9100"], cwd=place, name="exporter")
    exporter.wait_for_output("Serving")
    rules = place / "rules.yml"
    rule = {"alert": "FabricTest", "expr": "fabric_test_value == 3", "labels": {"severity": "info"}}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": [rule]}]}))
    scrape = {"job_name": "test", "static_configs": [{"targets": ["h0:9100"]}]}
    if version_of(tools.prometheus) >= (3,):
        # Since 3.0 a target must say what it serves, which http.server does not.
        scrape["fallback_scrape_protocol"] = "PrometheusText0.0.4"
    alertmanager = start_alertmanager(lab, NO_RECEIVER, tools=tools)
    prometheus = start_prometheus(
        lab,
        {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["mgmt:9093"]}]}]},
            "scrape_configs": [scrape],
        },
        tools=tools,
    )
    alerts = wait_for(lambda: alertmanager.alerts('alertname="FabricTest"'), 20, "alerts")
    assert alerts[0]["labels"]["instance"] == "h0:9100"
    assert [target["health"] for target in prometheus.targets()] == ["up"]
    assert [result["value"][1] for result in prometheus.query("fabric_test_value")] == ["3"]
    with urlopen(f"{prometheus.forward()}/-/ready", timeout=60) as answer:  # noqa: S310 - http of ours
        assert answer.status == 200
    alertmanager.post([{"labels": {"alertname": "Posted", "severity": "info"}}])
    assert wait_for(lambda: alertmanager.alerts('alertname="Posted"'), 20, "alerts")
    assert (prometheus.stop(), alertmanager.stop()) == (0, 0)


def test_a_bad_configuration_is_one_sentence(lab: Lab, tools: Tools) -> None:
    """What the server says is in the error, at start and at reload."""
    with pytest.raises(UserError, match="alertmanager-9093 on mgmt ended while it started"):
        start_alertmanager(lab, {"route": {"receiver": "nobody"}, "receivers": []}, tools=tools)
    prometheus = start_prometheus(lab, {}, tools=tools)
    prometheus.config_file.write_text("nonsense: true\n")
    with pytest.raises(UserError, match="refuses"):
        prometheus.reload()


def test_missing_programs_are_named(tmp_path: Path) -> None:
    """One sentence with each program that is missing and what to do."""
    (tmp_path / "prometheus").write_text("#!/bin/sh\n")
    (tmp_path / "prometheus").chmod(0o755)
    with pytest.raises(UserError, match=r"^promtool, alertmanager, amtool not found in .*fetch_tools"):
        find_tools(tmp_path)


def test_the_named_directory_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: Tools
) -> None:
    """FABRICPULSE_TOOLS is before PATH, and Debian's name of Alertmanager is known."""
    mine = tmp_path / "prometheus-alertmanager"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    before = os.environ.get("FABRICPULSE_TOOLS", "")
    monkeypatch.setenv("FABRICPULSE_TOOLS", f"{tmp_path}{os.pathsep}{before}")
    found = find_tools()
    assert found.alertmanager == mine
    assert found.prometheus == tools.prometheus


def test_a_named_directory_without_the_programs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that was asked for and is not there is not replaced by another in silence."""
    monkeypatch.setenv("FABRICPULSE_TOOLS", str(tmp_path))
    with pytest.raises(
        UserError, match=rf"^FABRICPULSE_TOOLS names {tmp_path}, which holds none of prometheus"
    ):
        find_tools()
