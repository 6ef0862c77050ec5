"""What a run of a fleet measures between NICs: echoes, transfers, and beside them what switches say of themselves."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from fabricpulse.audit.checks.fleet import host_silent
from fabricpulse.audit.compare.wiring import LldpReports, Place, located, wiring_findings
from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.paths import ECHO_KINDS, Echoes, unreachable
from fabricpulse.audit.fleet.progress import showing
from fabricpulse.audit.fleet.ring import gpu_hosts, ring_hosts, run_nccl, run_rings
from fabricpulse.audit.fleet.run import AgentError, Target, ask, cancelling, until
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.fleet.transfers import FleetTransfers
from fabricpulse.audit.host.lldp import Neighbour
from fabricpulse.audit.model import Finding, HostReport, Measurement, Ring
from fabricpulse.audit.node.wire import NEIGHBOURS_PATH, NeighboursAnswer, NeighboursRequest
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.coverage import kinds_of, uncovered
from fabricpulse.audit.pair_tests.ecmp import ecmp_findings
from fabricpulse.audit.pair_tests.front_end import front_end_rails, judged
from fabricpulse.audit.pair_tests.in_band import in_band_findings, in_band_note
from fabricpulse.audit.pair_tests.path_tests import (
    PathDirections,
    Rail,
    coverage_note,
    path_findings,
)
from fabricpulse.audit.pair_tests.ring_tests import ring_findings, ring_notes, without_ring
from fabricpulse.audit.pair_tests.transfer_tests import Transfers, untested_findings
from fabricpulse.core.web.client_config import HttpClientConfig


@dataclass(frozen=True)
class Plan:
    """What is to be measured. rails : None for no test of paths. leaves : of NICs, as far as known. transfers : None
    for none. places : where cables should go, {} not to ask. listen_s : how long hosts listen for that. before : what
    an interrupted run has measured. ring_s : of each ring of the NCCL plugin, 0 for none. order : of its hosts.
    most_rounds : of pairs of the front end, 2·log2 n if None."""

    rails: Mapping[str, Rail] | None = None
    leaves: Mapping[Nic, str] = field(default_factory=dict)
    transfers: Transfers | None = None
    places: Mapping[Nic, Place] = field(default_factory=dict)
    listen_s: float = 35.0
    before: Sequence[Measurement] = ()
    ring_s: float = 0.0
    order: Sequence[str] = ()
    most_rounds: int | None = None


@dataclass
class Measured:
    """What has come of it. notes : lines for people. cancelled : not all of it was waited for. located : NICs of
    which it is known where their cables go."""

    measurements: list[Measurement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cancelled: bool = False
    rings: list[Ring] = field(default_factory=list)
    located: list[Nic] = field(default_factory=list)


async def measure(
    plan: Plan,
    wanted: Sequence[Target],
    config: HttpClientConfig,
    reports: Sequence[HostReport],
    keep: Callable[[Sequence[Measurement]], None],
) -> Measured:
    """Measures; Ctrl-C ends it with what there is. An agent that does not answer costs its own tests. keep : is given
    all measurements so far, now and then."""
    found = Measured(list(plan.before))
    stop = asyncio.Event()
    with ExitStack() as stack:
        stack.enter_context(cancelling(stop))
        # Hosts listen while they test: what they hear comes by itself.
        listening = asyncio.create_task(_neighbours(plan, wanted, config, stop))
        try:
            if plan.rails is not None:
                await _test(plan, plan.rails, wanted, config, reports, keep, stop, found)
            if plan.places and not stop.is_set():
                with showing("wiring") as shown:
                    shown.update("listening", 0, 1, "")
                    lldp = await listening
                    of_cables = wiring_findings(plan.places, lldp)
                    found.findings += of_cables
                    found.located = located(plan.places, lldp, of_cables)
        finally:
            found.cancelled = stop.is_set()
            stop.set()
            await listening
    return found


async def _test(
    plan: Plan,
    rails: Mapping[str, Rail],
    wanted: Sequence[Target],
    config: HttpClientConfig,
    reports: Sequence[HostReport],
    keep: Callable[[Sequence[Measurement]], None],
    stop: asyncio.Event,
    found: Measured,
) -> None:
    with showing("testing") as shown:
        agents = {target.host: target for target in wanted}
        fronts = front_end_rails(reports, rails, plan.most_rounds)
        echoed = {**rails, **fronts}
        fleet = Fleet(agents, config, PathDirections(echoed, reports), plan.leaves, stop, shown.update)
        echoes = Echoes(fleet)
        passed, notes = judged(await echoes.run(echoed, plan.before))
        keep(passed)
        found.notes += [coverage_note(echoed), *echoes.notes, *notes]
        untested = dict(echoes.untested)
        if plan.transfers is not None and not stop.is_set():
            tests = FleetTransfers(fleet, plan.transfers, lambda more: keep([*passed, *more]))
            # Between NICs that do not reach one another there is nothing to measure, and much to wait for.
            more = await tests.run(rails, plan.before, unreachable(passed))
            untested |= tests.untested
            found.notes += tests.notes
        else:
            more = [m for m in plan.before if m.kind not in ECHO_KINDS]
        if plan.ring_s and not stop.is_set():
            hosts = ring_hosts(rails, plan.leaves, plan.order)
            if left_out := len({nic[0] for rail in rails.values() for nic, _ in rail.nics}) - len(hosts):
                found.notes.append(f"NCCL ring: of {len(hosts)} hosts at most, {left_out} more are in none")
            found.rings = await run_rings(fleet, hosts, plan.ring_s, more)
            if not found.rings and not stop.is_set():
                found.findings += without_ring({nic[0] for rail in rails.values() for nic, _ in rail.nics})
            itself = await run_nccl(fleet, hosts, gpu_hosts(reports), plan.ring_s, more)
            if itself is not None:
                found.rings.append(itself)
            elif not stop.is_set():
                found.notes.append("NCCL itself, by torch: not run, fewer than two hosts have an NVIDIA GPU")
    found.measurements = [*passed, *more]
    of_paths = _of_paths(found.measurements, fleet.silence.last())
    of_fronts = {nic for front in fronts.values() for nic, _ in front.nics}
    if not stop.is_set():
        untested = uncovered(rails, found.measurements, kinds_of(plan.transfers), of_paths) | untested
        found.findings += _fell_silent(fleet, untested)
    found.findings += of_paths + untested_findings(untested, of_fronts)
    found.findings += ring_findings(found.rings) + in_band_findings(found.rings)
    found.notes += ring_notes(found.rings) + in_band_note(found.rings)


def _of_paths(measured: Sequence[Measurement], silent: Collection[str]) -> list[Finding]:
    """What tests say of paths. silent : hosts that have stopped answering amid the tests, or at their end. One that has
    lost its power is reached from then on by nobody, who had reached it before: that is no fault of single paths, while
    its NIC may well be found dead."""
    found = path_findings(measured) + ecmp_findings(measured)
    if not silent:
        return found
    others = [m for m in measured if m.ok is not False or not {m.source_host, m.target_host} & {*silent}]
    found = [finding for finding in found if finding.host in silent]
    return found + path_findings(others) + ecmp_findings(others)


def _fell_silent(fleet: Fleet, untested: dict[Nic, str]) -> list[Finding]:
    """Hosts that had answered, and do not any more. untested : gets those that one request alone had no answer from,
    which a busy host may be."""
    found = []
    for host in sorted(fleet.silence.last()):
        if fleet.silence.silent(host):
            text = "no answer any more: its agent has fallen silent amid the tests of paths"
            found.append(host_silent.CHECK.finding(host, "", text, {"during": "tests of paths"}))
        elif all(nic[0] != host for nic in untested):
            untested[host, ""] = "its agent did not answer the last request"
    return found


async def _neighbours(
    plan: Plan, wanted: Sequence[Target], config: HttpClientConfig, stop: asyncio.Event
) -> LldpReports:
    """What all hosts hear at the same time."""
    neighbours: dict[Nic, Neighbour] = {}
    reasons: dict[Nic, str] = {}
    devices: dict[str, list[str]] = {}
    for host, device in sorted(plan.places):
        devices.setdefault(host, []).append(device)
    patient = msgspec.structs.replace(config, timeout_s=plan.listen_s + 30)
    async with AgentClient(patient, connections=100_000) as client:

        async def one(target: Target) -> None:
            own = devices[target.host]
            request = NeighboursRequest(tuple(own), plan.listen_s)
            try:
                answer = await ask(client, target.url + NEIGHBOURS_PATH, request, NeighboursAnswer)
            except AgentError as error:
                reasons.update({(target.host, device): str(error) for device in own})
                return
            neighbours.update({(target.host, device): who for device, who in answer.heard.items()})
            reasons.update({(target.host, device): why for device, why in answer.unreadable.items()})

        await until(stop, (one(target) for target in wanted if target.host in devices))
    return LldpReports(neighbours, reasons)
