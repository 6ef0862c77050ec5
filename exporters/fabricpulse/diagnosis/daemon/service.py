"""The diagnosis as a part of a daemon: takes reports over HTTP, has a process diagnose several times a second, answers
with metrics and JSON, pushes what is located to Alertmanager.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
from aiohttp import web
from msgspec import structs

from fabricpulse.core.alerting.metrics import expose_pushes
from fabricpulse.core.boot import boot_id
from fabricpulse.core.log import get_logger
from fabricpulse.core.metrics.common import COLLECTOR_SUCCESS
from fabricpulse.core.metrics.exposition import Exposition
from fabricpulse.core.supervision import SupervisedTasks
from fabricpulse.core.web.body_limit import body_limit
from fabricpulse.core.web.urls import redact
from fabricpulse.diagnosis.daemon import metrics as m
from fabricpulse.diagnosis.daemon.alerts import FaultAlerting, FaultPusher
from fabricpulse.diagnosis.daemon.fault_times import FaultTimes
from fabricpulse.diagnosis.daemon.fault_times_file import FaultTimesFile
from fabricpulse.diagnosis.daemon.leaf_paths_api import expose_leaf_paths, leaf_paths_document
from fabricpulse.diagnosis.daemon.outside_fleet import MOST_EDGES, HostsOutsideFleet
from fabricpulse.diagnosis.daemon.page import POLICY, suspects_page
from fabricpulse.diagnosis.daemon.process import DiagnosisProcess
from fabricpulse.diagnosis.daemon.queue_pairs import Crossing, QueuePairPaths, crossing_document
from fabricpulse.diagnosis.daemon.switch_names import SwitchNames, SwitchNaming
from fabricpulse.diagnosis.daemon.topology_api import expose_topology, topology_json
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared, Report
from fabricpulse.diagnosis.leaf_paths.found import LeafPaths
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.diagnosis.tree.findings import LEASE_S, AssignedPeers
from fabricpulse.diagnosis.tree.surveyed import Surveyed
from fabricpulse.diagnosis.wire.delay_records import unpack_delays
from fabricpulse.diagnosis.wire.flow_records import unpack_flows
from fabricpulse.diagnosis.wire.messages import (
    EVIDENCE_PATH,
    MOST_BYTES,
    PROTOCOL,
    EvidenceReply,
    EvidenceReport,
    check_edges,
    check_queue_pairs,
)

log = get_logger(__name__)

SUSPECTS_PATH, PAGE_PATH = "/api/v1/suspects", "/suspects"
TOPOLOGY_PATH = "/api/v1/topology"
# A host that has not reported for so long is asked for its edges again; the worker forgets it later than that.
_FORGET_S = 60.0
# After a round that has failed those of the last one that did not are kept for so long.
_KEEP_SUSPECTS_S = 60.0
_decoder = msgspec.msgpack.Decoder(EvidenceReport)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class _Known:
    """What the worker has of a host."""

    revision: int
    edges: int
    ports: int
    last_report_s: float


class DiagnosisService:
    """Of one coordinator. accepts : whether a request may report, by its Authorization header."""

    def __init__(
        self,
        declared: Declared,
        accepts: Callable[[str], bool],
        alerting: FaultAlerting | None = None,
        network_of: Callable[[str], str] = lambda _: "",
        naming: SwitchNaming | None = None,
        is_member: Callable[[str], bool] = lambda _: True,
        most_edges_outside: int = MOST_EDGES,
        fault_times: str | None = None,
    ) -> None:
        """accepts : see the class. network_of : that of all NICs below a leaf, "" if they have several or none.
        naming : of switches that are not declared. is_member : whether a host, by name, belongs to the fleet; others
        may have most_edges_outside edges together. fault_times : file in which it is kept since when what is faulty is
        so, "" for one in the run directory, None for none.
        """
        self._accepts = accepts
        self._network_of = network_of
        self._alertmanagers = alerting.alertmanagers if alerting is not None else ()
        self.pusher = FaultPusher(alerting or FaultAlerting(), time.time)
        self.process = DiagnosisProcess(declared, self._answered)
        self._names = SwitchNames(naming or SwitchNaming(), declared.switch_of, self._put_names)
        self._outside_fleet = HostsOutsideFleet(is_member, most_edges_outside)
        self._refuses_hosts = False
        self.queue_pairs = QueuePairPaths(declared.leaf_of, declared.switch_of)
        self._known: dict[str, _Known] = {}
        self._pruned_s = 0.0
        self._worker = 0  # that has the edges of `_known`
        self._times = FaultTimes(boot_id())
        self._times_file = None if fault_times is None else FaultTimesFile(self._times, fault_times)
        self.suspects: tuple[Suspect, ...] = ()
        self.leaf_paths = LeafPaths()
        self._found_s = -math.inf  # when suspects were last known
        self._refused = 0
        self._surveyed: Surveyed | None = None
        self._surveyed_by = 0  # the worker that it is from
        self._keep_s = declared.keep_s
        self._assigned, self._assigned_by = AssignedPeers(), 0  # and the worker that it is from

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Where exporters report and people look."""
        router.add_post(EVIDENCE_PATH, self.serve_evidence)
        router.add_get(SUSPECTS_PATH, self.serve_suspects)
        router.add_get(PAGE_PATH, self.serve_page)
        router.add_get(TOPOLOGY_PATH, self.serve_topology)

    @body_limit(MOST_BYTES)
    async def serve_evidence(self, request: web.Request) -> web.Response:
        """POST /api/v1/evidence: an EvidenceReport; the reply is an EvidenceReply."""
        if not self._accepts(request.headers.get("Authorization", "")):
            text = "this coordinator asks for a bearer token: evidence.http_client.token_file of the mesh exporter\n"
            return web.Response(status=401, text=text, headers={"WWW-Authenticate": "Bearer"})
        try:
            report = _decoder.decode(await request.read())
            if report.protocol != PROTOCOL:
                raise ValueError(f"protocol {report.protocol}, this coordinator speaks {PROTOCOL}")
            reply = self.reply(report, time.monotonic())
        except (msgspec.MsgspecError, ValueError) as error:
            self._refused += 1
            return web.Response(status=400, text=f"not a report of evidence: {error}\n")
        return web.Response(body=_encoder.encode(reply), content_type="application/msgpack")

    def reply(self, report: EvidenceReport, now_s: float) -> EvidenceReply:
        """Takes a report; the reply has the temporary peers of the host, which end with their round also if the worker
        says nothing any more. Raises ValueError.
        """
        if self.take(report, now_s):
            return EvidenceReply(True)
        if (leaves := report.all_leaves) is not None:
            self.queue_pairs.place(report.host, leaves)
        refused = self._take_queue_pairs(report, now_s)
        assigned = self._assigned if self._assigned_by == self.process.starts else AssignedPeers()
        lease_s = min(LEASE_S, assigned.until_s - now_s)
        edges = assigned.edges.get(report.host, b"")
        if not edges or lease_s <= 0:
            return EvidenceReply(False, refused_queue_pairs=refused)
        return EvidenceReply(False, edges, lease_s, assigned.number, assigned.period_s, refused)

    def take(self, report: EvidenceReport, now_s: float) -> bool:
        """Hands the evidence over. Returns whether the host has to send it again, with its edges. Raises ValueError."""
        if self._worker != self.process.starts:
            self._known, self._worker = {}, self.process.starts
            self._names.worker_is_new()
        if now_s - self._pruned_s > _FORGET_S:
            self._known = {n: k for n, k in self._known.items() if now_s - k.last_report_s <= _FORGET_S}
            self._pruned_s = now_s
            self.queue_pairs.keep(self._known)
        check_edges(report)
        check_queue_pairs(report.queue_pairs)
        self._admit(report, now_s)
        known = self._known.get(report.host)
        if report.edges is not None:
            known = _Known(report.revision, len(report.edges), report.ports, now_s)
        elif known is None or known.revision != report.revision or now_s - known.last_report_s > _FORGET_S:
            self.process.want()
            return True
        unpack_flows(report.flows, known.edges, known.ports)
        for path in report.paths:
            path.check(known.edges, known.ports)
            self._names.saw(path.hops, now_s)
        unpack_delays(report.delays, known.edges)
        unpack_delays(report.temporary_delays, len(report.temporary))
        # Paths of queue pairs are no evidence: the worker has no use for them.
        evidence = structs.replace(report, queue_pairs=()) if report.queue_pairs else report
        if not self.process.put(Report(now_s, evidence)):
            return True
        self._known[report.host] = replace(known, last_report_s=now_s)
        return False

    def _take_queue_pairs(self, report: EvidenceReport, now_s: float) -> tuple[int, ...]:
        """Of a report that was taken; which of them are not kept."""
        if report.edges is not None:
            self.queue_pairs.forget(report.host)
        for pair in report.queue_pairs:
            self._names.saw(pair.hops, now_s)
        return self.queue_pairs.take(report.host, report.queue_pairs)

    def _admit(self, report: EvidenceReport, now_s: float) -> None:
        """Raises ValueError where hosts outside the membership are too many."""
        if self._outside_fleet.admits(
            report.host, None if report.edges is None else len(report.edges), now_s
        ):
            return
        if not self._refuses_hosts:
            self._refuses_hosts = True
            log.warning(
                "evidence of hosts that are in no membership is refused: there is too much; list them, or set a token",
                host=report.host,
            )
        raise ValueError("too many hosts that are not in the membership report")

    def _put_names(self, names: dict[str, str]) -> bool:
        return self.process.put(Report(time.monotonic(), None, names))

    async def serve_suspects(self, _: web.Request) -> web.Response:
        """GET /api/v1/suspects: what is faulty now, the surest first, and leaves with fewer live paths."""
        return web.json_response(self._document())

    async def serve_topology(self, _: web.Request) -> web.Response:
        """GET /api/v1/topology: the tree of the fabric as it was last computed, and what is missing for it."""
        body = topology_json(self.last_survey, self._keep_s, time.monotonic())
        return web.Response(body=body, content_type="application/json")

    @property
    def last_survey(self) -> Surveyed | None:
        """Of the worker that is there: what one that has died has found may be true no more."""
        return self._surveyed if self._surveyed_by == self.process.starts else None

    async def serve_page(self, _: web.Request) -> web.Response:
        """GET /suspects: the same for a browser."""
        page = suspects_page(self._document())
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        return web.Response(text=page, content_type="text/html", headers=headers)

    def _document(self) -> dict[str, Any]:
        now, answer = time.monotonic(), self.process.answer
        suspects = [
            {
                **{k: v for k, v in asdict(s).items() if k != "since_s"},
                "age_s": round(now - s.since_s, 1),
                "queue_pairs": crossing_document(self._crossing(s)),
            }
            for s in self.suspects
        ]
        return {
            "hosts": answer.hosts,
            "flows": answer.flows,
            "paths": answer.paths,
            "fails": self._fails(),
            "suspects": suspects,
            "leaf_paths": leaf_paths_document(self.leaf_paths, now, time.time_ns()),
        }

    def _fails(self) -> bool:
        """The last round has, or there has been none for a minute though hosts report."""
        silent = time.monotonic() - self._found_s > _KEEP_SUSPECTS_S
        return bool(self.process.starts) and (self.process.answer.failed or silent)

    def _crossing(self, suspect: Suspect) -> Crossing:
        return self.queue_pairs.crossing(
            suspect.kind, suspect.component, suspect.peer, self._names.addresses()
        )

    async def start(self, tasks: SupervisedTasks) -> None:
        """Diagnoses from now on, several times a second; less often where that takes long. Raises ConfigError when a
        file of alerting.http_client cannot be used.
        """
        await self.pusher.open()
        if self._times_file is not None and self._times_file.open():
            tasks.start("times of faults", self._times_file.run())
        for url in self._alertmanagers:
            tasks.start(f"alerts for {redact(url)}", self.pusher.serve(url))
        tasks.start("diagnosis", self.process.run())
        tasks.start("names of switches", self._names.run())

    async def flush(self) -> None:
        """Sends the alerts that are due still; while the tasks run."""
        if self._alertmanagers:
            await self.pusher.flush()

    async def close(self) -> None:
        """Disconnects from the Alertmanagers; once the tasks have ended, for a push under way needs its client."""
        await self.pusher.close()
        if self._times_file is not None:
            self._times_file.close()

    def _answered(self, answer: Answer) -> None:
        now_s, utc_s = time.monotonic(), time.time()
        self._times.follow(self.process.starts)
        if answer.failed and answer.leaf_paths == LeafPaths():
            self.leaf_paths = answer.leaf_paths  # nothing is known of them
        else:
            self.leaf_paths = self._times.leaf_paths(answer.leaf_paths, now_s, utc_s)
        if answer.suspects is not None:
            self._found_s = now_s
            self._publish(self._times.suspects(answer.suspects, now_s, utc_s))
        elif now_s - self._found_s > _KEEP_SUSPECTS_S:
            self._publish(())
        if answer.surveyed is not None:
            self._surveyed, self._surveyed_by = answer.surveyed, self.process.starts
        if answer.assigned is not None:
            self._assigned, self._assigned_by = answer.assigned, self.process.starts

    def _publish(self, found: tuple[Suspect, ...]) -> None:
        def names(suspects: tuple[Suspect, ...]) -> dict[tuple[str, str, str, str], Suspect]:
            return {(s.what, s.kind, s.component, s.peer): s for s in suspects}

        found = tuple(replace(s, network=self._network_of(s.leaf)) if s.leaf else s for s in found)
        before, after = names(self.suspects), names(found)
        for key, suspect in after.items():
            if key not in before:
                log.warning(
                    "fault located",
                    what=suspect.what,
                    kind=suspect.kind,
                    component=suspect.component,
                    peer=suspect.peer,
                    affected=round(suspect.share, 4),
                    confidence=round(suspect.confidence, 3),
                    alternatives=suspect.alternatives[:3],
                    jobs=self._crossing(suspect).jobs,
                )
        for key in before.keys() - after.keys():
            log.info("fault gone", what=key[0], kind=key[1], component=key[2], peer=key[3])
        self.suspects = found
        self.pusher.follow(found)

    def write(self, out: Exposition) -> None:
        """Adds the metrics."""
        out.add(m.EVIDENCE_HOSTS, (), self.process.answer.hosts)
        out.add(m.EVIDENCE_FLOWS, (), self.process.answer.flows)
        out.add(m.EVIDENCE_PATHS, (), self.process.answer.paths)
        out.add(m.EVIDENCE_REPORTS, (), self.process.answer.reports)
        out.add(m.EVIDENCE_REFUSED, (), self._refused)
        out.add(m.QUEUE_PAIR_PATHS, (), len(self.queue_pairs))
        out.add(m.QUEUE_PAIR_PATHS_REFUSED, (), self.queue_pairs.refused)
        out.add(m.DIAGNOSIS_SECONDS, (), self.process.answer.took_s)
        if self.process.starts:
            out.add(COLLECTOR_SUCCESS, ("diagnosis",), int(not self._fails()))
        expose_pushes(self.pusher.pushes, out)
        expose_topology(out, self.last_survey, self._keep_s, time.monotonic())
        expose_leaf_paths(out, self.leaf_paths, time.monotonic(), time.time())
        for suspect in self.suspects:
            values = (suspect.what, suspect.kind, suspect.component, suspect.peer)
            out.add(m.FAULT, (*values, suspect.leaf, suspect.network), suspect.confidence)
            out.add(m.FAULT_SHARE, values, suspect.share)
            out.add(m.FAULT_FLOWS, values, suspect.flows)
