"""The front-end network: pairs of the addresses at which hosts were reached, and what their echoes say. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from fabricpulse.audit.model import HostReport, Measurement
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import FRONT_END, Rail


def front_end_rail(reports: Sequence[HostReport], rails: Mapping[str, Rail], most: int | None) -> Rail | None:
    """Who tests whom; None where fewer than two hosts have an address of their own that no rail has. most : rounds,
    2·log2 n if None."""
    if FRONT_END in rails:
        return None
    # A NIC has one place: one that is a rail's under another address, of IPv6 say, is tested as such.
    of_rails = {one for rail in rails.values() for nic in rail.nics for one in nic}
    # Hosts behind one address share what it says.
    times = Counter(report.front_end.address for report in reports if report.front_end)
    own = [
        ((report.host, report.front_end.device), report.front_end.address)
        for report in sorted(reports, key=lambda report: report.host)
        if report.front_end and times[report.front_end.address] == 1
    ]
    nics = tuple(nic for nic in own if of_rails.isdisjoint(nic))
    return Rail(nics, plan_rounds([""] * len(nics), most)) if len(nics) > 1 else None


def judged(measured: Collection[Measurement]) -> tuple[list[Measurement], list[str]]:
    """The measurements that say something, and a note where those of the front end do not: in clouds the network
    itself drops all echoes, which says nothing of any host."""
    own = [m for m in measured if m.network == FRONT_END]
    if own and not any(m.ok for m in own):
        rest = [m for m in measured if m.network != FRONT_END]
        return rest, [
            "front-end: no echo of any host was answered, so nothing is known: is ICMP dropped there?"
        ]
    return list(measured), []
