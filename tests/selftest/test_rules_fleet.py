"""The fleet on paper of `make bench NAME=rules` has all that rules read: what is missing costs nothing to evaluate."""

import re
from pathlib import Path

import yaml
from tests.bench.rules.evaluation import history_s, in_order
from tests.bench.rules.fleet import Faults, PaperFleet

ROOT = Path(__file__).parents[2]
RULES = [
    rule
    for folder in ("recording", "alerts")
    for path in sorted((ROOT / "rules" / folder).glob("*.yaml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]


def test_fleet_on_paper_has_every_metric_of_the_rules() -> None:
    """Each metric that a rule names is a series of some target."""
    read = {name for rule in RULES for name in re.findall(r"(?<![\w:])fabricpulse_\w+", rule["expr"])}

    there = {series.name for _, _, target in PaperFleet(12, Faults()).targets() for series in target}

    assert len(read) > 80
    assert sorted(read - there) == []


def test_series_of_a_target_are_distinct() -> None:
    """No series of a target stands there twice: Prometheus would take one."""
    for job, instance, target in PaperFleet(12, Faults()).targets():
        keys = [(series.name, series.labels) for series in target]
        assert len(keys) == len(set(keys)), (job, instance)


def test_records_are_evaluated_before_what_reads_them() -> None:
    """Of two rules the one that records what the other reads is first, whatever the order of the files."""
    order = [rule.get("record") or rule["alert"] for rule in in_order(RULES)]

    assert len(order) == len(RULES)
    assert order.index("flow:fabricpulse_qp_owd_seconds:contended") < order.index("FabricPathContended")
    assert order.index("flow:fabricpulse_qp_owd_seconds:p50_2m") < order.index(
        "flow:fabricpulse_qp_owd_seconds:contention_score"
    )


def test_what_is_read_of_an_hour_is_there() -> None:
    """Where a rule looks back further than the usual quarter of an hour the series goes back so far, within an hour."""
    history = history_s(RULES)

    assert history["fabricpulse_nic_recent_disconnect_age_seconds"] == 3500
    assert history["flow:fabricpulse_qp_received_bytes:rate2m"] == 3500
    assert "fabricpulse_nic_connected" not in history
