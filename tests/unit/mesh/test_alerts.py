"""The push to Alertmanager: retried, repeated, resolved, and never one alert held up by another's Alertmanager."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fabricpulse.core.config import parse_config
from fabricpulse.core.errors import ConfigError
from fabricpulse.exporters.mesh.alerts import AlertPusher, rfc3339
from fabricpulse.exporters.mesh.config import Alerting


class FakeAlertmanager:
    """Takes alerts; `refuse` answers are 503."""

    def __init__(self):
        self.bodies = []
        self.refuse = 0
        self.refused = 0
        self.changed = asyncio.Condition()

    async def post(self, request):
        body = await request.json()
        async with self.changed:
            if self.refuse:
                self.refuse -= 1
                self.refused += 1
                self.changed.notify_all()
                return web.Response(status=503)
            self.bodies.append(body)
            self.changed.notify_all()
        return web.Response()

    async def wait(self, condition):
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(condition)

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/api/v2/alerts", self.post)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()


@asynccontextmanager
async def pushing(*urls, clock=lambda: 1_700_000_000.0, **settings):
    settings = {"resolve_hold_s": 0, **settings}
    config = Alerting(alertmanagers=urls, labels={"instance": "h0", "job": "mesh"}, **settings)
    pusher = AlertPusher(config, "h0", clock)
    await pusher.start()
    try:
        yield pusher
    finally:
        await pusher.stop()


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
    assert alert["startsAt"] == "2023-11-14T22:13:20.000000Z"
    assert alert["endsAt"] == "2023-11-14T22:15:20.000000Z"  # four repeats of 30 s


async def test_retried_until_it_is_taken():
    fake = FakeAlertmanager()
    fake.refuse = 3
    async with fake.running() as url, pushing(url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        assert fake.refused == 3
        assert pusher.failures == {url: 3}
        await asyncio.sleep(0)
    assert len(fake.bodies) == 1


async def test_sent_again_while_it_fires_and_once_when_it_ends():
    now = [1_700_000_000.0]
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url, resend_s=0.05, clock=lambda: now[0]) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) >= 3)
        now[0] += 7
        pusher.resolve("rail0", "a")
        await fake.wait(lambda: fake.bodies[-1][0]["endsAt"] == rfc3339(now[0]))
        assert fake.bodies[-1][0]["startsAt"] == rfc3339(now[0] - 7)
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
        assert pusher.failures["http://127.0.0.1:1"] > 0
        assert pusher.pushes["http://127.0.0.1:1"] == 0


async def test_resolved_before_anybody_was_told():
    """A flap while the Alertmanager is down: when it is back, it is told of the end, and no alert is left firing."""
    fake = FakeAlertmanager()
    fake.refuse = 2
    async with fake.running() as url, pushing(url, retry_s=0.01) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: fake.refused >= 1)
        pusher.resolve("rail0", "a")
        await fake.wait(lambda: fake.bodies)
        assert not pusher.firing()
    assert fake.bodies[-1][0]["endsAt"] == fake.bodies[-1][0]["startsAt"]


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
        assert list(pusher.firing()) == [("rail0", "a")]


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
    assert fake.bodies[1][0]["endsAt"] == rfc3339(1_700_000_000.0)


async def test_lost_again_while_the_end_is_held():
    """It fires on: the end that was held is never told."""
    now = [1_700_000_000.0]
    fake = FakeAlertmanager()
    async with (
        fake.running() as url,
        pushing(url, resend_s=0.2, resolve_hold_s=0.5, clock=lambda: now[0]) as pusher,
    ):
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        pusher.resolve("rail0", "a")
        now[0] += 1
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 6)  # five repeats, a second: well past the hold
    assert all(alert["endsAt"] > rfc3339(now[0]) for body in fake.bodies[1:] for alert in body)
    assert {alert["startsAt"] for body in fake.bodies[1:] for alert in body} == {rfc3339(now[0])}


async def test_another_alert_does_not_carry_the_held_one():
    fake = FakeAlertmanager()
    async with fake.running() as url, pushing(url, resend_s=20, resolve_hold_s=60) as pusher:
        pusher.fire("rail0", "a")
        await fake.wait(lambda: len(fake.bodies) == 1)
        pusher.resolve("rail0", "a")
        pusher.fire("rail1", "b")
        await fake.wait(lambda: len(fake.bodies) == 2)
        assert [alert["labels"]["device"] for alert in fake.bodies[1]] == ["rail1"]


async def test_a_held_end_is_told_when_the_exporter_stops():
    fake = FakeAlertmanager()
    async with fake.running() as url:
        async with pushing(url, resolve_hold_s=60) as pusher:
            pusher.fire("rail0", "a")
            await fake.wait(lambda: len(fake.bodies) == 1)
            pusher.resolve("rail0", "a")
            pusher.fire("rail1", "b")
        ends = {a["labels"]["device"]: a["endsAt"] for a in fake.bodies[-1]}
    assert ends["rail0"] == rfc3339(1_700_000_000.0)
    assert ends["rail1"] > rfc3339(1_700_000_000.0)  # not mended: left to expire


def test_a_hold_beyond_the_expiry_is_refused():
    with pytest.raises(ConfigError, match="resolve_hold_s"):
        parse_config("resolve_hold_s: 100", Alerting, "mesh.yaml")


async def test_without_alertmanagers_nothing_runs():
    async with pushing() as pusher:
        pusher.fire("rail0", "a")
        assert pusher.firing()


def test_rfc3339():
    assert rfc3339(0) == "1970-01-01T00:00:00.000000Z"
    assert rfc3339(1.5) == "1970-01-01T00:00:01.500000Z"
