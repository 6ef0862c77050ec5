"""Tests between the NICs of a fleet: who tests whom, what echoes mean, and what failed tests say of whom. Pure.

Each pair of a plan is tested in both directions, small and at the full MTU of the sender's NIC. The echo of a packet
comes back along the way back, so an exchange fails with either direction: the request is sent whole ("do not
fragment"), while the kernel that answers may fragment its answer. A full-size failure of one direction alone is thus
the MTU of that direction; a failure of small packets is connectivity.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fabricpulse.audit.checks.fleet import (
    path_bandwidth,
    path_connectivity,
    path_delay,
    path_duplex,
    path_loss,
    path_mtu,
    path_rdma,
)
from fabricpulse.audit.host.check import Check
from fabricpulse.audit.model import Category, Finding, HostReport, Measurement, clip
from fabricpulse.audit.node.wire import EchoResult, EchoTest
from fabricpulse.audit.pair_tests.blame import Blame, Nic, PathTest, blame, retests
from fabricpulse.audit.pair_tests.pairing import PairingPlan, directions, plan_rounds
from fabricpulse.core.fleet.membership import Membership

SMALL = 128
# The networks of the addresses at which hosts were reached, of IPv4 and of IPv6: there is no way between them.
FRONT_END, FRONT_END_6 = "front-end", "front-end IPv6"
FRONT_ENDS = (FRONT_END, FRONT_END_6)
# Of the kernel that sends, not of a host that does not answer. Without a route by the device that a socket is bound to
# Linux says so of IPv6; of IPv4 it takes all addresses for those of neighbours, so that agents ask it first.
_NO_ROUTE = ("ENETUNREACH", "EHOSTUNREACH")
# Of an agent that could not open a socket, so that nothing was sent: by its rights, and by what it has or knows.
_NO_RIGHT = ("EPERM", "EACCES")
_NO_SOCKET = ("EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EAFNOSUPPORT", "EPROTONOSUPPORT")


@dataclass(frozen=True)
class Wording:
    """The text of findings of a kind of test. what … nic : of a NIC; what … path : of a path. unit : of its values."""

    check: Check
    what: str
    nic: str
    path: str
    unit: Callable[[float], str] | None = None


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %"


def _bits(value: float) -> str:
    return f"{value / 1e9:.3g} Gb/s" if value >= 1e9 else f"{value / 1e6:.3g} Mb/s"


def _microseconds(value: float) -> str:
    return f"{1e6 * value:.0f} µs"


WORDING: Mapping[str, Wording] = {
    "connectivity": Wording(path_connectivity.CHECK, "packets", "do not pass", "do not pass to"),
    "mtu": Wording(path_mtu.CHECK, "packets of the full MTU", "do not pass", "do not pass to"),
    "loss": Wording(path_loss.CHECK, "datagrams", "are lost", "are lost on the way to", _percent),
    "bandwidth": Wording(path_bandwidth.CHECK, "TCP", "is slow", "is slow to", _bits),
    "rdma": Wording(path_rdma.CHECK, "RDMA writes", "are slow or fail", "are slow or fail to", _bits),
    "duplex": Wording(
        path_duplex.CHECK,
        "both directions at once",
        "reach less than one after the other",
        "reach less than one after the other to",
        _percent,
    ),
    "owd": Wording(path_delay.CHECK, "packets", "take longer than others'", "take long to", _microseconds),
}


@dataclass(frozen=True)
class PathDirection:
    """One direction between two NICs of a rail. size : 0 where the MTU of the sender's NIC is not known. own : address
    of the source, address : of the target."""

    source: Nic
    target: Nic
    address: str
    size: int
    network: str = ""
    own: str = ""

    @property
    def from_address(self) -> bool:
        """Whether it is tested from its own address: where a host was reached it may be by policy routes from that
        address alone."""
        return self.network in FRONT_ENDS

    def echo_tests(self) -> list[EchoTest]:
        """Small, then whole."""
        sizes = [SMALL, *([self.size] if self.size > SMALL else [])]
        source = self.own if self.from_address else ""
        return [EchoTest(self.source[1], self.address, size, source) for size in sizes]


@dataclass(frozen=True)
class Rail:
    """The NICs of one network that take part, with their addresses, and who meets whom."""

    nics: tuple[tuple[Nic, str], ...]
    plan: PairingPlan


def plan_rails(
    membership: Membership, hosts: Collection[str], leaves: Mapping[str, str], most: int | None = None
) -> dict[str, Rail]:
    """network -> its rail. hosts : those that take part. leaves : host -> leaf, as far as known; the membership's leaf
    of a NIC where it is not. most : rounds, 2·log2 n if None."""
    rails: dict[str, list[tuple[Nic, str, str]]] = defaultdict(list)
    for host in membership.hosts:
        for nic in host.nics:
            if host.name in hosts:
                leaf = leaves.get(host.name, nic.leaf)
                rails[nic.network].append(((host.name, nic.device), nic.address, leaf))
    return {
        network: Rail(
            tuple((nic, address) for nic, address, _ in nics),
            _between_hosts(
                plan_rounds([leaf for *_, leaf in nics], most), [(nic[0], leaf) for nic, _, leaf in nics]
            ),
        )
        for network, nics in sorted(rails.items())
    }


def _between_hosts(plan: PairingPlan, ends: Sequence[tuple[str, str]]) -> PairingPlan:
    """Without pairs of two NICs of one host: the kernel drops what comes to it from its own address. ends : host and
    leaf of each."""
    rounds = tuple(
        kept for pairs in plan.rounds if (kept := tuple((a, b) for a, b in pairs if ends[a][0] != ends[b][0]))
    )
    # Where leaves are not known each NIC counts as one.
    unknown = Counter(host for host, leaf in ends if not leaf)
    own = sum(count * (count - 1) // 2 for count in unknown.values())
    left_out = sum(
        ends[a][0] == ends[b][0] and not ends[a][1] and not ends[b][1]
        for pairs in plan.rounds
        for a, b in pairs
    )
    return PairingPlan(rounds, plan.leaf_pairs - own, plan.covered - left_out)


class PathDirections:
    """Makes ways between NICs of the fleet. reports : the MTU of their NICs is from there."""

    def __init__(self, rails: Mapping[str, Rail], reports: Sequence[HostReport]) -> None:
        self._mtus = {(r.host, v.subject): v.value for r in reports for v in r.values if v.attribute == "mtu"}
        self._mtus |= {(r.host, r.front_end.device): str(r.front_end.mtu) for r in reports if r.front_end}
        self._places = {
            nic: (address, network) for network, rail in rails.items() for nic, address in rail.nics
        }

    def way(self, source: Nic, target: Nic) -> PathDirection:
        """From one NIC of the rails to another."""
        mtu = self._mtus.get(source, "")
        own, network = self._places[source]
        size = int(mtu) if mtu.isdigit() else 0
        return PathDirection(source, target, self._places[target][0], size, network, own)

    def knows(self, source: Nic, target: Nic) -> bool:
        """Whether both NICs are in the rails."""
        return source in self._places and target in self._places


def plan_ways(rails: Mapping[str, Rail], ways: PathDirections) -> dict[str, list[PathDirection]]:
    """What each host tests: both directions of all pairs."""
    by_host: dict[str, list[PathDirection]] = defaultdict(list)
    for rail in rails.values():
        for a, b in directions(pair for pairs in rail.plan.rounds for pair in pairs):
            source = rail.nics[a][0]
            by_host[source[0]].append(ways.way(source, rail.nics[b][0]))
    return dict(by_host)


def measurements(ways: Sequence[PathDirection], results: Sequence[EchoResult]) -> list[Measurement]:
    """Of the echoes of one host. results : of the echo tests of all ways, in order.

    MTU is judged only where small packets pass: without connectivity nothing is known of it. Ways of `not_tested` are
    left out, and so are full-size packets that could not be sent for like reasons.
    """
    found = []
    for way, answers in _answers(ways, results):
        if _why_not(way, answers[0]):
            continue
        ends = (way.network, *way.source, *way.target)
        small = answers[0].answered > 0
        found.append(Measurement("connectivity", *ends, answers[0].rtt_s, small))
        if small and len(answers) > 1 and not _why_not(way, answers[1]):
            found.append(Measurement("mtu", *ends, answers[1].rtt_s, answers[1].answered > 0))
    return found


def not_tested(ways: Sequence[PathDirection], results: Sequence[EchoResult]) -> dict[Nic, str]:
    """Sources of ways of which the answers say nothing, with why: the agent may send no echoes, which accuses no NIC;
    or, of a front end, the host has no route by the NIC at which it was reached, and answers by another one."""
    found = {}
    for way, answers in _answers(ways, results):
        if why := _why_not(way, answers[0]):
            found[way.source] = why
    return found


def _answers(
    ways: Sequence[PathDirection], results: Sequence[EchoResult]
) -> Iterator[tuple[PathDirection, list[EchoResult]]]:
    rest = iter(results)
    for way in ways:
        yield way, [next(rest) for _ in way.echo_tests()]


def _why_not(way: PathDirection, answer: EchoResult) -> str:
    """Why an answer says nothing of the way, "" if it does."""
    if way.network in FRONT_ENDS and not answer.answered and answer.error in _NO_ROUTE:
        return "it has no route by the NIC at which it was reached"
    if answer.sent or answer.answered:
        return ""
    if answer.error in _NO_RIGHT:
        return (
            f"its agent may not send ICMP echoes ({answer.error}): give it CAP_NET_RAW, or its group in "
            "net.ipv4.ping_group_range"
        )
    if answer.error in _NO_SOCKET:
        return f"its agent could not open a socket for ICMP echoes ({answer.error})"
    return ""


def ends_of(m: Measurement) -> tuple[Nic, Nic]:
    """The NICs of a measurement: source, target."""
    return (m.source_host, m.source_device), (m.target_host, m.target_device)


def path_tests(measured: Iterable[Measurement], kind: str) -> list[PathTest]:
    """The decided tests of one kind."""
    return [
        PathTest((m.source_host, m.source_device), (m.target_host, m.target_device), m.ok)
        for m in measured
        if m.kind == kind and m.ok is not None
    ]


def further_tests(measured: Iterable[Measurement], kind: str) -> set[tuple[Nic, Nic]]:
    """As `retests`, of each network by itself: machines of two kinds may call NICs of one network differently."""
    networks: dict[str, list[Measurement]] = defaultdict(list)
    for m in measured:
        networks[m.network].append(m)
    return {way for own in networks.values() for way in retests(path_tests(own, kind))}


def path_findings(measured: Sequence[Measurement]) -> list[Finding]:
    """What the tests of all hosts say, by whom is to blame. A host's front end is judged by itself: it answers while
    all rails of the host are dead."""
    front = [m for m in measured if m.network in FRONT_ENDS]
    back = [m for m in measured if m.network not in FRONT_ENDS]
    return _path_findings(back, "back-end") + _path_findings(front, "front-end")


def _path_findings(measured: Sequence[Measurement], category: Category) -> list[Finding]:
    found = []
    for kind in WORDING:
        own = path_tests(measured, kind)
        worst: dict[Nic, list[Measurement]] = defaultdict(list)
        for m in measured:
            if m.kind == kind and m.ok is False:
                worst[m.source_host, m.source_device].append(m)
                worst[m.target_host, m.target_device].append(m)
        found += [
            msgspec.structs.replace(_finding(kind, entry, worst), category=category) for entry in blame(own)
        ]
    return found


def _finding(kind: str, entry: Blame, worst: Mapping[Nic, Sequence[Measurement]]) -> Finding:
    wording = WORDING[kind]
    host, device = entry.nic
    evidence = {"blame": entry.kind, "failed_tests": str(entry.failed)}
    own = [m for nic, found in worst.items() if nic[0] == host and device in ("", nic[1]) for m in found]
    if entry.target is not None:
        own = [m for m in own if (m.target_host, m.target_device) == entry.target]
        target = " ".join(entry.target)
        evidence["target"] = target
        text = f"{wording.what} {wording.path} {target}"
    else:
        ends = {(m.source_host, m.source_device) for m in own} | {
            (m.target_host, m.target_device) for m in own
        }
        peers = sorted({" ".join(nic) for nic in ends if nic[0] != host})
        if peers:
            evidence["peers"] = clip(", ".join(peers[:12]))
        evidence |= {"side": entry.side}
        if entry.kind == "host":
            evidence["nics"] = clip(", ".join(sorted({nic[1] for nic in ends if nic[0] == host})))
        side = {"sends": "that it sends", "receives": "that it is sent", "both": "between it and its peers"}
        text = f"{wording.what} {side[entry.side]} {wording.nic}"
    values = [m.value for m in own if m.value or kind == "rdma"]
    if wording.unit and values:
        worst_value = min(values) if kind in ("bandwidth", "duplex", "rdma") else max(values)
        evidence["worst"] = wording.unit(worst_value)
        text += f" (worst {evidence['worst']})"
    found = wording.check.finding(host, device, text, evidence)
    return found if entry.target is None else of_way(found, entry)


def of_way(of_source: Finding, entry: Blame) -> Finding:
    """A finding that names the source of a path, or of what is undecided, as one that names no culprit. Both ends of a
    path are suspects: what lies between them is neither's, but nothing shows that jobs may use them together."""
    assert entry.target is not None  # noqa: S101 - only a host or a NIC has none
    source = " ".join(entry.nic)
    if entry.kind == "path":
        return without_culprit(
            of_source,
            entry.nic,
            entry.target,
            f"{of_source.summary} from {source}: the path, both are good with others",
        )
    suspects = [" ".join(nic) for nic in entry.suspects]
    text = f"{of_source.summary} from {source}: {' or '.join([*suspects, 'the path'])}, not decided"
    return without_culprit(of_source, entry.nic, entry.target, text, entry.suspects)


def without_culprit(
    of_source: Finding, source: Nic, target: Nic, summary: str, suspects: Sequence[Nic] = ()
) -> Finding:
    """A finding of the way between two NICs that accuses no host. suspects : both NICs if none are given."""
    suspects = suspects or (source, target)
    names = clip(", ".join(" ".join(nic) for nic in suspects))
    return msgspec.structs.replace(
        of_source,
        host="",
        subject=clip(f"{' '.join(source)} > {' '.join(target)}", 128),
        summary=clip(summary),
        evidence={**of_source.evidence, "source": clip(" ".join(source)), "suspects": names},
        suspects=tuple(dict.fromkeys(host for host, _ in suspects)),
    )


def coverage_note(rails: Mapping[str, Rail]) -> str:
    """One line of how much was tested."""
    parts = [
        f"{network}: {len(rail.plan.rounds)} rounds, {sum(map(len, rail.plan.rounds))} pairs, "
        f"{rail.plan.covered} of {rail.plan.leaf_pairs} pairs of leaves"
        for network, rail in rails.items()
    ]
    return "paths: " + "; ".join(parts) if parts else "paths: no network with two NICs"
