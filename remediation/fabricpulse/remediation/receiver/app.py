"""The receiver: HTTP in front of the engine."""

import asyncio
import hmac
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.common import BUILD_INFO
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.waiting import wait_at_most
from fabricpulse.core.web.server import WebServer
from fabricpulse.remediation import metrics
from fabricpulse.remediation.protocol import DesiredNic, DesiredState, Report
from fabricpulse.remediation.receiver.config import ReceiverConfig
from fabricpulse.remediation.receiver.guards import REASONS
from fabricpulse.remediation.receiver.model import AgentState, State, Target
from fabricpulse.remediation.receiver.payload import Alert, PayloadError, parse_notification
from fabricpulse.remediation.receiver.reconciler import Reconciler, Step, Transition
from fabricpulse.remediation.receiver.service import Engine
from fabricpulse.remediation.receiver.sqlite_store import SqliteStore
from fabricpulse.remediation.receiver.store import StoreError
from fabricpulse.remediation.receiver.truth import pull_active

log = get_logger(__name__)

MAX_BODY = 64 << 20
MAX_WAIT_S = 30.0
STALE_HEARTBEAT_S = 10.0
_OUTCOMES = ("succeeded", "refused", "failed", "superseded", "dry_run")


class Receiver:
    """One receiver; `run` is its life."""

    def __init__(self, config: ReceiverConfig, life: Lifetime) -> None:
        self._config = config
        self._life = life
        self._token = _read_token(config.token_file)
        self._reconciler = Reconciler(config)
        self._store = SqliteStore(Path(config.journal))
        self._engine = Engine(self._store, self._reconciler.on_tick)
        self._engine.on_commit(self._wake_agents)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._pull = asyncio.Event()
        self._truth_at: float | None = None
        self._deliveries: dict[int, int] = {200: 0, 400: 0, 503: 0}
        self._dead_letters = 0

    async def run(self, options: DaemonOptions) -> None:
        """Serves until told to stop."""
        server = WebServer(
            "fabricpulse remediation receiver",
            self._life,
            self._metrics,
            web_config=options.web_config,
            landing_links=[
                ("/api/v1/actions", "Actions"),
                ("/api/v1/episodes", "Episodes"),
                ("/api/v1/events", "Journal"),
            ],
            max_body=MAX_BODY,
            not_ready=self._stalled,
        )
        self._add_routes(server)
        try:
            await self._engine.start(self._reconciler.on_start)
        except StoreError as error:
            raise UserError(str(error)) from error
        await server.start(options.listen)
        engine = asyncio.create_task(self._engine.run())
        async with aiohttp.ClientSession() as session:
            puller = asyncio.create_task(self._pull_forever(session))
            watch = asyncio.create_task(self._life.stopped())
            self._life.ready()
            try:
                # An engine that ends by itself is a defect; the daemon ends with it rather than sit there deaf.
                await asyncio.wait({engine, watch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (puller, watch, engine):
                    task.cancel()
                await server.stop()
                with suppress(asyncio.CancelledError):
                    await engine
                self._store.close()

    def _stalled(self) -> str:
        age = time.monotonic() - self._engine.heartbeat
        return f"the reconciler has not come round for {age:.0f} s" if age > STALE_HEARTBEAT_S else ""

    # --- routes --------------------------------------------------------------------------------------------------

    def _add_routes(self, server: WebServer) -> None:
        server.app.middlewares.append(self._authorise)
        add = server.router
        add.add_post("/api/v1/alertmanager", self._webhook)
        add.add_get("/api/v1/agents/{host}/desired", self._desired)
        add.add_post("/api/v1/agents/{host}/report", self._report)
        add.add_get("/api/v1/episodes", self._episodes)
        add.add_get("/api/v1/targets", self._targets)
        add.add_get("/api/v1/actions", self._actions)
        add.add_get("/api/v1/events", self._events)
        add.add_get("/api/v1/status", self._status)
        add.add_post("/api/v1/pause", self._pause)
        add.add_post("/api/v1/resume", self._resume)
        add.add_post("/api/v1/release", self._release)

    @web.middleware
    async def _authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token and request.path.startswith("/api/"):
            scheme, _, value = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(value.encode(), self._token.encode()):
                return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"})
        try:
            return await handler(request)
        except StoreError:
            # Ours, not the sender's: 5xx makes Alertmanager and the agents try again. The text stays constant, since
            # Alertmanager writes it to its log.
            return web.Response(status=503, text="journal unavailable, try again\n")

    async def _webhook(self, request: web.Request) -> web.Response:
        body = await request.read()
        now = time.time()
        try:
            notification = await asyncio.to_thread(parse_notification, body)
        except PayloadError as error:
            self._deliveries[400] += 1
            log.error("webhook body refused", reason=str(error), bytes=len(body), start=repr(body[:80]))
            return web.Response(status=400, text="not an Alertmanager webhook, version 4\n")
        suspect = [a for a in notification.alerts if Reconciler.is_suspect(self._engine.state, a)]
        believed = (
            [a for a in notification.alerts if a not in suspect]
            if self._config.alertmanagers
            else notification.alerts
        )

        def change(state: State, at: float) -> Step:
            return self._reconciler.on_alerts(state, believed, at)

        try:
            await self._engine.submit(change, (now, notification.digest, body), notification.dead_letters)
        except StoreError:
            self._deliveries[503] += 1
            raise
        self._deliveries[200] += 1
        self._dead_letters += len(notification.dead_letters)
        if notification.truncated or (suspect and self._config.alertmanagers):
            self._pull.set()
        return web.Response(text="journaled\n")

    async def _desired(self, request: web.Request) -> web.Response:
        """Long poll: answers at once when the desired state of the host is not the one of `version`."""
        host = request.match_info["host"]
        after = request.query.get("version", "")
        wait_s = min(MAX_WAIT_S, _number(request.query.get("wait", "0")))
        deadline = time.monotonic() + wait_s
        while True:
            event = self._changed[host]
            event.clear()
            desired = self._desired_of(host)
            left = deadline - time.monotonic()
            if desired.version != after or left <= 0 or not self._life.is_ready:
                break
            await wait_at_most(event, min(left, 5.0))
        for nic in desired.nics:
            action = self._engine.state.actions.get(nic.op_id)
            if action is not None and action.outcome == "pending" and not action.sent_at:
                await self._engine.submit(partial(self._on_sent, nic.op_id))
        return _json(desired)

    def _on_sent(self, op_id: str, state: State, at: float) -> Step:
        return self._reconciler.on_sent(state, op_id, at)

    def _on_truth(self, active: list[Alert], complete: bool, state: State, at: float) -> Step:
        return self._reconciler.on_truth(state, active, at, complete)

    def _desired_of(self, host: str) -> DesiredState:
        state = self._engine.state
        nics = []
        for target in state.targets.values():
            action = state.actions.get(target.op_id)
            if target.target.host != host or action is None or action.outcome == "dry_run":
                continue
            nics.append(
                DesiredNic(
                    device=target.target.device,
                    desired=action.desired,
                    generation=action.generation,
                    op_id=action.op_id,
                    dry_run=action.dry_run,
                )
            )
        nics.sort(key=lambda nic: nic.device)
        stamp = ",".join(f"{nic.op_id}:{int(nic.dry_run)}" for nic in nics)
        return DesiredState(epoch=state.epoch, version=f"{state.epoch};{stamp}", nics=nics)

    async def _report(self, request: web.Request) -> web.Response:
        host = request.match_info["host"]
        try:
            report = msgspec.json.decode(await request.read(), type=Report)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=f"not a report: {error}\n")

        def change(state: State, at: float) -> Step:
            agent = AgentState(
                host=host,
                seen_at=at,
                devices=report.devices,
                connected=report.connected,
                processes=report.processes,
            )
            step = self._reconciler.on_agent(state, agent, at)
            for result in report.results:
                after = self._reconciler.on_result(
                    step.state,
                    result.op_id,
                    result.outcome,
                    result.verified,
                    result.processes,
                    result.message,
                    at,
                )
                step = Step(after.state, step.transitions + after.transitions)
            return step

        await self._engine.submit(change)
        return web.Response(text="noted\n")

    async def _wake_agents(self, transitions: list[Transition]) -> None:
        for entry in transitions:
            self._changed[entry.subject.partition("/")[0]].set()

    async def _episodes(self, _: web.Request) -> web.Response:
        return _json(sorted(self._engine.state.episodes.values(), key=lambda e: e.first_seen))

    async def _targets(self, _: web.Request) -> web.Response:
        return _json(sorted(self._engine.state.targets.values(), key=lambda t: t.target))

    async def _actions(self, _: web.Request) -> web.Response:
        return _json(sorted(self._engine.state.actions.values(), key=lambda a: (a.created_at, a.generation)))

    async def _events(self, request: web.Request) -> web.Response:
        after = int(_number(request.query.get("after", "0")))
        limit = min(10_000, int(_number(request.query.get("limit", "1000"))))
        return _json(await asyncio.to_thread(self._store.transitions, after, limit))

    async def _status(self, _: web.Request) -> web.Response:
        state = self._engine.state
        return _json(
            {
                "version": version("fabricpulse"),
                "epoch": state.epoch,
                "pause": state.pause,
                "breakers": list(state.breakers.values()),
                "agents": sorted(state.agents.values(), key=lambda a: a.host),
                "rules": self._config.rules,
                "heartbeat_age_s": time.monotonic() - self._engine.heartbeat,
            }
        )

    async def _pause(self, request: web.Request) -> web.Response:
        asked = await _object(request)
        reason, owner = str(asked.get("reason") or ""), str(asked.get("owner") or "unknown")
        if not reason:
            return web.Response(status=400, text="say why: reason is empty\n")
        duration = _number(str(asked.get("duration_s") or 0))
        await self._engine.submit(lambda s, at: self._reconciler.on_pause(s, reason, owner, at, duration))
        return web.Response(text="paused\n")

    async def _resume(self, request: web.Request) -> web.Response:
        owner = str((await _object(request)).get("owner") or "unknown")
        await self._engine.submit(lambda s, at: self._reconciler.on_resume(s, owner, at))
        return web.Response(text="resumed\n")

    async def _release(self, request: web.Request) -> web.Response:
        asked = await _object(request)
        target = Target(str(asked.get("host") or ""), str(asked.get("device") or ""))
        if target.key not in self._engine.state.targets:
            return web.Response(status=404, text=f"nothing is known of {target.key}\n")
        owner = str(asked.get("owner") or "unknown")
        await self._engine.submit(lambda s, at: self._reconciler.on_release(s, target, owner, at))
        return web.Response(text="released\n")

    # --- the truth -----------------------------------------------------------------------------------------------

    async def _pull_forever(self, session: aiohttp.ClientSession) -> None:
        if not self._config.alertmanagers:
            return
        while True:
            self._pull.clear()
            active, complete = await pull_active(session, self._config.alertmanagers)
            if active or complete:
                with suppress(StoreError):
                    await self._engine.submit(partial(self._on_truth, active, complete))
                    if complete:
                        self._truth_at = time.monotonic()
            wait_s = (
                self._config.reconcile_interval_s if complete else min(5.0, self._config.reconcile_interval_s)
            )
            await wait_at_most(self._pull, wait_s)

    # --- metrics -------------------------------------------------------------------------------------------------

    async def _metrics(self) -> bytes:
        state, counts, now = self._engine.state, self._engine.counts, time.time()
        out = Exposition()
        out.add(BUILD_INFO, (version("fabricpulse"), "remediation-receiver", python_version()), 1)
        for action in ("nic.avoid", "nic.restore"):
            for outcome in _OUTCOMES:
                out.add(metrics.ACTIONS, (action, outcome), counts["action", action, outcome])
        for reason in REASONS:
            out.add(metrics.BLOCKED, (reason,), counts["blocked", reason])
        for code, count in sorted(self._deliveries.items()):
            out.add(metrics.DELIVERIES, (str(code),), count)
        out.add(metrics.DEAD_LETTERS, (), self._dead_letters)
        for status in ("firing", "resolved", "expired"):
            out.add(metrics.EPISODES, (status,), sum(e.status == status for e in state.episodes.values()))
        out.add(metrics.TARGETS_OUT, (), sum(t.desired == "avoid" for t in state.targets.values()))
        pending = [a for a in state.actions.values() if a.outcome == "pending"]
        out.add(metrics.PENDING, (), len(pending))
        out.add(metrics.OLDEST_PENDING, (), max((now - a.created_at for a in pending), default=0.0))
        alive = sum(now - a.seen_at <= self._config.guards.agent_timeout_s for a in state.agents.values())
        out.add(metrics.AGENTS, ("alive",), alive)
        out.add(metrics.AGENTS, ("lost",), len(state.agents) - alive)
        out.add(metrics.PAUSED, (), int(state.pause is not None))
        for direction in ("failover", "failback"):
            out.add(metrics.BREAKER, (direction,), int(direction in state.breakers))
        out.add(metrics.HEARTBEAT, (), time.monotonic() - self._engine.heartbeat)
        out.add(metrics.TRUTH_AGE, (), -1 if self._truth_at is None else time.monotonic() - self._truth_at)
        out.add(metrics.JOURNAL_LINES, (), counts["transitions",])
        return out.render()


def _read_token(path: str) -> str:
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"cannot read token_file {path}: {error.strerror}") from error
    if not token:
        raise UserError(f"token_file {path} is empty; put the bearer token in it")
    return token


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        asked = msgspec.json.decode(await request.read() or b"{}")
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f"not JSON: {error}\n") from error
    if not isinstance(asked, dict):
        raise web.HTTPBadRequest(text="not a JSON object\n")
    return asked


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{text[:40]!r} is not a number\n") from error
    if not 0 <= value < 1e12:
        raise web.HTTPBadRequest(text=f"{text[:40]!r} is out of range\n")
    return value
