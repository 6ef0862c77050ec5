"""What a ring over the fleet means beside tests of its pairs. Pure.

NCCL's ring sends from each host to the next, all at once. Each pair alone may be fast, and the ring slow all the same:
then paths that are disjoint in the pair tests share links, by the hash of ECMP or by too few uplinks. More lanes a
connection spread over more paths; hosts in the order of their leaves cross fewer uplinks.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fabricpulse.audit.checks.fleet import nccl_data, nccl_ring, nccl_untested
from fabricpulse.audit.model import Finding, Measurement, Ring, clip

LANES = (1, 2, 4, 8)
# Of what its slowest pair reaches, in both directions at once: a ring below it is slow.
SLOW_RING = 0.7
# Beyond this the ring's own program, which computes and compares every byte on one processor, is the limit: 8.4 Gb/s
# beside pairs of 39 on an idle machine, where NCCL itself reached 16.7 of one NIC's 19.5.
OWN_LIMIT_BPS = 5e9
# Of the ring in the order of leaves, one in the given order is slow below it.
SLOW_ORDER = 0.8
MOST_HOSTS = 128
# That a finding names.
MOST_SUSPECTS = 64
GIVEN, BY_LEAF = "given", "by leaf"


@dataclass(frozen=True)
class RingHost:
    """A host of a ring. nics : network -> (device, address). leaf : "" if it is not known."""

    host: str
    nics: Mapping[str, tuple[str, str]]
    leaf: str = ""


def orders(hosts: Sequence[RingHost]) -> dict[str, list[RingHost]]:
    """The ring as it is given, and as leaves would have it where all are known and that differs: hosts of a leaf beside
    one another, leaves in order of first appearance."""
    found = {GIVEN: list(hosts)}
    if hosts and all(host.leaf for host in hosts):
        leaves = dict.fromkeys(host.leaf for host in hosts)
        best = sorted(hosts, key=lambda host: [*leaves].index(host.leaf))
        if crossings(best) < crossings(hosts):
            found[BY_LEAF] = best
    return found


def crossings(hosts: Sequence[RingHost]) -> int:
    """Connections of the ring between different leaves."""
    return sum(a.leaf != b.leaf for a, b in zip(hosts, [*hosts[1:], *hosts[:1]], strict=True))


def expected(hosts: Sequence[RingHost], lanes: int, measured: Sequence[Measurement]) -> float | None:
    """Bits per second that the slowest connection of the ring reaches by the tests of pairs; None where they do not
    say, or say that processors limit them: then a ring proves nothing of paths."""
    usual: dict[str, list[float]] = {}
    known: dict[tuple[str, str, str], float] = {}
    both: list[float] = []
    for m in measured:
        if m.kind == "bandwidth":
            if m.ok is None:
                return None
            usual.setdefault(m.network, []).append(m.value)
            known[m.network, m.source_host, m.target_host] = m.value
        elif m.kind == "duplex":
            both.append(m.value)
    reached = []
    for a, b in zip(hosts, [*hosts[1:], *hosts[:1]], strict=True):
        networks = [network for network in a.nics if network in b.nics and network in usual]
        if not networks:
            return None
        rates = [known.get((n, a.host, b.host), statistics.median(usual[n])) for n in networks]
        reached.append(sum(rates) * min(lanes, len(rates)) / len(rates))
    share = min(1.0, statistics.median(both)) if both else 1.0
    return min(reached, default=0.0) * share


def ring_notes(rings: Sequence[Ring]) -> list[str]:
    """A line a ring."""
    found = []
    for ring in rings:
        what = f"NCCL ring, {ring.order} order, {ring.lanes} lanes, {len(ring.hosts)} hosts"
        if ring.torch:
            what = f"NCCL itself, by torch, {len(ring.hosts)} hosts"
        if ring.bps is None and ring.torch:
            found.append(clip(f"{what}: not run, {ring.error}"))
        elif ring.bps is None:
            found.append(clip(f"{what}: not measured, {ring.error}"))
        else:
            pairs = f", its slowest pair {ring.expected / 1e9:.3g} Gb/s" if ring.expected else ""
            found.append(clip(f"{what}: {ring.bps / 1e9:.3g} Gb/s a host{pairs}"))
    return found


def ring_findings(rings: Sequence[Ring]) -> list[Finding]:
    """Data that was changed; rings that did not run; one whose best is slow beside its pairs; an order of ranks that
    costs much."""
    found = []
    corrupt = sum(ring.corrupt_bytes for ring in rings)
    if corrupt:
        text = f"{corrupt} bytes of a verified all-reduce over {len(rings[0].hosts)} hosts were wrong"
        wrong = nccl_data.CHECK.finding("", "", text, {"bytes": str(corrupt)})
        hosts = dict.fromkeys(host for ring in rings if ring.corrupt_bytes for host in ring.hosts)
        found.append(msgspec.structs.replace(wrong, suspects=tuple(hosts)[:MOST_SUSPECTS]))
    found += _not_run(rings)
    best: dict[str, Ring] = {}
    for ring in rings:
        if ring.torch:
            found += _torch_findings(ring)
        elif ring.bps is not None and (ring.order not in best or ring.bps > (best[ring.order].bps or 0)):
            best[ring.order] = ring
    for order, ring in sorted(best.items()):
        if (
            ring.expected
            and ring.bps is not None
            and ring.bps < SLOW_RING * min(ring.expected, OWN_LIMIT_BPS)
        ):
            text = (
                f"the ring in {order} order reaches {ring.bps / 1e9:.3g} Gb/s a host with {ring.lanes} lanes, its "
                f"slowest pair alone {ring.expected / 1e9:.3g}: paths that are good by themselves share links"
            )
            found.append(_finding(text, ring))
    given, leaf = best.get(GIVEN), best.get(BY_LEAF)
    if given and leaf and given.bps is not None and leaf.bps and given.bps < SLOW_ORDER * leaf.bps:
        text = (
            f"the given order of ranks reaches {given.bps / 1e9:.3g} Gb/s a host, the order of leaves "
            f"{leaf.bps / 1e9:.3g}: sort ranks by leaf"
        )
        found.append(_finding(text, given))
    return found


def _not_run(rings: Sequence[Ring]) -> list[Finding]:
    """Rings of the plugin that were not finished: NCCL may not work there, and nothing has shown that it does. The
    hosts that gave an error are suspected, or all where none did. That NCCL itself finds no torch is a note."""
    by_order: dict[str, list[Ring]] = {}
    for ring in rings:
        if ring.bps is None and not ring.torch:
            by_order.setdefault(ring.order, []).append(ring)
    found = []
    for order, own in by_order.items():
        lanes = ", ".join(str(ring.lanes) for ring in own)
        text = (
            f"the ring in {order} order did not run with {lanes} lanes: {own[-1].error or 'no host said why'}"
        )
        failed = dict.fromkeys(host for ring in own for host in ring.failed)
        one = nccl_ring.CHECK.finding("", order, text, {"order": order, "lanes": lanes}, severity="error")
        found.append(msgspec.structs.replace(one, suspects=tuple(failed or own[-1].hosts)[:MOST_SUSPECTS]))
    return found


def without_ring(hosts: Iterable[str]) -> list[Finding]:
    """Of a run that was asked for rings and had fewer than two hosts that could be in one: nothing is known of them."""
    why = "fewer than two hosts could be in a ring"
    return [
        nccl_untested.CHECK.finding(host, "", f"not tested: {why}", {"reason": why}) for host in sorted(hosts)
    ]


def _torch_findings(ring: Ring) -> list[Finding]:
    """Of NCCL itself: one GPU may use one NIC alone, so that is what it is compared with."""
    if ring.bps is None or not ring.expected or ring.bps >= SLOW_RING * ring.expected:
        return []
    text = (
        f"an all-reduce by NCCL itself reaches {ring.bps / 1e9:.3g} Gb/s a host on one GPU each, one NIC of its "
        f"slowest pair alone {ring.expected / 1e9:.3g}: paths share links, or NCCL takes another transport or NIC "
        "than it should"
    )
    return [_finding(text, ring)]


def _finding(text: str, ring: Ring) -> Finding:
    if ring.torch:
        return nccl_ring.CHECK.finding("", "", text, {"by": "torch", "hosts": clip(",".join(ring.hosts))})
    evidence = {"order": ring.order, "lanes": str(ring.lanes), "hosts": clip(",".join(ring.hosts))}
    return nccl_ring.CHECK.finding("", "", text, evidence)
