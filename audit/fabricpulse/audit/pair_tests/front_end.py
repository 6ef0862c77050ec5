"""The front-end networks: pairs of the addresses at which hosts were reached, and what their echoes say. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from fabricpulse.audit.model import HostReport, Measurement
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import FRONT_END_6, FRONT_ENDS, Rail


def front_end_rails(
    reports: Sequence[HostReport], rails: Mapping[str, Rail], most: int | None
) -> dict[str, Rail]:
    """Who tests whom, one network a family of addresses; none where fewer than two hosts have an address of their own
    that no rail has. most : rounds, 2·log2 n if None."""
    # A NIC has one place: one that is a rail's under another address, of IPv6 say, is tested as such.
    of_rails = {one for rail in rails.values() for nic in rail.nics for one in nic}
    # Hosts behind one address share what it says.
    times = Counter(report.front_end.address for report in reports if report.front_end)
    own = [
        ((report.host, report.front_end.device), report.front_end.address)
        for report in sorted(reports, key=lambda report: report.host)
        if report.front_end and times[report.front_end.address] == 1
    ]
    found = {}
    for network in FRONT_ENDS:
        nics = tuple(
            nic for nic in own if of_rails.isdisjoint(nic) and (":" in nic[1]) == (network == FRONT_END_6)
        )
        if network not in rails and len(nics) > 1:
            found[network] = Rail(nics, plan_rounds([""] * len(nics), most))
    return found


def judged(measured: Collection[Measurement]) -> tuple[list[Measurement], list[str]]:
    """The measurements that say something, and a note for a front end whose do not: in clouds the network itself drops
    all echoes, which says nothing of any host."""
    answered = {m.network for m in measured if m.ok}
    silent = {m.network for m in measured if m.network in FRONT_ENDS} - answered
    return [m for m in measured if m.network not in silent], [
        f"{network}: no echo of any host was answered, so nothing is known: is ICMP dropped there?"
        for network in sorted(silent)
    ]
