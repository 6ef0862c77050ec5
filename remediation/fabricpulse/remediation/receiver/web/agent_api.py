"""The receiver's side of the node agents: the long poll for the desired state, and the reports."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

import msgspec
from aiohttp import web

from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.log import get_logger
from fabricpulse.core.log_limit import LogLimit
from fabricpulse.core.output import printable
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.core.web.body_limit import body_limit
from fabricpulse.core.web.connections import network_of
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.protocol import (
    MAX_LANE_ORDERS,
    MAX_NAME,
    MAX_REPORT_BYTES,
    UNKNOWN_HOST,
    DesiredNic,
    DesiredState,
    Envelope,
    Report,
)
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.counted_hosts import counted_hosts
from fabricpulse.remediation.receiver.state.in_flight import valid_until, withheld
from fabricpulse.remediation.receiver.state.model import AgentState, Held
from fabricpulse.remediation.receiver.state.names import is_name
from fabricpulse.remediation.receiver.state.retention import forget_hosts
from fabricpulse.remediation.receiver.state.transaction import Transaction, Transition
from fabricpulse.remediation.receiver.web.agent_room import AgentRoom
from fabricpulse.remediation.receiver.web.auth import Principal, certificate_names
from fabricpulse.remediation.receiver.web.host_lines import SOURCE_BURST, SOURCE_LINES_PER_S, HostLines
from fabricpulse.remediation.receiver.web.http_json import json_answer, number
from fabricpulse.remediation.receiver.web.report_decoding import decode_report
from fabricpulse.remediation.receiver.web.reporters import Reporters

log = get_logger(__name__)

MAX_WAIT_S = 30.0
_MAX_VERSION = 500
# That a host's reports are refused is logged so often for each reason (s), of so many hosts in that time.
_WARNED_EVERY_S = 600.0
_MOST_WARNED = 100
_COUNTED_S = 5.0


class AgentApi:
    """`GET …/desired` and `POST …/report`, for hosts of the inventory, or for any host without one."""

    def __init__(
        self,
        loop: CommitLoop,
        reconciler: Reconciler,
        life: Lifetime,
        seal: Callable[[bytes], Envelope],
        lease_left_s: Callable[[], float],
    ) -> None:
        """seal : puts a payload into an envelope, signed if there is a key. lease_left_s : see Database."""
        self.seal = seal
        self._lease_left_s = lease_left_s
        self._loop = loop
        self._reconciler = reconciler
        self._life = life
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._room = AgentRoom()
        self._reporters = Reporters()
        self._lines = HostLines()
        self._source_lines = HostLines(SOURCE_BURST, SOURCE_LINES_PER_S)
        self.refused: Counter[str] = Counter()
        self._warnings = LogLimit(_WARNED_EVERY_S, _MOST_WARNED)
        self._counted_hosts: frozenset[str] = frozenset()
        self._counted_at = float("-inf")

    def add(self, router: web.UrlDispatcher) -> None:
        """Adds the routes."""
        router.add_get("/api/v1/agents/{host}/desired", self._desired)
        router.add_post("/api/v1/agents/{host}/report", self._report)

    def wake(self, transitions: list[Transition]) -> None:
        """Answers the agents of the hosts that `transitions` are about."""
        for host in {entry.subject.partition("/")[0] for entry in transitions}:
            for event in self._waiting.get(host, ()):
                event.set()

    def wake_all(self) -> None:
        """Answers everybody for whom something has changed, or all if the receiver stops."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    def _host(self, request: web.Request) -> str:
        host = request.match_info["host"]
        inventory = self._reconciler.inventory
        if inventory and host not in inventory:
            raise web.HTTPNotFound(text=f"{UNKNOWN_HOST}\n")
        if self._reconciler.config.agent_certificates and host not in certificate_names(request):
            raise web.HTTPForbidden(text="the client certificate is not this host's\n")
        principal: Principal = request["principal"]
        if principal.host and principal.host != host:
            raise web.HTTPForbidden(text="the token is another host's\n")
        if not is_name(host):
            raise web.HTTPBadRequest(text="not the name of a host\n")
        return host

    def _address(self, request: web.Request) -> str:
        """The address that reports for a host; "" where no other can."""
        principal: Principal = request["principal"]
        if principal.host or self._reconciler.config.agent_certificates:
            return ""
        # None of a Unix socket: what is behind it is a proxy.
        return network_of(request.remote) if request.remote else "local"

    def _source(self, request: web.Request, host: str) -> str:
        """The same, and "" where the host is known to exist."""
        return "" if host in self._reconciler.inventory else self._address(request)

    def _counted(self, now: float) -> Collection[str]:
        """Hosts whose lanes count: forged ones of others made plans that cannot help, after some of which there
        is none any more. Some seconds old."""
        if not 0 <= now - self._counted_at < _COUNTED_S:
            agents = counted_hosts(self._loop.state.agents.values(), self._reconciler.inventory)
            self._counted_hosts, self._counted_at = frozenset(agent.host for agent in agents), now
        return self._counted_hosts

    async def _desired(self, request: web.Request) -> web.Response:
        """Long poll: answers at once when the desired state of the host is not the one of `version`."""
        host = self._host(request)
        after = request.query.get("version", "")
        deadline = time.monotonic() + min(MAX_WAIT_S, number(request.query.get("wait", "0"), "wait"))
        event = asyncio.Event()
        self._waiting.setdefault(host, set()).add(event)
        try:
            while True:
                event.clear()
                desired = self._desired_of(host)
                left = deadline - time.monotonic()
                if desired.version != after or left <= 0 or not self._life.is_ready:
                    break
                await wait_with_timeout(event, left)
        finally:
            self._waiting[host].discard(event)
            if not self._waiting[host]:
                del self._waiting[host]
        while new := self._unsent(desired):  # in the journal before it is on the wire
            await self._loop.submit(partial(self._on_sent, new))
            failpoints.reach("receiver.before_sending")
            # An operator may have paused while that was written.
            desired = self._desired_of(host)
        return json_answer(self.seal(msgspec.json.encode(self._stamped(desired))))

    def _unsent(self, desired: DesiredState) -> list[str]:
        actions = self._loop.state.actions
        return [
            nic.op_id
            for nic in desired.nics
            if nic.op_id in actions
            and actions[nic.op_id].outcome == "pending"
            and not actions[nic.op_id].sent_at
        ]

    def _on_sent(self, op_ids: list[str], transaction: Transaction, now: float) -> None:
        self._reconciler.results.on_sent(transaction, op_ids, now)

    def _stamped(self, desired: DesiredState) -> DesiredState:
        """With the end of its validity. By the wall clock: the agents compare it with theirs.

        Not beyond the lease: what a receiver says that was stopped on its way out, and led no more when it came back,
        is void. Nor is a failover valid for longer than its decision. Raises HTTPServiceUnavailable for one that has no
        lease.
        """
        left_s = self._lease_left_s()
        if left_s <= 0:
            raise web.HTTPServiceUnavailable(text="this receiver does not lead\n")
        config, actions, now = self._reconciler.config, self._loop.state.actions, self._loop.clock()
        wall = time.time()
        nics = []
        for nic in desired.nics:
            action = actions.get(nic.op_id)
            left = valid_until(config, action) - now if action is not None else float("inf")
            limited = left < float("inf")
            nics.append(msgspec.structs.replace(nic, not_after=wall + left) if limited else nic)
        return msgspec.structs.replace(
            desired, not_after=wall + min(config.intent_valid_s, left_s), nics=nics
        )

    def _desired_of(self, host: str) -> DesiredState:
        state, now = self._loop.state, self._loop.clock()
        nics = []
        for key in state.targets_of_host.of(state.targets, host):
            target = state.targets[key]
            action = state.actions.get(target.op_id)
            if action is None or action.outcome == "dry_run":
                continue
            if withheld(self._reconciler.config, state, action, now):
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
        rebalancer = self._reconciler.rebalancer
        lanes = rebalancer.orders(state, host, now)[:MAX_LANE_ORDERS]
        stamp = ",".join([*(nic.op_id for nic in nics), *(order.op_id for order in lanes)])
        version = f"{state.epoch};{stamp};{int(rebalancer.is_on)}"
        if len(version) > _MAX_VERSION:  # it comes back in the address of the next request
            version = f"{state.epoch};{hashlib.sha256(version.encode()).hexdigest()}"
        return DesiredState(host, state.epoch, version, nics, 0.0, lanes, rebalancer.is_on)

    @body_limit(MAX_REPORT_BYTES)
    async def _report(self, request: web.Request) -> web.Response:
        host = self._host(request)
        try:
            report = decode_report(await request.read())
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise web.HTTPBadRequest(text="not a report\n") from error
        report = _with_printable_names(report)
        source, address = self._source(request, host), self._address(request)
        lost_s = self._reconciler.config.guards.agent_timeout_s
        if address and not self._reporters.admits(host, address, self._loop.clock(), lost_s):
            self.refused["address"] += 1
            self._warn(host, "another address reports for it; give agents tokens of their own", address)
            raise web.HTTPForbidden(text="another address reports for this host\n")
        left = self._room.make_room(host, report, self._loop.state.agents, source)
        if left is None:
            self.refused["room"] += 1
            text = "agents of more hosts or NICs report than any fleet has: give the receiver a membership file\n"
            raise web.HTTPServiceUnavailable(text=text)

        admitted = True

        def change(transaction: Transaction, now: float) -> None:
            nonlocal admitted
            forget_hosts(transaction, [name for name in left if name in transaction.agents])
            before = transaction.mark()
            held = {device: Held(nic.desired, nic.generation) for device, nic in report.held.items()}
            agent = AgentState(
                host=host,
                seen_at=now,
                devices=report.devices,
                connected=report.connected,
                health=report.health,
                held=held,
                processes=report.processes,
                workloads=tuple(report.workloads),
                users=tuple(report.users),
                source=source,
            )
            self._reconciler.observed.on_agent(transaction, agent, now)
            for result in report.results:
                self._reconciler.results.on_result(transaction, host, result, now)
                self._reconciler.rebalancer.on_result(transaction, host, result, now)
            lines = len(transaction.transitions) - before[1]
            admitted = not source or self._source_lines.take(source, lines, now)
            admitted = admitted and self._lines.take(host, lines, now)
            if not admitted:
                transaction.rollback(before)
                return
            self._reconciler.traffic.add(host, report.carried_at_s, report.carried_bytes, now)
            if report.lanes and self._reconciler.rebalancer.is_on and host in self._counted(now):
                self._reconciler.evidence.add(host, report.lanes, now)

        await self._loop.submit(change)
        if not admitted:
            self.refused["lines"] += 1
            self._warn(host, "they cause too many journal lines", address)
            raise web.HTTPTooManyRequests(text="too many journal lines from this host: try again later\n")
        failpoints.reach("receiver.after_report")
        return web.Response(text="noted\n")

    def _warn(self, host: str, reason: str, address: str) -> None:
        if self._warnings.allows(f"{host} {reason}"):
            suppressed = self._warnings.take_suppressed()
            log.warning(
                "reports are refused", host=host, reason=reason, address=address, suppressed=suppressed
            )


def _with_printable_names(report: Report) -> Report:
    """The report, with names of jobs that are text: processes say them, and they become subjects of the journal."""
    lanes, workloads = report.lanes, report.workloads
    if all(lane.workload.isprintable() for lane in lanes) and all(map(str.isprintable, workloads)):
        return report
    named = [msgspec.structs.replace(lane, workload=printable(lane.workload)[:MAX_NAME]) for lane in lanes]
    return msgspec.structs.replace(
        report, lanes=named, workloads=[printable(name)[:MAX_NAME] for name in workloads]
    )
