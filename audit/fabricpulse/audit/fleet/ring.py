"""Rings over the fleet: each agent runs a rank of `fabricpulse-ring`, with 1, 2, 4 and 8 lanes a connection, and, where
hosts have GPUs and torch, of an all-reduce by NCCL itself."""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence

import msgspec

from fabricpulse.audit.fleet.agent_client import AgentClient
from fabricpulse.audit.fleet.run import AgentError, until
from fabricpulse.audit.fleet.stage import RECEIVE_S, Fleet
from fabricpulse.audit.model import HostReport, Measurement, Ring, clip
from fabricpulse.audit.node.ring import CONNECT_S
from fabricpulse.audit.node.torch_ring import START_S
from fabricpulse.audit.node.wire import RING_PATH, RingAnswer, RingRequest
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.in_band import in_band_delays
from fabricpulse.audit.pair_tests.path_tests import Rail
from fabricpulse.audit.pair_tests.ring_tests import GIVEN, LANES, MOST_HOSTS, RingHost, expected, orders

# Where rank 0 listens for the others: below the ports that kernels hand out by themselves.
_PORTS = range(20_000, 30_000)


def ring_hosts(rails: Mapping[str, Rail], leaves: Mapping[Nic, str], order: Sequence[str]) -> list[RingHost]:
    """The hosts that have a NIC in a rail, in this order, MOST_HOSTS at most."""
    nics: dict[str, dict[str, tuple[str, str]]] = {}
    leaf: dict[str, str] = {}
    for network, rail in rails.items():
        for nic, address in rail.nics:
            nics.setdefault(nic[0], {})[network] = nic[1], address
            leaf.setdefault(nic[0], leaves.get(nic, ""))
    return [RingHost(host, nics[host], leaf[host]) for host in order if host in nics][:MOST_HOSTS]


async def run_rings(
    fleet: Fleet, hosts: Sequence[RingHost], seconds: float, measured: Sequence[Measurement]
) -> list[Ring]:
    """One ring after the other, each in every order that is worth it. measured : of pairs, to compare with. A host that
    does not answer is left out of the rings that follow."""
    rings: list[Ring] = []
    plan = [(name, own, lanes) for name, own in orders(hosts).items() for lanes in LANES]
    patience_s = RECEIVE_S + 3 * CONNECT_S + seconds
    config = msgspec.structs.replace(fleet.config, timeout_s=patience_s)
    async with AgentClient(config, connections=MOST_HOSTS) as client:
        for number, (name, own, lanes) in enumerate(plan):
            there = [host for host in own if not fleet.silence.silent(host.host)]
            if fleet.cancelled.is_set() or len(there) < 2:
                break
            fleet.progress(f"NCCL ring, {lanes} lanes", number, len(plan), "")
            request = RingRequest(0, len(there), _rendezvous(there[0]), ("",), lanes, seconds)
            rings.append(await _ring(client, fleet, name, there, request, patience_s, measured))
    return rings


async def run_nccl(
    fleet: Fleet,
    hosts: Sequence[RingHost],
    gpus: Collection[str],
    seconds: float,
    measured: Sequence[Measurement],
) -> Ring | None:
    """An all-reduce by NCCL itself over the hosts that have GPUs, in this order; None where fewer than two have.

    gpus : the hosts that have NVIDIA GPUs.
    """
    there = [host for host in hosts if host.host in gpus and not fleet.silence.silent(host.host)]
    if fleet.cancelled.is_set() or len(there) < 2:
        return None
    fleet.progress("NCCL by torch", 0, 1, "")
    patience_s = RECEIVE_S + 2 * START_S + seconds
    config = msgspec.structs.replace(fleet.config, timeout_s=patience_s)
    async with AgentClient(config, connections=MOST_HOSTS) as client:
        request = RingRequest(0, len(there), _rendezvous(there[0]), ("",), 1, seconds, torch=True)
        return await _ring(client, fleet, GIVEN, there, request, patience_s, measured)


def gpu_hosts(reports: Sequence[HostReport]) -> set[str]:
    """Those that report NVIDIA GPUs."""
    return {
        report.host
        for report in reports
        if any(value.attribute == "gpus" and "nvidia" in value.value for value in report.values)
    }


def _rendezvous(first: RingHost) -> str:
    """Where rank 0 listens for the others."""
    _, address = next(iter(first.nics.values()))
    port = random.choice(_PORTS)  # noqa: S311 - no secret
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


async def _rank(
    client: AgentClient, fleet: Fleet, host: str, request: RingRequest, patience_s: float
) -> RingAnswer:
    """Of one host. Raises AgentError."""
    try:
        return await fleet.ask(client, host, RING_PATH, request, RingAnswer, patience_s)
    except AgentError as error:
        if not error.unknown:
            raise
    if request.torch:
        return RingAnswer(error="the agent is of an older release")
    # An agent of an older release compares no delays.
    request = msgspec.structs.replace(request, peer="")
    return await fleet.ask(client, host, RING_PATH, request, RingAnswer, patience_s)


async def _ring(
    client: AgentClient,
    fleet: Fleet,
    name: str,
    hosts: Sequence[RingHost],
    wanted: RingRequest,
    patience_s: float,
    measured: Sequence[Measurement],
) -> Ring:
    """One ring. wanted : of all ranks; what is of one alone is filled in."""
    lanes = 0 if wanted.torch else wanted.lanes
    answers: dict[str, RingAnswer] = {}
    refused: dict[str, str] = {}
    failed = asyncio.Event()

    async def one(rank: int, host: RingHost) -> None:
        devices = tuple(device for device, _ in host.nics.values())
        before = hosts[rank - 1].host
        peer = "" if wanted.torch else before
        request = msgspec.structs.replace(wanted, rank=rank, devices=devices, peer=peer)
        try:
            answers[host.host] = await _rank(client, fleet, host.host, request, patience_s)
            if wanted.torch and answers[host.host].error:
                # No GPU, no torch: the others would wait for a minute.
                failed.set()
        except AgentError as error:
            refused[host.host] = str(error)
            if not error.answered:
                # For the second time: the patience of a ring is a minute.
                fleet.silence.unanswered(host.host)
            # Without one of them the others would wait for it.
            failed.set()

    async def stop_with_run() -> None:
        await fleet.cancelled.wait()
        failed.set()

    watch = asyncio.create_task(stop_with_run())
    try:
        await until(failed, (one(rank, host) for rank, host in enumerate(hosts)))
    finally:
        watch.cancel()
    names = tuple(host.host for host in hosts)
    errors = refused or {host: answer.error for host, answer in answers.items() if answer.error}
    corrupt = sum(answer.corrupt_bytes for answer in answers.values())
    if errors or len(answers) < len(hosts):
        why = "; ".join(f"{host}: {error}" for host, error in sorted(errors.items())[:3])
        error = clip(why or "it was cancelled")
        return Ring(
            name, lanes, names, None, None, corrupt, error, torch=wanted.torch, failed=tuple(sorted(errors))
        )
    bps = min(answer.bps for answer in answers.values())
    delays = () if wanted.torch else in_band_delays(names, answers, measured)
    pair = expected(hosts, wanted.lanes, measured)
    return Ring(name, lanes, names, bps, pair, corrupt, "", delays, wanted.torch)
