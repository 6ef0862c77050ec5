"""The replay as a whole: the public trace, the shipped rules in promtool, the shipped inhibitions in Alertmanager."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.rules.replay.alerts import firing
from tests.bench.rules.replay.history import History, names_read
from tests.bench.rules.replay.judgement import Judged, Labels, Notification, judged, notifications
from tests.bench.rules.replay.trace import faults
from tests.fixtures.rules.alertmanager import post, settled, shipped_alertmanager


def replay(
    promtool: str, alertmanager: Sequence[str], groups: Sequence[Mapping[str, Any]], folder: Path
) -> tuple[list[Judged], list[Notification], int]:
    """Each fault and what on-call got of it, what nothing explains, and how many minutes it was.

    promtool : its path. alertmanager : its command line. groups : the rule groups, records first. folder : for files.
    """
    trace = faults()
    history = History(trace, names_read([rule["expr"] for group in groups for rule in group["rules"]]))
    alerts = firing(promtool, groups, history, folder)
    with shipped_alertmanager(alertmanager, folder) as address:
        notified = notifications(alerts, lambda sets: _not_muted(address, sets))
    return *judged(history, trace, notified), history.minutes


def _not_muted(address: str, sets: Sequence[Sequence[Labels]]) -> list[list[Labels]]:
    posted = [
        labels | {"cluster": f"set {number}"} for number, alerts in enumerate(sets) for labels in alerts
    ]
    post(address, posted)
    left: list[list[Labels]] = [[] for _ in sets]
    for labels in settled(address, len(posted)):
        left[int(labels["cluster"].removeprefix("set "))].append(labels | {"cluster": "a"})
    return left
