"""The operator API: state, journal, pause, resume, approve, release; used by the command line and by dashboards."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from fabricpulse.core.web.body_limit import body_limit
from fabricpulse.remediation.protocol import MAX_REPORT_BYTES
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.explain import explain, explain_alert
from fabricpulse.remediation.receiver.health import problems
from fabricpulse.remediation.receiver.payload import PayloadError, parse_alerts
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.model import Target
from fabricpulse.remediation.receiver.state.names import is_name
from fabricpulse.remediation.receiver.store.store import Store, StoreError
from fabricpulse.remediation.receiver.web.answers import Answers
from fabricpulse.remediation.receiver.web.auth import owner_of
from fabricpulse.remediation.receiver.web.http_json import json_answer, json_object, number

_EXPORT_PAGE = 1000
# Of deliveries, each up to 64 MiB, that one page has: at most so many, and no more once they have so many bytes.
_EXPORT_DELIVERIES, _EXPORT_BYTES = 20, 512 << 10
_MAX_EXPLAINED = 100
_MAX_SHOWN = 10_000
_READS_AT_ONCE = 2

T = TypeVar("T")


class OperatorApi:
    """State and journal to read; pause, resume, approve and release."""

    def __init__(
        self, loop: CommitLoop, reconciler: Reconciler, store: Store, not_ready: Callable[[], str]
    ) -> None:
        self._loop = loop
        self._reconciler = reconciler
        self._store = store
        self._not_ready = not_ready
        # One at a time, however many ask, and for a third of the time at most.
        self._explaining = asyncio.Lock()
        self._answers = Answers()
        # Long reads take threads that commits need as well: who may read must not hold up who may act.
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)

    async def _read(self, function: Callable[..., T], *arguments: Any) -> T:
        async with self._reading:
            return await asyncio.to_thread(function, *arguments)

    def add(self, router: web.UrlDispatcher) -> None:
        """Adds the routes."""
        router.add_get("/api/v1/status", self._status)
        router.add_get("/api/v1/episodes", self._episodes)
        router.add_get("/api/v1/targets", self._targets)
        router.add_get("/api/v1/actions", self._actions)
        router.add_get("/api/v1/events", self._events)
        router.add_get("/api/v1/dead_letters", self._dead_letters)
        router.add_get("/api/v1/export", self._export)
        router.add_get("/api/v1/verify", self._verify)
        router.add_get("/api/v1/explain", self._explain)
        router.add_post("/api/v1/explain", self._explain_alerts)
        router.add_get("/api/v1/plans", self._plans)
        router.add_get("/api/v1/rebalances", self._rebalances)
        router.add_get("/api/v1/drains", self._drains)
        router.add_get("/api/v1/show", self._show)
        router.add_post("/api/v1/approve", self._approve)
        router.add_post("/api/v1/pause", self._pause)
        router.add_post("/api/v1/resume", self._resume)
        router.add_post("/api/v1/release", self._release)
        router.add_post("/api/v1/forget", self._forget)

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return await self._answers.document(request, self._status_document)

    def _status_document(self) -> dict[str, Any]:
        state = self._loop.state
        seal = self._store.seal()
        return {
            "version": version("fabricpulse"),
            "now": self._loop.clock(),
            "epoch": state.epoch,
            "problems": problems(
                self._reconciler.config, state, self._loop.clock(), self._not_ready(), self._store.edited
            ),
            "pause": state.pause,
            "breakers": list(state.breakers.values()),
            "watchdog": state.watchdog,
            "polled_at": state.polled_at,
            "agents": sorted(state.agents.values(), key=lambda a: a.host),
            "rules": self._reconciler.config.rules,
            "journal": {"length": seal.length, "head": seal.head, "seal": seal.digest},
            "heartbeat_age_s": time.monotonic() - self._loop.heartbeat,
        }

    async def _explain(self, request: web.Request) -> web.Response:
        target = Target(request.query.get("host", ""), request.query.get("device", ""))
        if not is_name(target.host) or not is_name(target.device):
            raise web.HTTPBadRequest(text="host and device must be names\n")
        async with self._explaining:
            config, inventory = self._reconciler.config, self._reconciler.inventory
            begun = time.monotonic()
            found = explain(config, inventory, self._loop.state, target, self._loop.clock())
            await asyncio.sleep(2 * (time.monotonic() - begun))  # the others' share
        return json_answer(found)

    @body_limit(MAX_REPORT_BYTES)
    async def _explain_alerts(self, request: web.Request) -> web.Response:
        try:
            alerts = parse_alerts(await request.read())
        except PayloadError as error:
            raise web.HTTPBadRequest(text=f"{error}\n"[:500]) from error
        if len(alerts) > _MAX_EXPLAINED:
            raise web.HTTPBadRequest(text=f"at most {_MAX_EXPLAINED} alerts at once\n")
        found = []
        async with self._explaining:
            for alert in alerts:
                # Each looks at the whole fleet: between two of them webhooks and orders are answered.
                config, inventory = self._reconciler.config, self._reconciler.inventory
                begun = time.monotonic()
                found.append(explain_alert(config, inventory, self._loop.state, alert, self._loop.clock()))
                await asyncio.sleep(2 * (time.monotonic() - begun))
        return json_answer(found)

    async def _plans(self, request: web.Request) -> web.StreamResponse:
        return await self._answers.document(request, self._all_plans)

    def _all_plans(self) -> list[dict[str, Any]]:
        waiting = [t for t in self._loop.state.targets.values() if t.plan is not None]
        plans: list[dict[str, Any]] = [
            {"target": t.target, "plan": t.plan, "blocked": t.blocked} for t in waiting
        ]
        for plan in self._loop.state.rebalances.values():
            if plan.phase == "awaiting_approval":
                shown = {
                    "hash": plan.hash,
                    "action": plan.moves[0].operation,
                    "alert": "",
                    "reason": f"{plan.reason}, predicted gain {plan.predicted:.2f}",
                    "created_at": plan.created_at,
                    "approved_at": plan.approved_at,
                    "approved_by": plan.approved_by,
                }
                where = {"host": plan.workload, "device": f"{len(plan.moves)} lanes"}
                plans.append({"target": where, "plan": shown, "blocked": plan.blocked})
        for drain in self._loop.state.drains.values():
            if drain.phase == "awaiting_approval":
                names = ("hash", "alert", "reason", "created_at", "approved_at", "approved_by")
                shown = {name: getattr(drain, name) for name in names} | {"action": "host.drain"}
                where = {"host": drain.host, "device": ""}
                plans.append({"target": where, "plan": shown, "blocked": drain.blocked})
        return plans

    async def _drains(self, _: web.Request) -> web.Response:
        return json_answer(sorted(self._loop.state.drains.values(), key=lambda drain: drain.created_at))

    async def _rebalances(self, _: web.Request) -> web.Response:
        return json_answer(sorted(self._loop.state.rebalances.values(), key=lambda plan: plan.created_at))

    async def _show(self, request: web.Request) -> web.StreamResponse:
        """An operation, or a target, with its lines of the journal."""
        name = request.query.get("id", "")
        subject = name.rpartition("#")[0] or name
        lines = await self._read(self._store.lines_of, subject, _MAX_SHOWN)
        if subject != name:
            lines = [line for line in lines if line["detail"].get("op_id") == name]
        action = self._loop.state.actions.get(name)
        if not lines and action is None:
            hint = "give HOST/DEVICE, or an operation as `actions` lists it"
            raise web.HTTPNotFound(text=f"the journal has nothing about it; {hint}\n")
        return await self._answers.content(request, msgspec.json.encode({"action": action, "lines": lines}))

    async def _approve(self, request: web.Request) -> web.Response:
        asked = await json_object(request)
        plan, owner = _text(asked, "plan"), owner_of(request, _text(asked, "owner"))
        found: list[bool] = []
        operator = self._reconciler.operator
        await self._loop.order(lambda t, at: found.append(operator.approve(t, plan, owner, at)))
        if not any(found):
            text = "no such plan waits: it was approved, dropped, or is another one by now; see the plans\n"
            raise web.HTTPNotFound(text=text)
        return web.Response(text="approved\n")

    async def _episodes(self, request: web.Request) -> web.StreamResponse:
        return await self._answers.document(
            request, lambda: sorted(self._loop.state.episodes.values(), key=lambda e: e.first_seen)
        )

    async def _targets(self, request: web.Request) -> web.StreamResponse:
        return await self._answers.document(
            request, lambda: sorted(self._loop.state.targets.values(), key=lambda t: t.target)
        )

    async def _actions(self, request: web.Request) -> web.StreamResponse:
        return await self._answers.document(
            request,
            lambda: sorted(self._loop.state.actions.values(), key=lambda a: (a.created_at, a.generation)),
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        limit = min(10_000, int(number(request.query.get("limit", "1000"), "limit")))
        if "last" in request.query:
            after = max(0, self._store.seal().length - limit)
        else:
            after = int(number(request.query.get("after", "0"), "after"))
        return await self._lines(request, self._store.transitions, after, limit)

    async def _dead_letters(self, request: web.Request) -> web.StreamResponse:
        return await self._lines(request, self._store.dead_letters, 100)

    async def _lines(
        self, request: web.Request, read: Callable[..., Any], *arguments: int
    ) -> web.StreamResponse:
        return await self._answers.content(request, msgspec.json.encode(await self._read(read, *arguments)))

    async def _export(self, request: web.Request) -> web.StreamResponse:
        """The journal as one JSON object a line; with `deliveries`, the raw webhook bodies as well."""
        return await self._answers.lines(request, self._pages("deliveries" in request.query))

    async def _pages(self, with_deliveries: bool) -> AsyncIterator[bytes]:
        for read in (self._transitions, self._deliveries) if with_deliveries else (self._transitions,):
            after = 0
            while page := await self._read(read, after):
                after, content = page
                yield content

    # Encoded by the thread that reads: what a client does not take is bytes then, and not five times as much.

    def _transitions(self, after: int) -> tuple[int, bytes] | None:
        """A page of the journal after this line, and its last line."""
        lines = self._store.transitions(after, _EXPORT_PAGE)
        return (lines[-1]["id"], _ndjson({"kind": "transition", **line} for line in lines)) if lines else None

    def _deliveries(self, after: int) -> tuple[int, bytes] | None:
        """The same of deliveries: a few, or a single large one."""
        content, last = bytearray(), after
        with closing(self._store.deliveries(after, _EXPORT_DELIVERIES)) as deliveries:
            for last, delivery in deliveries:
                line = {
                    "kind": "delivery",
                    "id": last,
                    "received_at": delivery.received_at,
                    "sha256": delivery.sha256,
                    "body": delivery.body.decode("utf-8", "backslashreplace"),
                }
                content += _ndjson([line])
                if len(content) >= _EXPORT_BYTES:
                    break
        return (last, bytes(content)) if last > after else None

    async def _verify(self, _: web.Request) -> web.Response:
        try:
            length = await self._read(self._store.verify)
        except StoreError as error:
            return json_answer({"intact": False, "reason": str(error)})
        return json_answer(
            {
                "intact": True,
                "length": length,
                "head": self._store.seal().head,
                "seal": self._store.seal().digest,
            }
        )

    async def _pause(self, request: web.Request) -> web.Response:
        asked = await json_object(request)
        reason, owner = _text(asked, "reason"), owner_of(request, _text(asked, "owner"))
        if not reason:
            raise web.HTTPBadRequest(text="say why: reason is empty\n")
        duration = number(str(asked.get("duration_s") or 0), "duration_s")
        operator = self._reconciler.operator
        await self._loop.order(lambda t, at: operator.pause(t, reason, owner, at, duration))
        return web.Response(text="paused\n")

    async def _resume(self, request: web.Request) -> web.Response:
        owner = owner_of(request, _text(await json_object(request), "owner"))
        await self._loop.order(lambda t, at: self._reconciler.operator.resume(t, owner, at))
        return web.Response(text="resumed\n")

    async def _release(self, request: web.Request) -> web.Response:
        asked = await json_object(request)
        target = Target(_text(asked, "host"), _text(asked, "device"))
        if not target.device:
            return await self._release_host(target.host, owner_of(request, _text(asked, "owner")))
        owner = owner_of(request, _text(asked, "owner"))
        operator = self._reconciler.operator
        found: list[bool] = []
        await self._loop.order(lambda t, at: found.append(operator.release(t, target, owner, at)))
        if not any(found):
            raise web.HTTPNotFound(text=f"{target.key} is not out of service, or on its way back\n")
        return web.Response(text="released\n")

    async def _release_host(self, host: str, owner: str) -> web.Response:
        found: list[bool] = []
        operator = self._reconciler.operator
        await self._loop.order(lambda t, at: found.append(operator.release_host(t, host, owner, at)))
        if not any(found):
            raise web.HTTPNotFound(text=f"{host} was not drained\n")
        return web.Response(text="released\n")

    async def _forget(self, request: web.Request) -> web.Response:
        asked = await json_object(request)
        host, owner = _text(asked, "host"), owner_of(request, _text(asked, "owner"))
        state, now = self._loop.state, self._loop.clock()
        agent = state.agents.get(host)
        if agent is not None and now - agent.seen_at <= self._reconciler.config.guards.agent_timeout_s:
            raise web.HTTPConflict(text=f"the agent of {host} reports: stop it first\n")
        known = any(t.target.host == host for t in state.targets.values())
        known = known or any(drain.host == host for drain in state.drains.values())
        if agent is None and not known:
            raise web.HTTPNotFound(text=f"nothing is known of {host}\n")
        operator = self._reconciler.operator
        await self._loop.order(lambda t, at: operator.forget(t, host, owner, at))
        return web.Response(text="forgotten\n")


def _text(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key)
    return value[:500] if isinstance(value, str) else ""


def _ndjson(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
