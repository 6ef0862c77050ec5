"""What several causes need of the facts, computed once. Pure.

Thresholds are those of the alerts (mixins/config.libsonnet), so that `why` and an alert do not contradict each other.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import fsum
from statistics import median

from fabricpulse.why.facts import Clock, Collective, Facts, Flow, Host, Nic, NicId

# contentionScore, contentionDelaySeconds, inBandRatio of the mixin.
SLOW_SCORE = 3.0
SLOW_DELAY_S = 50e-6
IN_BAND_RATIO = 3.0
# Quick chunks that are slower than this many medians before are so for another reason than one another.
_MEDIAN_BEFORE = 2.0
# The same of a flow whose quickest chunks are slower than the median ones of each of so many others.
_ALONE_BEFORE, _SIBLINGS = 1.25, 3
# By how much a queue that is news has grown: chunks of a healthy job vary by less from hour to hour.
_GROWN = 1.5
# Of what the job's flows usually carry: on a flow with less, chunks and packets sent again are too few to tell of it.
_MINOR = 0.05
# Share of the time that a sender is paused by the other side (pausedRatio of the mixin).
_PAUSED = 0.05
# From how many senders into one NIC on it may be an incast; which share of those into it must wait, as they all pass
# the port before it.
INCAST_SENDERS = 3
_INCAST_SHARE = 0.75
# Above the spread of a healthy job between two windows of two minutes.
SLOWER = 1.15
STALLED_S = 5.0
# How many collectives should have ended meanwhile for none to be a stall.
_MISSED = 5.0
# Fleet time of a host that is known no better than this tells nothing of delays in a fabric.
BOUND_S = 1e-3


class Analysis:
    """Facts with what follows from them directly."""

    def __init__(self, facts: Facts) -> None:
        wrong = {clock.host for clock in facts.clocks if is_wrong(clock)}
        if wrong:
            # One-way delays from and to a wrong clock are no delays.
            facts = replace(facts, flows=tuple(_without_delay(f, wrong) for f in facts.flows))
        self.facts = facts
        self.nics: dict[NicId, Nic] = {nic.id: nic for nic in facts.nics}
        self.hosts: dict[str, Host] = {host.name: host for host in facts.hosts}
        # Of `lane_imbalance`, by its arguments: shares of what is known, of hosts of which all is, and what is not.
        self.shares: dict[tuple[bool, bool], dict[str, dict[str, float]]] = {}
        self.known_shares: dict[tuple[bool, bool], dict[str, dict[str, float]]] = {}
        self.unknown_nics: dict[tuple[bool, bool], dict[NicId, str]] = {}

    # How the job does.

    @cached_property
    def main(self) -> Collective | None:
        """The collective that the job spends most of its time in, of those that are known now and before."""
        known = [c for c in self.facts.collectives if c.bandwidth is not None or c.rate is not None]
        return max(known, key=lambda c: (c.busy_share or 0.0, c.name), default=None)

    @cached_property
    def pace(self) -> float | None:
        """Operations a second now by those before, over collectives whose size has not changed; None: not known."""
        if not self.facts.whole:
            return None
        ratios = [
            (c.rate / c.rate_before, c.busy_share or 0.01)
            for c in self.facts.collectives
            if c.rate is not None and c.rate_before and self._same_size(c)
        ]
        return _weighted(ratios)

    @cached_property
    def duration(self) -> float | None:
        """How many times as long the same collectives take as before; None: not known."""
        ratios = [
            (c.bandwidth_before / c.bandwidth, c.busy_share or 0.01)
            for c in self.facts.collectives
            if c.bandwidth and c.bandwidth_before and self._same_size(c)
        ]
        return _weighted(ratios)

    @cached_property
    def slower_than_before(self) -> bool:
        """Whether it is known to be slower than in the baseline: then what was so there as well is not why."""
        return (self.pace is not None and self.pace < 1 / SLOWER) or (
            self.duration is not None and self.duration > SLOWER
        )

    @cached_property
    def rest_share(self) -> float | None:
        """Of the time by which turns of collectives have grown, the share that ranks are outside of them; None where
        they have not grown, or it is not known."""
        if not self.facts.whole:
            return None
        grown = outside = 0.0
        for c in self.facts.collectives:
            if not (c.rate and c.rate_before and c.bandwidth and c.bandwidth_before):
                continue
            if not (c.size and c.size_before and self._same_size(c)):
                continue
            weight = c.busy_share or 0.01
            turn = 1 / c.rate - 1 / c.rate_before
            grown += weight * turn
            outside += weight * (turn - (c.size / c.bandwidth - c.size_before / c.bandwidth_before))
        return outside / grown if grown > 0 else None

    @cached_property
    def siblings(self) -> float | None:
        """Bandwidth of the main collective by that of other jobs with such sizes; None: not known."""
        main = self.main
        return main.bandwidth / main.siblings if main and main.bandwidth and main.siblings else None

    @cached_property
    def slow(self) -> bool | None:
        """Slower than itself before, or far slower than other jobs; None when neither is known."""
        if self.stalled:
            return True
        known_answers = [
            known
            for known in (
                None if self.pace is None else self.pace < 1 / SLOWER,
                None if self.duration is None else self.duration > SLOWER,
                None if self.siblings is None else self.siblings < 0.6,
            )
            if known is not None
        ]
        return any(known_answers) if known_answers else None

    @cached_property
    def stalled(self) -> bool | None:
        """Collectives have been started and none has ended in the window, or nothing moves; None: not known.

        Exporters show only the few oldest requests of a host, and only while nothing moves on their connection.
        """
        if self.facts.silent_s is not None or self.facts.gone_s is not None:
            return None
        ranks = [r for r in self.facts.ranks if r.rate is not None]
        inside = any((r.in_progress or 0) > 0 for r in ranks)
        still = bool(ranks) and all(r.rate == 0 for r in ranks)
        if still and (inside or self.facts.mismatches):
            return True
        if ranks and inside and self._overdue:
            return True
        old = [w for w in self.facts.waits if w.age_s >= STALLED_S]
        if still and old and self.hosts:
            # Outside of collectives: a receive of a pipeline waits as long in a service that nobody asks.
            return None
        # Before a window has passed: requests that are old on, or towards, at least half of the hosts.
        if old and len({h for w in old for h in (w.host, w.peer)} & self.hosts.keys()) * 2 >= len(self.hosts):
            return True
        if ranks:
            return False
        sent = [f.sent for f in self.facts.flows if f.sent is not None]
        if not sent:
            return None
        return bool(old) and all(s == 0 for s in sent)

    @cached_property
    def still_s(self) -> float:
        """For how long at least no collective of a job that stands still has ended; 0: not known."""
        facts = self.facts
        window_s = facts.window_s
        if facts.started_s is not None:
            window_s = min(window_s, max(0.0, facts.at_s - facts.started_s))
        known = [window_s if r.still_s is None else r.still_s for r in facts.ranks if r.rate == 0]
        if known and len(known) == len(facts.ranks):
            return min(known)
        # Before a window has passed.
        return max((w.age_s for w in facts.waits), default=facts.unmoved_s or 0.0)

    @property
    def _overdue(self) -> bool:
        """Whether no rank has ended a collective for much longer than they usually take."""
        unmoved_s, window_s = self.facts.unmoved_s, self.facts.window_s
        if unmoved_s is None or unmoved_s >= window_s:
            return False
        usual = max(
            r.rate_before or (r.rate or 0.0) * window_s / (window_s - unmoved_s) for r in self.facts.ranks
        )
        return usual * unmoved_s >= _MISSED

    def _same_size(self, c: Collective) -> bool:
        return not (c.size and c.size_before) or 0.8 < c.size / c.size_before < 1.25

    # Flows.

    @cached_property
    def quick_s(self) -> float | None:
        """Delay of the quick quarter of the job's flows; None when no delay is known."""
        return lower_quarter(self._delays) if self._delays else None

    @cached_property
    def _delays(self) -> list[float]:
        """Of all flows of which one is known, in order."""
        return sorted(f.delay_s for f in self.facts.flows if f.delay_s is not None)

    @cached_property
    def slow_flows(self) -> tuple[Flow, ...]:
        """Flows with far more delay than the job's quick ones, or than they had; as FabricPathContended has it."""
        quick = self.quick_s
        if quick is None:
            return ()
        return tuple(f for f in self.facts.flows if self._slow(f, quick))

    @cached_property
    def slow_set(self) -> frozenset[Flow]:
        """`slow_flows`, to look one up."""
        return frozenset(self.slow_flows)

    def _slow(self, f: Flow, quick_s: float) -> bool:
        if f.delay_s is None or f.delay_s <= SLOW_DELAY_S:
            return False
        grown = f.delay_before_s is not None and f.delay_s > SLOW_SCORE * f.delay_before_s
        return f.delay_s > SLOW_SCORE * quick_s or grown

    def minor(self, f: Flow) -> bool:
        """Whether hardly anything of the job goes over it, as over a lane that stands in for another one."""
        return f.sent is not None and f.sent < _MINOR * self._usual_sent

    @cached_property
    def _usual_sent(self) -> float:
        return median([f.sent for f in self.facts.flows if f.sent] or [0.0])

    def score(self, f: Flow) -> float:
        """How many times as slow as the job's quick flows, or as itself before, whichever is more; 0: not known."""
        quick = self.quick_s
        if f.delay_s is None or not quick:
            return 0.0
        before = f.delay_s / f.delay_before_s if f.delay_before_s else 0.0
        return max(f.delay_s / quick, before)

    def grown(self, f: Flow) -> bool | None:
        """Whether it waits longer than before; None: not known."""
        if f.delay_s is None or f.delay_before_s is None:
            return None
        return f.delay_s > _GROWN * f.delay_before_s

    def congested(self, f: Flow) -> bool:
        """Whether the flow shows signs of a queue: marks or packets sent again, its own or, as drivers count those of
        RDMA for the port alone, those of its NICs; or a sender that is paused. Less bandwidth alone is none, as the
        slowest flow of a ring slows all."""
        if (f.marked or 0.0) > 1.0 or (f.retransmits or 0.0) > 1.0:
            return True
        source, target = self.nics.get(f.source), self.nics.get(f.target)
        if source is None:
            return False
        if (source.pause_received or 0.0) > _PAUSED:
            return True
        if f.marked is not None or f.retransmits is not None:
            return False
        asked_to_slow = (source.slowed or 0.0) > 1.0
        # Where the receiver counts marks, and none arrive there, another flow of the sender was meant.
        if asked_to_slow and target is not None and target.marked is not None:
            asked_to_slow = target.marked > 1.0
        return asked_to_slow or (source.resent or 0.0) > 1.0

    def signs_known(self, f: Flow) -> bool:
        """Whether a queue on its way would be seen."""
        if f.marked is not None or f.retransmits is not None:
            # A queue drops, or marks: one of the two says nothing of the other.
            return f.marked is not None and f.retransmits is not None
        source = self.nics.get(f.source)
        return source is not None and (source.slowed, source.resent) != (None, None)

    def signs(self, flows: Iterable[Flow]) -> str:
        """The signs of a queue on these flows, for people."""
        chosen = list(flows)
        nics = {nic.id: nic for f in chosen for end in (f.source, f.target) if (nic := self.nics.get(end))}
        marked = sum(f.marked or 0 for f in chosen) or sum(nic.marked or 0 for nic in nics.values())
        resent = sum(f.retransmits or 0 for f in chosen) or sum(nic.resent or 0 for nic in nics.values())
        paused = max((nics[f.source].pause_received or 0 for f in chosen if f.source in nics), default=0.0)
        text = f"{marked:.0f} packets a second are marked, {resent:.0f} sent again"
        return text + (f"; a sender is paused {paused:.0%} of the time" if paused > _PAUSED else "")

    @cached_property
    def out_of_band(self) -> frozenset[Flow]:
        """Slow flows whose quickest chunks are slow too while probes between the same NICs are quick, nothing says
        congestion and they carry no more than before: another route or encapsulation."""
        if not self._floors:
            return frozenset()
        quick = lower_quarter(self._floors)
        return frozenset(
            f
            for f in self.facts.flows
            if f.floor_s is not None
            and not self.minor(f)
            and f.floor_s > SLOW_DELAY_S
            and f.floor_s > SLOW_SCORE * quick
            and self._beyond_probes(f, f.floor_s)
            and not self.congested(f)
            # What carries more than it did waits for itself.
            and not (f.sent and f.sent_before and f.sent > SLOWER * f.sent_before)
        )

    def _beyond_probes(self, f: Flow, floor_s: float) -> bool:
        """Whether its quick chunks are slow beside probes between the same NICs; where there are none, as a host probes
        some of its peers, beside its own median before."""
        if f.probe_s is not None:
            return floor_s > IN_BAND_RATIO * f.probe_s
        return self._beyond_past(f, floor_s)

    def beyond_probes_before(self, f: Flow) -> bool:
        """Whether its quick chunks were slow beside probes in the baseline as well, so that those say nothing of what
        is news, and its own past says nothing either."""
        if f.probe_s is None or f.floor_s is None or f.floor_before_s is None:
            return False
        return f.floor_before_s > IN_BAND_RATIO * f.probe_s and not self._beyond_past(f, f.floor_s)

    def _beyond_past(self, f: Flow, floor_s: float) -> bool:
        if f.delay_before_s is None:
            return False
        # On a busy fleet all chunks take long: then beside what is usual on every other flow, too.
        delays = self._delays
        others = len(delays) - (f.delay_s is not None)
        alone = others >= _SIBLINGS and floor_s > delays[-2 if f.delay_s == delays[-1] else -1]
        return floor_s > (_ALONE_BEFORE if alone else _MEDIAN_BEFORE) * f.delay_before_s

    @cached_property
    def queued_flows(self) -> tuple[Flow, ...]:
        """Slow flows with signs of a queue that are not out of band: those that are news, if any are."""
        queued = tuple(f for f in self.slow_flows if self.congested(f) and f not in self.out_of_band)
        return tuple(f for f in queued if self.grown(f) is not False) or queued

    @cached_property
    def queues_are_old(self) -> bool:
        """Whether all queued flows have waited as long before."""
        return bool(self.queued_flows) and all(self.grown(f) is False for f in self.queued_flows)

    @cached_property
    def into(self) -> dict[NicId, list[Flow]]:
        """Queued flows by the NIC that they go to."""
        groups: defaultdict[NicId, list[Flow]] = defaultdict(list)
        for f in self.queued_flows:
            groups[f.target].append(f)
        return dict(groups)

    @cached_property
    def incasts(self) -> dict[NicId, list[Flow]]:
        """Of `into` those NICs into which nearly all senders wait: their queue is at the NIC's own port. Where flows of
        some senders are quick, the others wait further away."""
        found = {}
        for target, flows in self.into.items():
            active = {
                f.source
                for f in self.flows_of(target)
                if f.target == target and f.delay_s is not None and f.sent != 0
            }
            senders = {f.source for f in flows}
            if len(senders) >= max(INCAST_SENDERS, _INCAST_SHARE * len(active | senders)):
                found[target] = flows
        return found

    @cached_property
    def queues_between(self) -> tuple[Flow, ...]:
        """Queued flows that are part of no incast."""
        return tuple(f for f in self.queued_flows if f.target not in self.incasts)

    def uses(self, nic: Nic) -> bool:
        """Whether the job sends over NICs of this network, or of this name where the network is not known; True where
        nothing is known of its flows. Of one that is gone nothing is sent, so its like on other hosts count."""
        return not self._used or nic.network in self._used or nic.id.device in self._used

    @cached_property
    def _used(self) -> frozenset[str]:
        ends = {end for f in self.facts.flows for end in (f.source, f.target)}
        networks = {nic.network for end in ends if (nic := self.nics.get(end)) and nic.network}
        return frozenset(networks | {end.device for end in ends})

    def probes_but(self, flows: Iterable[Flow]) -> list[float]:
        """Delays of probes beside all flows but these, in order."""
        return _without(self._probes, (f.probe_s for f in flows))

    @cached_property
    def _probes(self) -> list[float]:
        return sorted(f.probe_s for f in self.facts.flows if f.probe_s is not None)

    def floors_but(self, host: str) -> list[float]:
        """Delays of the quickest chunks of all flows but those from and to a host, in order."""
        own = {f for nic in self.nics_of(host) for f in self.flows_of(nic.id)}
        return _without(self._floors, (f.floor_s for f in own))

    @cached_property
    def _floors(self) -> list[float]:
        return sorted(f.floor_s for f in self.facts.flows if f.floor_s is not None)

    def carried(self, nic: NicId, *, before: bool = False) -> float:
        """Bytes a second of the job from and to a NIC, as far as known."""
        return fsum((f.sent_before if before else f.sent) or 0.0 for f in self.flows_of(nic))

    def flows_of(self, nic: NicId) -> list[Flow]:
        """Flows from or to a NIC."""
        return self._by_nic.get(nic, [])

    @cached_property
    def _by_nic(self) -> dict[NicId, list[Flow]]:
        found: defaultdict[NicId, list[Flow]] = defaultdict(list)
        for f in self.facts.flows:
            for nic in {f.source, f.target}:
                found[nic].append(f)
        return dict(found)

    def nics_of(self, host: str) -> list[Nic]:
        """The NICs of a host."""
        return self._nics_by_host.get(host, [])

    @cached_property
    def _nics_by_host(self) -> dict[str, list[Nic]]:
        found: defaultdict[str, list[Nic]] = defaultdict(list)
        for nic in self.facts.nics:
            found[nic.id.host].append(nic)
        return dict(found)

    # Data.

    def seen(self, component: str) -> bool:
        """Whether this exporter answered on every host of the job."""
        return bool(self.facts.hosts) and all(component in h.exporters for h in self.facts.hosts)

    def missing(self) -> dict[str, tuple[str, ...]]:
        """Exporter -> hosts of the job on which it did not answer; only those that miss somewhere."""
        return self._missing

    @cached_property
    def _missing(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for component in ("mesh", "nic", "qp", "clocksync"):
            hosts = tuple(sorted(h.name for h in self.facts.hosts if component not in h.exporters))
            if hosts:
                found[component] = hosts
        return found


def is_wrong(clock: Clock) -> bool:
    """Whether one-way delays of this host are not to be believed."""
    return bool(
        clock.synchronized is False
        or clock.suspect
        or (clock.disruptions or 0) > 0.5
        or (clock.bound_s is not None and clock.bound_s > BOUND_S)
    )


def _without_delay(f: Flow, hosts: set[str]) -> Flow:
    if f.source.host not in hosts and f.target.host not in hosts:
        return f
    return replace(f, delay_s=None, delay_before_s=None, floor_s=None, probe_s=None)


def nic_subject(nic: NicId) -> tuple[str, ...]:
    """The subject of a NIC."""
    return ("nic", nic.host, nic.device)


def lower_quarter(values: Sequence[float]) -> float:
    """The 25 % quantile of at least one value, between two neighbours in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * 0.25
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _without(ordered: list[float], values: Iterable[float | None]) -> list[float]:
    """An ordered list without one of each of these values, which are in it."""
    left = list(ordered)
    for value in values:
        if value is not None:
            del left[bisect_left(left, value)]
    return left


def _weighted(ratios: list[tuple[float, float]]) -> float | None:
    total = sum(weight for _, weight in ratios)
    return sum(ratio * weight for ratio, weight in ratios) / total if total > 0 else None
