"""The push to a real Alertmanager, alone and beside the rule of a real Prometheus."""

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from tests.fixtures.waiting import wait_for
from tests.integration.mesh.mesh_fleet import MeshFleet

from fabricpulse.lab import Lab
from fabricpulse.lab.servers import start_alertmanager, start_prometheus
from fabricpulse.mesh.alerts import FLAPPING

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("green_again")]


@pytest.fixture(scope="module")
def fleet() -> Iterator[MeshFleet]:
    """One NIC with two witnesses: more probes are nothing to an alert, and cost for as long as the servers take."""
    with Lab(hosts=3, rails=1) as lab:
        started = MeshFleet(lab).start()
        started.wait_green()
        yield started


def test_push_is_one_alert(fleet, tools):
    """A lost NIC is in a real Alertmanager at once, with the labels of the rule, and resolved when the NIC is back."""
    alertmanager = start_alertmanager(
        fleet.lab, {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}, tools=tools
    )
    url = f"http://{fleet.lab.resolve('mgmt')}:{alertmanager.port}"
    fleet.config["alerting"] = {
        "alertmanagers": [url, "http://127.0.0.1:1"],  # the second is dead: it must not delay the first
        "labels": {"instance": "h2", "job": "fabricpulse-mesh"},
        "resend_s": 1,
        "resolve_hold_s": 0,
    }
    fleet.daemons["h2"].stop()
    fleet.start("h2")
    fleet.wait_green()
    rule = yaml.safe_load((Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml").read_text())
    rules = {r["alert"]: r for group in rule["groups"] for r in group["rules"]}["FabricNicDisconnected"]

    def firing():
        return alertmanager.alerts('alertname="FabricNicDisconnected"')

    with fleet.lab.host("h2").nic("rail0").down():
        alerts = wait_for(firing, 5, "the alert")
        expected = {"alertname": "FabricNicDisconnected", "device": "rail0", "network": "rail0"}
        expected |= {"instance": "h2", "job": "fabricpulse-mesh", **rules["labels"]}
        assert [alert["labels"] for alert in alerts] == [expected]
        assert alerts[0]["annotations"]["summary"] == rules["annotations"]["summary"]
        assert alerts[0]["annotations"]["runbook_url"] == rules["annotations"]["runbook_url"]
        updated = alerts[0]["updatedAt"]
        wait_for(lambda: firing()[0]["updatedAt"] != updated, 5, "sent again while it fires")
    wait_for(lambda: not firing(), 5, "resolved")
    scrape = fleet.scrape("h2")
    assert scrape.value("fabricpulse_alert_pushes_total", alertmanager=url) >= 3
    assert (
        scrape.value(
            "fabricpulse_alert_push_failures_total", alertmanager="http://127.0.0.1:1", reason="unreachable"
        )
        > 0
    )
    alertmanager.stop()


def test_push_and_rule_end_as_one_alert(fleet, tools):
    """With a Prometheus that has the rule: the alert begins once and ends once, whichever of the two ends it first."""
    lab = fleet.lab
    alertmanager = start_alertmanager(
        lab, {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}, tools=tools
    )
    scrape_ms, evaluation_ms = 1500, 100
    target = {"targets": [f"{lab.resolve('h2')}:9610"], "labels": {"instance": "h2"}}
    prometheus = start_prometheus(
        lab,
        {
            # Many evaluations a scrape: the rule fires on for most of the time until the next scrape.
            "global": {"scrape_interval": f"{scrape_ms}ms", "evaluation_interval": f"{evaluation_ms}ms"},
            "rule_files": [str(Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml")],
            "scrape_configs": [{"job_name": "fabricpulse-mesh", "static_configs": [target]}],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager.port}"]}]}]
            },
        },
        tools=tools,
        # Each evaluation sends its firing alerts again, as it else does each minute.
        flags=["--rules.alert.resend-delay=0s"],
    )
    disagree_s = (scrape_ms + evaluation_ms) / 1000
    fleet.config["alerting"] = {
        "alertmanagers": [f"http://{lab.resolve('mgmt')}:{alertmanager.port}"],
        "labels": {"instance": "h2", "job": "fabricpulse-mesh"},
        "resolve_hold_s": disagree_s + 0.3,
    }
    fleet.daemons["h2"].stop()
    fleet.start("h2")
    fleet.wait_green()

    def firing():
        return len(alertmanager.alerts('alertname="FabricNicDisconnected"'))

    for _ in range(2):
        with lab.host("h2").nic("rail0").down():
            wait_for(firing, 5, "the pushed alert")
            wait_for(
                lambda: [
                    a for a in prometheus.alerts() if a["labels"]["alertname"] == "FabricNicDisconnected"
                ],
                10,
                "the rule's alert",
            )
        seen = [firing()]
        wait_for(lambda: fleet.connected("h2", "rail0") == 1, 5, "connected again")
        over = time.monotonic() + 2 * disagree_s + 1
        while time.monotonic() < over:
            seen.append(firing())
            time.sleep(0.05)  # two polls an evaluation; that nothing happens has no event
        changes = [count for count, before in zip(seen, [None, *seen], strict=False) if count != before]
        assert changes == [1, 0]
    # The third time within flapWindow: the NIC flaps.
    expected = {"alertname": FLAPPING, "device": "rail0", "network": "rail0", "instance": "h2"}
    with lab.host("h2").nic("rail0").down():
        pushed = wait_for(lambda: alertmanager.alerts(f'alertname="{FLAPPING}"'), 5, "the pushed alert")
        assert pushed[0]["labels"].items() >= expected.items()
        wait_for(
            lambda: [a for a in prometheus.alerts() if a["labels"]["alertname"] == FLAPPING],
            10,
            "the rule's alert",
        )
        began = pushed[0]["updatedAt"]

        def updated():
            """What Alertmanager has of it, once it has been sent again: by the rule, at each of its evaluations."""
            found = alertmanager.alerts(f'alertname="{FLAPPING}"')
            return found if any(alert["updatedAt"] > began for alert in found) else []

        both = wait_for(updated, 10, "the rule's alert in Alertmanager")
    assert [alert["fingerprint"] for alert in both] == [pushed[0]["fingerprint"]]
    prometheus.stop()
    alertmanager.stop()
    fleet.config.pop("alerting")


def test_an_old_end_does_not_end_a_new_outage(fleet, tools):
    """Prometheus repeats the end of the first outage; the second is pushed again before anybody could miss it."""
    lab = fleet.lab
    route = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    alertmanager = start_alertmanager(lab, route, tools=tools)
    target = {"targets": [f"{lab.resolve('h2')}:9610"], "labels": {"instance": "h2"}}
    scrape_s = 5
    prometheus = start_prometheus(
        lab,
        {
            "global": {"scrape_interval": f"{scrape_s}s", "evaluation_interval": "100ms"},
            "rule_files": [str(Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml")],
            "scrape_configs": [{"job_name": "fabricpulse-mesh", "static_configs": [target]}],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager.port}"]}]}]
            },
        },
        tools=tools,
        flags=["--rules.alert.resend-delay=1500ms"],  # else a minute
    )
    fleet.config["alerting"] = {
        "alertmanagers": [f"http://{lab.resolve('mgmt')}:{alertmanager.port}"],
        "labels": {"instance": "h2", "job": "fabricpulse-mesh"},
        "resolve_hold_s": scrape_s + 0.5,
    }
    fleet.daemons["h2"].stop()
    fleet.start("h2")
    fleet.wait_green()

    def firing():
        return len(alertmanager.alerts('alertname="FabricNicDisconnected"'))

    def rule_fires():
        return [a for a in prometheus.alerts() if a["labels"]["alertname"] == "FabricNicDisconnected"]

    with lab.host("h2").nic("rail0").down():
        wait_for(firing, 5, "the pushed alert")
        wait_for(rule_fires, 2 * scrape_s, "the rule's alert")
    wait_for(lambda: not rule_fires() and not firing(), 2 * scrape_s + 5, "both have ended")
    silent, fired_at, gaps = 0.0, 0.0, []
    with lab.host("h2").nic("rail0").down():
        wait_for(firing, 5, "the pushed alert")
        over = fired_at = time.monotonic()
        while not rule_fires() and over - fired_at < 2 * scrape_s:
            over = time.monotonic()
            if firing():
                silent = 0.0
            else:
                silent = silent or over
                gaps.append(over - silent)
            time.sleep(0.02)  # the resolution of the gaps
        wait_for(firing, 5, "the rule's alert")
    assert max(gaps, default=0.0) < 1.5
    prometheus.stop()
    alertmanager.stop()
    fleet.config.pop("alerting")


_PUSH = """
import asyncio, signal, sys, time
from fabricpulse.mesh.alerts import AlertPusher
from fabricpulse.mesh.config import NicAlerting

async def main(url, ahead_s):
    config = NicAlerting(alertmanagers=(url,), labels={"instance": "h9", "job": "mesh"}, resolve_hold_s=0)
    pusher = AlertPusher(config, "h9", lambda: time.time() + ahead_s)
    await pusher.open()
    task = asyncio.create_task(pusher.serve(url))
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    pusher.fire("rail0", "rail0")
    await over.wait()
    pusher.resolve("rail0", "rail0")
    await pusher.flush()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await pusher.close()

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_a_host_whose_clock_is_off_reaches_alertmanager(fleet, tools, ahead_s):
    """Its alert fires and ends: Alertmanager judges by its own clock."""
    lab = fleet.lab
    route = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    alertmanager = start_alertmanager(lab, route, tools=tools)
    url = f"http://{lab.resolve('mgmt')}:{alertmanager.port}"
    pusher = lab.popen("h2", [sys.executable, "-c", _PUSH, url, str(ahead_s)], name=f"push{ahead_s}")
    alerts = wait_for(lambda: alertmanager.alerts('instance="h9"'), 10, "the alert")
    began = datetime.fromisoformat(alerts[0]["startsAt"]).timestamp()
    assert abs(began - time.time()) < 15
    pusher.stop()
    wait_for(lambda: not alertmanager.alerts('instance="h9"'), 5, "the end")
    alertmanager.stop()
