"""On one host the job's lanes carry unequal shares, while on its other hosts they are equal.

Identified by the bytes sent over each NIC of a host against the mean of its NICs. A NIC over which little is sent and
little arrives is the place, and the unequal shares of those that send to it are its effect: in a small ring that is
half of the hosts. A NIC that flapped, is slow, or is kept out of service by remediation explains an imbalance: then
that is the cause. Shares that were as unequal in the baseline are how the job is set up, and a hint. So is a small
share where not all is known: a series is missing, or a flow that the NIC's siblings have, while the NIC sends much.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from fabricpulse.why.analysis import Analysis, nic_subject
from fabricpulse.why.facts import Flow, Nic, NicId
from fabricpulse.why.finding import Evidence, Finding, as_hint, as_undecided, finding, grows

TITLE = "lane imbalance"
DO = (
    "See which lanes are down or damped: `fabricpulse plugin status` on this host; `lane.enable` puts one back.",
    "If all are up, look at NCCL_CROSS_NIC and at the channels that NCCL has chosen.",
)
OLD_SHARES = "it carried as little in the baseline: how the job is set up"
NOT_SEEN = "no mesh exporter says whether that NIC is connected, or loses packets"
EVEN = 0.8
UNEVEN = 0.6
_ROUNDING = 1e-9
# What a NIC may send without another flow: by what its flows send again, and acknowledgements of what arrives.
_AGAIN, _ACKNOWLEDGED = 1.35, 0.15


def shares(
    a: Analysis, flows: Iterable[Flow] | None = None, *, arriving: bool = False, before: bool = False
) -> dict[str, dict[str, float]]:
    """Host -> device -> bytes sent by the job over it, by the mean of that host's NICs; hosts with two or more, if all
    is known of them.

    flows : instead of all. arriving : bytes that arrive there. before : in the baseline. Of all flows several causes
    need it: it is computed once, and not theirs to change.
    """
    if flows is not None:
        return _known(_shares(a, flows, arriving, before), unknown_nics(a, arriving=arriving, before=before))
    known = a.known_shares.get((arriving, before))
    if known is None:
        unknown = unknown_nics(a, arriving=arriving, before=before)
        known = a.known_shares[arriving, before] = _known(_of_all(a, arriving, before), unknown)
    return known


def _of_all(a: Analysis, arriving: bool = False, before: bool = False) -> dict[str, dict[str, float]]:
    """The same of all hosts, as far as known: what is not counts as nothing."""
    found = a.shares.get((arriving, before))
    if found is None:
        found = a.shares[arriving, before] = _shares(a, a.facts.flows, arriving, before)
    return found


def _known(found: dict[str, dict[str, float]], unknown: Iterable[NicId]) -> dict[str, dict[str, float]]:
    hosts = {nic.host for nic in unknown}
    return {host: devices for host, devices in found.items() if host not in hosts}


def unknown_nics(a: Analysis, *, arriving: bool = False, before: bool = False) -> dict[NicId, str]:
    """NICs of which is not known how much of the job they carry: why."""
    known = a.unknown_nics.get((arriving, before))
    if known is None:
        known = a.unknown_nics[arriving, before] = dict(_unknown(a, arriving, before))
    return known


def _unknown(a: Analysis, arriving: bool, before: bool) -> Iterator[tuple[NicId, str]]:
    gaps: defaultdict[NicId, int] = defaultdict(int)
    for f in a.facts.flows:
        if (f.sent_before if before else f.sent) is None:
            gaps[f.target if arriving else f.source] += 1
    for nic, count in gaps.items():
        yield nic, f"bytes sent (fabricpulse_qp_sent_bytes_total) of {count} flows of {nic} are not known"
    # Of what arrives, and of the baseline, a flow without any series only makes a finding less likely.
    if arriving or before:
        return
    usual = _of_all(a, before=True)
    for host, devices in _of_all(a).items():
        for device, share in devices.items():
            nic = NicId(host, device)
            if share > UNEVEN or nic in gaps:
                continue
            if reason := _unaccounted(a, nic, devices, usual.get(host, {}).get(device, 0.0)):
                yield nic, reason


def _unaccounted(a: Analysis, nic: NicId, devices: Mapping[str, float], usual: float) -> str:
    """Why flows of a NIC with a small share may be missing; empty where they are not."""
    # A NIC of which each flow is known that its siblings have carries what these say.
    own, *siblings = (
        Counter(f.target.host for f in a.flows_of(NicId(nic.host, other)) if f.source == (nic.host, other))
        for other in sorted(devices, key=lambda other: other != nic.device)
    )
    silent = sorted({peer for sibling in siblings for peer in sibling - own})
    if not silent:
        return ""
    known = a.nics[nic]
    if known.avoided:
        return ""
    if known.transmitted is None:
        return (
            f"no flow from {nic} to {', '.join(silent[:3])} is known, as from its siblings, nor what it sends"
            " (fabricpulse_qp_sent_bytes_total, fabricpulse_nic_transmitted_bytes_total)"
        )
    hidden = _hidden(a, known, before=False)
    # What others send goes on; where the baseline misses the same flows it is no measure of that.
    if usual > UNEVEN and known.transmitted_before is not None:
        hidden -= _hidden(a, known, before=True)
    carried = sum(f.sent or 0.0 for f in a.flows_of(nic) if f.source == nic)
    every = sum(
        f.sent or 0.0 for d in devices for f in a.flows_of(NicId(nic.host, d)) if f.source == (nic.host, d)
    )
    if hidden <= 0 or (carried + hidden) * len(devices) <= UNEVEN * (every + hidden):
        return ""
    beside = (known.transmitted - carried) * 8e-9
    return (
        f"{nic} sends {beside:.1f} Gb/s that no known flow accounts for: series of its flows"
        " (fabricpulse_qp_sent_bytes_total) may be missing"
    )


def _hidden(a: Analysis, nic: Nic, *, before: bool) -> float:
    """Bytes a second that a NIC sends beside the flows that are known."""
    out = into = 0.0
    for f in a.flows_of(nic.id):
        value = (f.sent_before if before else f.sent) or 0.0
        if f.source == nic.id:
            out += value
        else:
            into += value
    sent = (nic.transmitted_before if before else nic.transmitted) or 0.0
    return max(0.0, sent - _AGAIN * out - _ACKNOWLEDGED * into)


def _shares(a: Analysis, flows: Iterable[Flow], arriving: bool, before: bool) -> dict[str, dict[str, float]]:
    sent: dict[str, dict[str, float]] = {nic.host: {} for nic in a.nics}
    for nic in a.nics:
        sent[nic.host].setdefault(nic.device, 0.0)
    for f in flows:
        end = f.target if arriving else f.source
        value = f.sent_before if before else f.sent
        if value is not None and end in a.nics:
            sent[end.host][end.device] += value
    found = {host: _by_mean(devices) for host, devices in sent.items()}
    return {host: devices for host, devices in found.items() if devices}


def _by_mean(devices: Mapping[str, float]) -> dict[str, float]:
    """{} for fewer than two devices, or where nothing is sent."""
    mean = sum(devices.values()) / len(devices) if devices else 0.0
    return (
        {device: value / mean for device, value in devices.items()} if len(devices) >= 2 and mean > 0 else {}
    )


def idle_nics(a: Analysis) -> dict[NicId, float]:
    """NICs of fewer than half of the hosts that carry little in both directions, while hosts that have nothing to do
    with them use theirs equally: with the larger of both shares. Without them no share is unequal. Who talks to few
    others has such NICs because of one of those: one NIC that explains all of it alone goes before."""
    out, into = shares(a), shares(a, arriving=True)
    idle = {
        NicId(host, device): worse
        for host, devices in out.items()
        for device, share in devices.items()
        if (worse := max(share, into.get(host, {}).get(device, 1.0))) <= UNEVEN
    }
    rest = _Rest(a)
    alone = {nic: share for nic, share in idle.items() if rest.is_even_without(nic.host)}
    if alone and len(alone) * 2 < len(out):
        return alone
    hosts = {nic.host for nic in idle}
    if len(hosts) * 2 >= len(out):
        return {}
    others = [f for f in a.facts.flows if not {f.source.host, f.target.host} & hosts]
    left = [min(devices.values()) for devices in shares(a, others).values()]
    return idle if left and median(left) >= EVEN else {}


class _Rest:
    """What hosts send without one of them. Of a large job every host may have an idle NIC: only those that send to a
    host are looked at for it."""

    def __init__(self, a: Analysis) -> None:
        self._sent: dict[str, dict[str, float]] = {nic.host: {} for nic in a.nics}
        for nic in a.nics:
            self._sent[nic.host][nic.device] = 0.0
        self._into: defaultdict[str, defaultdict[str, dict[str, float]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for f in a.facts.flows:
            if f.sent is not None and f.source in a.nics:
                host, device = f.source
                self._sent[host][device] += f.sent
                to = self._into[f.target.host][host]
                to[device] = to.get(device, 0.0) + f.sent
        self._unknown = {nic.host for nic in unknown_nics(a)}
        least = {
            host: min(share.values())
            for host, d in self._sent.items()
            if host not in self._unknown and (share := _by_mean(d))
        }
        self._even = {host for host, share in least.items() if share >= EVEN}
        self._uneven = least.keys() - self._even

    def is_even_without(self, host: str) -> bool:
        """Whether the others use their NICs equally, but for what they send to this host; False where they send
        nothing else."""
        into: Mapping[str, Mapping[str, float]] = self._into.get(host, {})
        if self._uneven - into.keys() - {host}:
            return False
        known = bool(self._even - into.keys() - {host})
        for sender, to in into.items():
            if sender == host or sender in self._unknown:
                continue
            sent = self._sent[sender]
            left = {device: value - to.get(device, 0.0) for device, value in sent.items()}
            # What is left of a difference of equal sums is rounding.
            left = {
                device: value if value > _ROUNDING * sent[device] else 0.0 for device, value in left.items()
            }
            if share := _by_mean(left):
                if min(share.values()) < EVEN:
                    return False
                known = True
        return known


def find(a: Analysis) -> Iterator[Finding]:
    """One finding a host, or a NIC that is idle."""
    idle = idle_nics(a)
    usual = shares(a, before=True)
    for nic, share in sorted(idle.items()):
        evidence = [
            Evidence(
                f"{nic} sends and receives at most {share:.0%} of what the NICs of its host do on average",
                grows(1 - share, 1 - UNEVEN, 0.9, 0.85, 0.95),
                "sent",
            ),
            Evidence("hosts that do not talk to it use their NICs equally", 0.5, "sent"),
        ]
        if a.nics[nic].avoided:
            evidence.append(Evidence("remediation keeps the job off it", 0.9, "avoided"))
        found = finding("lane_imbalance", str(nic), evidence, [nic_subject(nic)], "qp")
        if usual.get(nic.host, {}).get(nic.device, 1.0) <= UNEVEN:
            found = as_hint(found, OLD_SHARES)
        elif _may_be_broken(a, nic):
            found = as_undecided(found, NOT_SEEN)
        elif silent := _peers_unknown(a, nic):
            found = as_undecided(found, silent)
        yield found
    by_host = {} if idle else shares(a)
    if len(by_host) < 3 or median(min(s.values()) for s in by_host.values()) < EVEN:
        return
    yield from _not_known(a)
    for host, devices in sorted(by_host.items()):
        device, share = min(devices.items(), key=lambda item: item[1])
        nic = NicId(host, device)
        if share > UNEVEN:
            continue
        evidence = [
            Evidence(
                f"{nic} carries {share:.0%} of what the NICs of its host carry on average",
                grows(1 - share, 1 - UNEVEN, 0.9, 0.85, 0.95),
                "sent",
            ),
            Evidence("on the other hosts the NICs carry equal shares", 0.5, "sent"),
        ]
        avoided = a.nics[nic].avoided
        if avoided:
            evidence.append(Evidence("remediation keeps the job off it", 0.9, "avoided"))
        # What is wrong with a NIC that it sends to makes it carry little.
        ends = {nic, *(f.target for f in a.flows_of(nic) if f.source == nic)}
        found = finding(
            "lane_imbalance", str(nic), evidence, [nic_subject(end) for end in sorted(ends)], "qp"
        )
        if usual.get(host, {}).get(device, 1.0) <= UNEVEN:
            found = as_hint(found, OLD_SHARES)
        elif any(_may_be_broken(a, end) for end in ends):
            found = as_undecided(found, NOT_SEEN)
        elif silent := _peers_unknown(a, nic):
            found = as_undecided(found, silent)
        yield found


def maybe_idle(a: Analysis) -> dict[NicId, float]:
    """NICs with a small share of what is known, of which not all is: that share."""
    known = {nic: _of_all(a).get(nic.host, {}).get(nic.device, 1.0) for nic in unknown_nics(a)}
    return {nic: share for nic, share in known.items() if share <= UNEVEN}


def _not_known(a: Analysis) -> Iterator[Finding]:
    for nic, share in sorted(maybe_idle(a).items()):
        text = f"of what is known {nic} carries {share:.0%} of what the NICs of its host carry on average"
        evidence = [Evidence(text, grows(1 - share, 1 - UNEVEN, 0.9, 0.85, 0.95), "sent")]
        found = finding("lane_imbalance", str(nic), evidence, [nic_subject(nic)], "qp")
        yield as_undecided(found, unknown_nics(a)[nic])


def _peers_unknown(a: Analysis, nic: NicId) -> str:
    """Why its share may be that of a NIC it sends to: without what goes to hosts whose qp exporter does not answer it
    is not known, or as large as others'; so it is with hosts of whose NICs is not known what they carry. Empty where it
    is small all the same, or is so on purpose."""
    known = a.nics.get(nic)
    missing = set(a.missing().get("qp", ()))
    own = [f for other in a.nics_of(nic.host) for f in a.flows_of(other.id) if f.source.host == nic.host]
    gaps = {end.host for end in unknown_nics(a)} - {nic.host}
    silent = sorted({f.target.host for f in own} & (missing | gaps))
    if not silent or (known is not None and known.avoided):
        return ""
    rest = [f for f in own if f.target.host not in silent]
    if shares(a, rest).get(nic.host, {}).get(nic.device, 1.0) <= UNEVEN:
        return ""
    if silent[0] not in missing:
        return f"not all is known of what NICs of {', '.join(silent[:3])}, to which it sends, carry"
    return f"no qp exporter says which NICs {', '.join(silent[:3])}, to which it sends, uses"


def _may_be_broken(a: Analysis, nic: NicId) -> bool:
    """Whether nobody says if it is connected, and it is not out of service on purpose."""
    known = a.nics.get(nic)
    return known is not None and known.connected is None and not known.avoided
