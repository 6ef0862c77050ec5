"""The push to Alertmanager: retried, repeated, resolved, and never one alert held up by another's Alertmanager."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import formatdate
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from tests.fixtures.waiting import until

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.core.rfc3339 import rfc3339
from fabricpulse.mesh.alerts import DISCONNECTED, FLAPPING, AlertPusher, Nic, flap_alert, nic_alert
from fabricpulse.mesh.config import NicAlerting

NOW = 1_700_000_000.0


def seconds(moment):
    return datetime.fromisoformat(moment).timestamp()


class FakeAlertmanager:
    """Takes alerts; `refuse` answers are 503, with what `refusal` gives.

    ahead_s : its clock ahead of ours, which stands at NOW; gains_s : it gains that with each answer.
    """

    def __init__(self, ahead_s=0.0):
        self.ahead_s = ahead_s
        self.gains_s = 0.0
        self.bodies = []
        self.refuse = 0
        self.refusal = {}
        self.refused = 0
        self.changed = asyncio.Condition()

    async def set_date(self, request, response):
        self.ahead_s += self.gains_s
        response.headers["Date"] = formatdate(NOW + self.ahead_s, usegmt=True)

    async def post(self, request):
        body = await request.json()
        async with self.changed:
            if self.refuse:
                self.refuse -= 1
                self.refused += 1
                self.changed.notify_all()
                return web.Response(status=503, **self.refusal)
            self.bodies.append(body)
            self.changed.notify_all()
        return web.Response()

    async def wait(self, condition):
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.on_response_prepare.append(self.set_date)
        app.router.add_post("/api/v2/alerts", self.post)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@asynccontextmanager
async def pushing(*urls, clock=lambda: NOW, monotonic=time.monotonic, **settings):
    settings = {"resolve_hold_s": 0, **settings}
    config = NicAlerting(alertmanagers=urls, labels={"instance": "h0", "job": "mesh"}, **settings)
    pusher = AlertPusher(config, "h0", clock, monotonic)
    await pusher.open()
    tasks = [asyncio.create_task(pusher.serve(url)) for url in urls]
    try:
        yield pusher
    finally:
        await pusher.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pusher.close()


async def test_labels_are_those_of_the_rule():
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.bodies)
    (alert,) = fake.bodies[0]
    assert alert["labels"] == {
        "alertname": "FabricNicDisconnected",
        "component": "mesh",
        "severity": "critical",
        "device": "rail0",
        "network": "a",
        "instance": "h0",
        "job": "mesh",
    }
    assert NOW - 1 < seconds(alert["startsAt"]) <= NOW
    assert alert["endsAt"] == rfc3339(round((NOW + 4 * 30) * 1e9), 6)  # four repeats of 30 s


def test_what_is_pushed_is_what_the_rules_say():
    """Labels, texts and knobs of both alerts; a label that is configured replaces one of the rule."""
    file = Path(__file__).parents[3] / "rules" / "alerts" / "nic.yaml"
    rules = {
        rule["alert"]: rule
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    config, nic = NicAlerting(), Nic("rail0", "a", "leaf-7")
    pushed = (nic_alert(config, "h0", *nic), flap_alert(config, "h0", nic, 3))
    for name, content in zip((DISCONNECTED, FLAPPING), pushed, strict=True):
        about = {"device": "rail0", "network": "a", "leaf": "leaf-7", "instance": "h0"}
        own = {"alertname": name, "job": "fabricpulse-mesh", **rules[name]["labels"]}
        assert content.labels == about | own
        for text in ("summary", "runbook_url"):
            assert content.annotations[text] == rules[name]["annotations"][text]
    window_s = config.flap_window_s
    assert f"[{window_s / 60:g}m])" in rules[FLAPPING]["expr"]
    assert f" < {window_s:g}) >= {config.flap_threshold}" in rules[FLAPPING]["expr"]
    assert rules[FLAPPING]["keep_firing_for"] == f"{config.flap_keep_firing_s / 60:g}m"
    other = NicAlerting(labels={"remediate": "later"}, severity="page", flap_severity="ticket")
    assert (
        flap_alert(other, "h0", nic, 3).labels.items() >= {"remediate": "later", "severity": "ticket"}.items()
    )
    assert nic_alert(other, "h0", "rail0", "a").labels["severity"] == "page"


async def test_a_nic_that_flaps_and_is_lost_has_two_alerts():
    """Each ends by itself."""
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url) as pusher:
        pusher.fire("rail0", "a")
        pusher.fire_flapping(Nic("rail0", "a"), 3)
        await fake.wait(lambda: fake.bodies)
        pusher.resolve("rail0", "a")
        assert [name for name, *_ in pusher.firing()] == [FLAPPING]
        assert pusher.disconnected() == []
        pusher.fire("rail0", "a")
        pusher.resolve_flapping("rail0", "a")
        assert [name for name, *_ in pusher.firing()] == [DISCONNECTED]
        assert pusher.disconnected() == [("rail0", "a")]


def test_the_leaf_is_a_label_where_it_is_known():
    """As in the series that the rule alerts on: Prometheus has no label that is empty."""
    assert nic_alert(NicAlerting(), "h0", "rail0", "a", "leaf-7").labels["leaf"] == "leaf-7"
    assert "leaf" not in nic_alert(NicAlerting(), "h0", "rail0", "a").labels


async def test_labels_can_be_made_those_of_any_rule():
    """Another severity, instance, component and external labels: as the rule that Prometheus has was rendered."""
    fake = FakeAlertmanager()
    async with fake.running() as url:
        config = NicAlerting(
            alertmanagers=(url,), severity="page", labels={"instance": "gpu-1", "component": "net", "dc": "a"}
        )
        pusher = AlertPusher(config, "h0", lambda: NOW)
        await pusher.open()
        task = asyncio.create_task(pusher.serve(url))
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pusher.close()
    ((alert,),) = fake.bodies
    expected = {"alertname": "FabricNicDisconnected", "severity": "page", "component": "net", "dc": "a"}
    assert alert["labels"] == expected | {
        "device": "rail0",
        "network": "a",
        "instance": "gpu-1",
        "job": "fabricpulse-mesh",
    }


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("alertname: x", "label 'alertname' is set by the exporter"),
        ("severity: page", "label 'severity' is set by the exporter"),
        ("9x: y", "'9x' is no name of a label"),
        ("instance: ''", "label 'instance' is empty"),
    ],
)
def test_labels_that_cannot_be_are_refused(labels, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(f"labels: {{{labels}}}", NicAlerting, "f")


async def test_a_password_is_shown_and_a_refusal_counted(tmp_path):
    """An Alertmanager behind a password: with it the push is taken, without it refused, and both are counted."""
    asked = []

    async def post(request):
        asked.append(request.headers.get("Authorization"))
        return web.Response(status=200 if asked[-1] else 401)

    app = web.Application()
    app.router.add_post("/api/v2/alerts", post)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    (tmp_path / "password").write_text("secret\n")
    good = {"basic_auth": {"username": "mesh", "password_file": str(tmp_path / "password")}}
    for http_client, taken in (({}, False), (good, True)):
        config = parse_config(
            json.dumps({"alertmanagers": [url], "retry_s": 60, "resend_s": 60, "http_client": http_client}),
            NicAlerting,
            "f",
        )
        pusher = AlertPusher(config, "h0", lambda: NOW)
        await pusher.open()
        task = asyncio.create_task(pusher.serve(url))
        pusher.fire("rail0", "a")
        push = pusher.pushes[url]
        await until(lambda: push.taken is not None)  # noqa: B023 - of this round
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pusher.close()
        counters = pusher.pushes[url]
        assert (counters.taken, counters.requests, counters.refused) == (taken, 1, not taken)
    assert asked == [None, "Basic bWVzaDpzZWNyZXQ="]
    await runner.cleanup()


async def test_retried_until_it_is_taken():
    fake = FakeAlertmanager()
    fake.refuse = 3
    async with fake.running() as url, pushing(url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        assert fake.refused == 3
        assert (pusher.pushes[url].requests, pusher.pushes[url].refused) == (4, 3)
        await asyncio.sleep(0)
    assert len(fake.bodies) == 1


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "text/html; charset=no-such"])
async def test_a_refusal_that_is_no_text_is_a_refusal(content_type):
    """A proxy in between answers what it likes: the alert is tried again all the same."""
    fake = FakeAlertmanager()
    fake.refuse, fake.refusal = 1, {"body": b"\xff\xfe", "headers": {"Content-Type": content_type}}
    async with fake.running() as url, pushing(url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        assert (pusher.pushes[url].refused, pusher.pushes[url].unreachable) == (1, 0)


@pytest.mark.parametrize(
    "url", ["am:9093", "http://", "http://am:x", "http://[fe80::1", "ftp://am", "http://am:99999"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError, match=r"c\.yaml.*is not an http or https URL"):
        parse_config(f"alertmanagers: ['{url}']\n", NicAlerting, "c.yaml")


async def test_sent_again_while_it_fires_and_once_when_it_ends():
    later = [0.0]
    fake = FakeAlertmanager()
    async with (
        fake.running() as url,
        pushing(url, resend_s=0.05, monotonic=lambda: time.monotonic() + later[0]) as pusher,
    ):
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) >= 3)
        later[0] += 7
        pusher.resolve("rail0", "a")
        await fake.wait(lambda: seconds(fake.bodies[-1][0]["endsAt"]) <= NOW)
        ((end,),) = [fake.bodies[-1]]
        assert 7 <= seconds(end["endsAt"]) - seconds(end["startsAt"]) < 12
        count = len(fake.bodies)
        pusher.fire("rail1", "b")
        await fake.wait(lambda: len(fake.bodies) > count)
    assert {alert["labels"]["device"] for alert in fake.bodies[-1]} == {"rail1"}


async def test_a_dead_alertmanager_delays_none_of_the_others():
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing("http://127.0.0.1:1", url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        pusher.resolve("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) >= 2)
        # The dead one is still owed the end.
        dead = pusher.pushes["http://127.0.0.1:1"]
        assert dead.unreachable > 0
        assert dead.taken is False
        assert pusher.pushes[url].taken is True
        under_way = dead.requests - dead.unreachable
        assert under_way in {0, 1}


async def test_resolved_before_anybody_was_notified():
    """A flap while the Alertmanager is down: when it is back it learns of the end, and no alert is left firing."""
    fake = FakeAlertmanager()
    fake.refuse = 2
    async with fake.running() as url, pushing(url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.refused >= 1)
        pusher.resolve("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        assert not pusher.firing()
    assert seconds(fake.bodies[-1][0]["startsAt"]) <= seconds(fake.bodies[-1][0]["endsAt"]) <= NOW


async def test_fires_again_after_the_end():
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        pusher.resolve("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 2)
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 3)
        assert pusher.disconnected() == [("rail0", "a")]


async def test_the_end_is_held_until_the_rule_can_have_ended():
    """Nothing is sent while the end is held, not even a repeat, which would fire the alert anew."""
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url, resend_s=0.1, resolve_hold_s=0.3) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        began = time.monotonic()
        pusher.resolve("rail0", "a")
        assert not pusher.firing()
        await fake.wait(lambda: len(fake.bodies) == 2)
        assert time.monotonic() - began >= 0.3
    assert (
        NOW - 4 < seconds(fake.bodies[1][0]["endsAt"]) <= NOW - 0.3
    )  # when it ended, not when that was reported


async def test_lost_again_while_the_end_is_held():
    """It fires on: the end that was held is never reported."""
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url, resend_s=0.2, resolve_hold_s=0.5) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        pusher.resolve("rail0", "a")
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 6)  # five repeats, a second: well past the hold
    assert all(seconds(alert["endsAt"]) > NOW for body in fake.bodies for alert in body)


@pytest.mark.parametrize(("after_s", "contested"), [(0, True), (14 * 60, True), (17 * 60, False)])
async def test_lost_again_soon_is_reported_often_until_the_rule_can_have_fired(after_s, contested):
    """Prometheus repeats the end of the first outage for a quarter of an hour, and would end the second with it."""
    later = [0.0]
    fake = FakeAlertmanager()
    async with (
        fake.running() as url,
        pushing(
            url, resend_s=600, resolve_hold_s=2.5, monotonic=lambda: time.monotonic() + later[0]
        ) as pusher,
    ):
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        pusher.resolve("rail0", "a")
        later[0] += after_s
        count = len(fake.bodies)
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) > count)
        began, count = time.monotonic(), len(fake.bodies)
        if contested:
            await fake.wait(lambda: len(fake.bodies) == count + 3)
            assert time.monotonic() - began > 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                count = len(fake.bodies)
                await fake.wait(lambda: len(fake.bodies) > count)


@pytest.mark.parametrize("ahead_s", [-7200, -120, -1.5, 0, 1.5, 120, 7200])
async def test_times_are_those_of_the_alertmanager(ahead_s):
    """A host whose clock is off: what fires ends in the future of Alertmanager, what has ended ended in its past."""
    fake = FakeAlertmanager(ahead_s)
    async with fake.running() as url, pushing(url) as pusher:
        for _ in range(2):
            pusher.fire("rail0", "a")
            await fake.wait(lambda: fake.bodies)
            (fires,) = fake.bodies.pop()
            assert not fake.bodies  # the time was known before: reported once
            assert abs(seconds(fires["startsAt"]) - NOW - ahead_s) < 2
            assert abs(seconds(fires["endsAt"]) - NOW - ahead_s - 120) < 2
            pusher.resolve("rail0", "a")
            await fake.wait(lambda: fake.bodies)
            (ends,) = fake.bodies.pop()
            # In its past in any case: an end in the future would end nothing.
            assert -3 < seconds(ends["endsAt"]) - NOW - ahead_s <= 0
            assert ends["startsAt"] <= ends["endsAt"]


async def test_a_clock_that_has_changed_is_noticed_at_the_push():
    """It is reported again at once, once; also where each answer has another time, as behind a proxy."""
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        fake.ahead_s = 300
        pusher.fire("rail1", "b")
        await fake.wait(lambda: len(fake.bodies) == 3)
        assert all(seconds(alert["endsAt"]) < NOW + 130 for alert in fake.bodies[1])
        assert all(seconds(alert["endsAt"]) > NOW + 400 for alert in fake.bodies[2])

        fake.gains_s = 1000
        pusher.resolve("rail0", "a")
        pusher.resolve("rail1", "b")
        await fake.wait(lambda: len(fake.bodies) == 5)
    assert len(fake.bodies) == 5


async def test_another_alert_does_not_carry_the_held_one():
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url, resend_s=20, resolve_hold_s=60) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        pusher.resolve("rail0", "a")
        pusher.fire("rail1", "b")
        await fake.wait(lambda: len(fake.bodies) == 2)
        assert [alert["labels"]["device"] for alert in fake.bodies[1]] == ["rail1"]


async def test_a_held_end_is_reported_when_the_exporter_stops():
    fake = FakeAlertmanager()
    async with fake.running() as url:
        async with pushing(url, resolve_hold_s=60) as pusher:
            pusher.fire("rail0", "a")
            await fake.wait(lambda: len(fake.bodies) == 1)
            pusher.resolve("rail0", "a")
            pusher.fire("rail1", "b")
        ends = {a["labels"]["device"]: a["endsAt"] for a in fake.bodies[-1]}
    assert seconds(ends["rail0"]) <= NOW
    assert seconds(ends["rail1"]) > NOW  # not ended: left to expire


def test_a_hold_beyond_the_expiry_is_refused():
    with pytest.raises(ConfigError, match="resolve_hold_s"):
        parse_config("resolve_hold_s: 100", NicAlerting, "mesh.yaml")


async def test_without_alertmanagers_nothing_runs():
    """What fires is known all the same, and there is no task that could fail."""
    async with pushing() as pusher:
        pusher.fire("rail0", "a")
        assert pusher.firing()
