"""Gray loss and dead switches on real links: until when the alert is in a real Alertmanager, which link it names, and
whether there is any other.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import yaml
from tests.bench.rows import Rows, quantile
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.diagnosed_fleet import DiagnosedFleet
from tests.integration.mesh.mesh_fleet import events

from fabricpulse.lab import Fault, Lab
from fabricpulse.lab.servers import Alertmanager, start_alertmanager
from fabricpulse.lab.tools import find_tools

# By loss in per cent: seconds until the alert is there, and the recall in per cent that is asked for.
_MUST = {60.0: (3, 100), 20.0: (5, 100), 5.0: (10, 100), 1.5: (30, 100), 0.5: (90, 95)}
# Seconds after which a loss counts as not found.
_PATIENCE_S = {60.0: 30, 20.0: 30, 5.0: 60, 1.5: 120, 0.5: 240, 0.1: 300}
_STAYS_S = 3.0
_POLL_S = 0.05
# As deployed for critical alerts: nobody is notified of what is muted until then.
_GROUP_WAIT_S = 10.0
_SPINES = 4
_REPORTED = ("alertname", "kind", "faulty", "peer", "instance")
Name = tuple[str, ...]


class AlertedFleet(DiagnosedFleet):
    """Nine hosts, three leaves, four spines, all paths known; an Alertmanager that the coordinator pushes to."""

    def __init__(self, lab: Lab) -> None:
        deployed = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "alertmanager.yml").read_text())
        config = {
            "route": {"receiver": "none", "group_wait": "1s"},
            "receivers": [{"name": "none"}],
            "inhibit_rules": deployed["inhibit_rules"],
        }
        self.alertmanager: Alertmanager = start_alertmanager(lab, config, tools=find_tools())
        url = f"http://{lab.resolve('mgmt')}:{self.alertmanager.port}"
        # Without a rule beside it nothing has to be held back; that makes the next trial possible.
        alerting = {"alertmanagers": [url], "resolve_hold_s": 0}
        super().__init__(lab, {"alerting": alerting}, alerting=alerting)

    def alerts(self) -> set[Name]:
        """The alerts that fire now and that no other one mutes: name, and what they name."""
        return {
            tuple(alert["labels"].get(name, "") for name in _REPORTED)
            for alert in self.alertmanager.alerts()
            if not alert["status"]["inhibitedBy"]
        }


@contextmanager
def alerted_fleet() -> Iterator[AlertedFleet]:
    """A fleet that is well."""
    with Lab(hosts=9, rails=1, spines=_SPINES, pods=3) as lab:
        yield AlertedFleet(lab)


def bench_gray(rows: Rows, percents: list[float], times: int) -> None:
    """The gray-loss table: each loss so often, on one link after the other, in turns up and down."""
    with alerted_fleet() as fleet:
        number = 0
        for percent in percents:
            took: list[float] = []
            named = others = 0
            for _ in range(times):
                leaf = fleet.lab.fabric.leaf_names[number % 3]
                spine = fleet.lab.fabric.spine_names[number // 3 % _SPINES]
                way: Literal["in", "out"] = "out" if number % 2 == 0 else "in"
                ends = (leaf, spine) if way == "out" else (spine, leaf)
                number += 1
                wanted = ("FabricFaultLocated", "link", *ends, "")
                seconds, found = _played(
                    fleet,
                    lambda leaf=leaf, spine=spine, way=way, percent=percent: (  # type: ignore[misc]
                        fleet.lab.port(leaf, spine).loss(percent, way)
                    ),
                    wanted,
                    _PATIENCE_S.get(percent, 300),
                )
                took += [seconds] if seconds is not None else []
                named += wanted in found
                others += len(found - {wanted})
                for wrong in found - {wanted}:
                    print(f"bench map: {percent:g} % on {' '.join(ends)}: {' '.join(wrong)}", file=sys.stderr)
            case = f"one-way loss of {percent:g} % on one of {_SPINES} uplinks, {times} times"
            most_s, recall = _MUST.get(percent, (None, None))
            worst = max(took, default=float("nan"))
            p50 = round(quantile(took, 0.5), 2) if took else None
            rows.report(case, "alert_s", worst, "s", f"<= {most_s}" if most_s else None, p50=p50)
            share = 100 * len(took) / times
            rows.report(case, "recall_percent", share, "%", f">= {recall}" if recall else None)
            rows.report(case, "named_right_percent", 100 * named / times, "%", other_alerts=others)


def bench_dead(rows: Rows, times: int) -> None:
    """Alerts of a leaf that drops everything, and edges that flap while a spine does."""
    with alerted_fleet() as fleet:
        lab = fleet.lab
        most, took = 0, []
        for number in range(times):
            leaf = lab.fabric.leaf_names[number % 3]
            wanted = ("FabricFaultLocated", "switch", leaf, "", "")
            seconds, found = _played(fleet, lambda leaf=leaf: _kill(lab, leaf), wanted, 60, 20, _GROUP_WAIT_S)  # type: ignore[misc]
            most = max(most, len(found) if wanted in found else 99)
            took += [seconds] if seconds is not None else []
            if found != {wanted}:
                print(f"bench map: leaf {leaf} dead: {sorted(found)}", file=sys.stderr)
        case = f"a leaf drops everything, {times} times, {_SPINES} spines, reported after {_GROUP_WAIT_S:g} s"
        rows.report(case, "alerts_per_dead_leaf", most, "alerts", "== 1", alert_s=max(took, default=None))
        ups, downs, most = events(fleet.mesh, "edge_up"), events(fleet.mesh, "edge_down"), 0
        for number in range(times):
            spine = lab.spine(number % _SPINES)
            wanted = ("FabricFaultLocated", "switch", spine.name, "", "")
            _, found = _played(fleet, spine.black_hole, wanted, 60, 10)
            most = max(most, len(found) if wanted in found else 99)
            if found != {wanted}:
                print(f"bench map: {spine.name} dead: {sorted(found)}", file=sys.stderr)
        case = f"a spine drops everything, {times} times, {_SPINES} spines"
        flaps = sum(
            _grown(before, events(fleet.mesh, kind))
            for before, kind in ((ups, "edge_up"), (downs, "edge_down"))
        )
        rows.report(case, "edge_flaps", flaps / times, "events", "== 0")
        rows.report(case, "alerts_per_dead_spine", most, "alerts", "== 1")


def _grown(before: dict[str, float | None], after: dict[str, float | None]) -> float:
    return sum((after[name] or 0) - (before[name] or 0) for name in after)


def _kill(lab: Lab, leaf: str) -> list[Fault]:
    """Every cable of a leaf drops everything, silently."""
    nics = [host.nic("rail0") for host in lab.hosts if host.nic("rail0").leaf == leaf]
    uplinks = [lab.port(leaf, spine) for spine in lab.fabric.spine_names]
    return [*(nic.loss(100, "both") for nic in nics), *(uplink.black_hole() for uplink in uplinks)]


def _played(
    fleet: AlertedFleet,
    fault: Callable[[], Fault | list[Fault]],
    wanted: Name,
    patience_s: float,
    stays_s: float = _STAYS_S,
    waits_s: float = 0.0,
) -> tuple[float | None, set[Name]]:
    """Seconds until the wanted alert is there, None if it is not; and all alerts from then until stays_s later,
    without those of the first waits_s after the first alert.
    """
    found: set[Name] = set()
    began = time.monotonic()  # a fault is in force when the call returns: what that takes counts, too
    made = fault()
    seconds = first = None
    while seconds is None and time.monotonic() < began + patience_s:
        time.sleep(_POLL_S)
        now = fleet.alerts()
        first = first or (time.monotonic() if now else None)
        found |= now if first is not None and time.monotonic() >= first + waits_s else set()
        if wanted in now:
            seconds = time.monotonic() - began
    end = time.monotonic() + (stays_s if seconds is not None else 0)
    while time.monotonic() < end:
        time.sleep(0.2)
        if first is not None and time.monotonic() >= first + waits_s:
            found |= fleet.alerts()
    for each in made if isinstance(made, list) else [made]:
        each.undo()
    wait_for(lambda: not fleet.alerts() and not fleet.suspects(), 300, "all is well again")
    return seconds, found
