"""Hosts without a processor while they are tested: whole stages of transfers with made-up measurements. Nobody is
accused who is not at fault; where the kernel has seen what the path carries, who is at fault is named.
"""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricpulse.audit.fleet.run import Target
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.fleet.transfers import FleetTransfers
from fabricpulse.audit.model import Finding, Measurement
from fabricpulse.audit.node.tcp_progress import LEAST_SHARE
from fabricpulse.audit.node.wire import Received, TransferResult
from fabricpulse.audit.pair_tests.blame import Nic
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import PathDirections, Rail, path_findings
from fabricpulse.audit.pair_tests.transfer_tests import Transferred, Transfers
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig

RATE = 10e9
SLOW = 0.4
SIDES = {"sends": (0,), "receives": (1,), "both": (0, 1)}


def audit(
    fleet: list[Nic], slow: dict[Nic, str], late: dict[str, float], noise: random.Random
) -> tuple[list[Finding], int]:
    """Findings of a run over NICs of which some are slow, and hosts that are without a processor for up to such a share
    of each transfer; and how many transfers were made."""
    rail = Rail(tuple((nic, f"10.0.0.{i}") for i, nic in enumerate(fleet)), plan_rounds([""] * len(fleet)))
    ways = PathDirections({"rail0": rail}, [])
    agents = {host: Target(host, "", {}) for host, _ in fleet}
    made = 0

    class Simulated(FleetTransfers):
        async def _transfer(self, client: HttpClient, source: Nic, target: Nic) -> None:
            nonlocal made
            made += 1
            hit = any((source, target)[end] == nic for nic, side in slow.items() for end in SIDES[side])
            carried = RATE * noise.uniform(0.9, 1.0) * (SLOW if hit else 1)
            starved = max(late.get(nic[0], 0.0) * noise.random() for nic in (source, target))
            # A queue or a window hides some of the time without a processor.
            reached = min(carried, RATE * (1 - starved * noise.uniform(0.5, 1.0)))
            path = carried * noise.uniform(0.97, 1.03) if 1 - starved >= LEAST_SHARE else None
            result = TransferResult(2000, Received(2000), reached, starved=starved, path_bps=path)
            self._done.append(Transferred(ways.way(source, target), result))

    async def run() -> list[Finding]:
        shared = Fleet(agents, HttpClientConfig(), ways, {}, asyncio.Event())
        transfers = Simulated(shared, Transfers(int(RATE), duplex=False))
        return path_findings(await transfers.run({"rail0": rail}))

    return asyncio.run(run()), made


def accused(found: list[Finding]) -> set[tuple[str, Nic]]:
    return {(f.evidence["blame"], (f.host, f.subject)) for f in found if f.host}


@settings(deadline=None, max_examples=60)
@given(st.integers(4, 9), st.booleans(), st.data())
def test_late_hosts_accuse_nobody(hosts: int, measurable: bool, data: st.DataObject) -> None:
    """One NIC is slow, or none; any hosts are late, each transfer by another share. Where the path's own time could be
    seen each time, the slow NIC is named and nothing else; where it could not, nothing else is."""
    fleet = [(f"h{host}", "eth0") for host in range(hosts)]
    bad = data.draw(st.none() | st.sampled_from(fleet))
    side = data.draw(st.sampled_from(sorted(SIDES)))
    names = data.draw(st.sets(st.sampled_from([host for host, _ in fleet])))
    late = dict.fromkeys(names, 0.79 if measurable else 0.99)
    found, made = audit(
        fleet, {bad: side} if bad else {}, late, random.Random(data.draw(st.integers(0, 999)))
    )
    truth = {("nic", bad)} if bad else set()
    if measurable:
        assert accused(found) == truth
        assert len(found) == len(truth)
    else:
        # Of its tests few could be judged: a path of it may be all that is seen.
        for f in found:
            ends = {f.host, f.evidence.get("target", "").split(" ")[0], *f.suspects}
            assert bad is not None
            assert bad[0] in ends
        assert {nic for kind, nic in accused(found) if kind == "nic"} <= {bad}
    assert made <= 3 * hosts * (hosts - 1)


@pytest.mark.parametrize("side", sorted(SIDES))
def test_a_quiet_fleet_loses_nothing(side: str) -> None:
    """No host is late: the slow NIC is named, and each of its ways is tested twice, no other."""
    fleet = [(f"h{host}", "eth0") for host in range(4)]
    found, made = audit(fleet, {fleet[2]: side}, {}, random.Random(1))
    assert accused(found) == {("nic", fleet[2])}
    assert made == 12 + 3 * len(SIDES[side])


def test_what_is_not_decided_accuses_neither_end() -> None:
    """Two hosts, of which nobody can say which is slow: the finding is nobody's, and names both as suspects."""
    a, b = ("h0", "eth0"), ("h1", "eth0")
    measured = [Measurement("loss", "rail0", *way[0], *way[1], 0.1, False) for way in ((a, b), (b, a))]
    found = path_findings(measured)
    assert {(f.host, f.subject, f.suspects) for f in found} == {
        ("", "h0 eth0 > h1 eth0", ("h0", "h1")),
        ("", "h1 eth0 > h0 eth0", ("h1", "h0")),
    }
    assert found[0].summary.endswith("from h0 eth0: h0 eth0 or h1 eth0 or the path, not decided")
