"""From flows that suffer to the components that explain it. Pure.

Each packet of a flow is lost with a probability that the faulty components on its path give it:
1 - (1 - background) * prod(1 - q). The likelihood of what was observed, with a prior probability for each kind of
component, is maximised greedily, one component at a time, each with the loss that fits it best; then every choice is
taken back once, to see whether others explain the evidence better without it (after Flock, arXiv 2305.03348, which
maximises the same likelihood; there the loss of a faulty link is one fixed number).

What makes it cheap: a flow without loss speaks against a component with `n * log(1 - q)` whatever else is faulty, so
that of all healthy flows only their number of packets matters, and that is known beforehand (`Totals`).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fabricpulse.diagnosis.flows.components import LOG_OTHER_WAY, LOG_PRIOR, Kind, code, kinds, parts
from fabricpulse.diagnosis.flows.flow_table import Floats, Flows, FlowTable, Totals
from fabricpulse.diagnosis.search.losses import Evidence, Parameters, alone, evidence_of
from fabricpulse.diagnosis.search.unseen import NOTHING_UNSEEN, Unseen

# The share of packets that is all of them.
_ALL = 0.9999
_GRID = np.concatenate([np.geomspace(1e-4, 0.5, 36), [0.6, 0.7, 0.8, 0.9, 0.96, 0.99, _ALL]])
# Candidates of a kind that are examined closely at once, the best ones by themselves: bounds time and memory. Under a
# switch that loses much every pair scores better than a NIC that loses little, so what is found is left out and the
# best of the rest is examined, round by round.
_MOST_OF_A_KIND = 200
_ROUNDS = 6
# Choices that are taken back for a trial, and what may be put in the place of one.
_MOST_DOUBTS, _MOST_INSTEAD = 16, 6
_REFITS = 4
_TOLERANCE = 1.3
_LEVELS_A_FACTOR = 64
# Nats by which both ways of a link are more probable than two links.
_BOTH_WAYS = LOG_OTHER_WAY - LOG_PRIOR[Kind.LINK]
# Nats by which a fault that takes some source ports is more probably one behind a switch, which hashes them, than one
# of a NIC. A NIC with several queues hashes, too.
_BY_HASH = 2.0
# What others explain of the same flows is about 1 % off, as hosts report at different moments; a smaller difference
# does not tell two components apart.
_INEXACT = 0.01
# Lost packets at least that flows without any would have been expected to lose.
_MISSED = 30.0


@dataclass(frozen=True)
class Finding:
    """One component that is faulty.

    share : of its packets that suffer, 0 to 1. score : nats by which it is more probable than that nothing is wrong.
    confidence : probability that it is this component, given that one of the candidates for this evidence is.
    alternatives : others that explain it about as well, best first; with any, the component cannot be distinguished
    from them. runner_up : the best other candidate, None if there is none. flows : those that suffer and cross it.
    """

    component: int
    share: float
    score: float
    confidence: float
    alternatives: tuple[int, ...]
    runner_up: int | None
    flows: tuple[int, ...]


@dataclass(frozen=True)
class Diagnosis:
    """findings : best first. unexplained : flows that suffer more than the findings and the background say."""

    findings: tuple[Finding, ...]
    unexplained: tuple[int, ...]


@dataclass(frozen=True)
class _Chosen:
    """components : by number, with the share of packets that each loses. loss : of each row, as they explain it."""

    components: tuple[int, ...]
    shares: tuple[float, ...]
    loss: Floats


def locate(
    table: FlowTable,
    totals: Totals,
    flows: Flows,
    lost: Floats,
    sent: Floats,
    window_s: float | None,
    parameters: Parameters | None = None,
    unseen: Unseen = NOTHING_UNSEEN,
    known: Collection[int] = (),
) -> Diagnosis:
    """What explains that `flows` (ascending) have lost `lost` of `sent` packets each, and all others none.

    window_s : seconds in which that happened; what the others sent in it is taken from their rates. None: `lost` and
    `sent` are no packets but 1 for each flow that suffers (delay, size of packets), and each other flow is one that
    does not. unseen : packets of the window of which nobody would know that they were lost. known : components that are
    known to have been faulty before.
    """
    p = parameters or Parameters()
    if window_s is None:
        p = replace(p, background=max(p.background, 1e-3), dispersion=1.0)
    there = lost > 0
    flows, lost, sent = flows[there], lost[there].astype(float), np.maximum(sent, lost)[there].astype(float)
    if not len(flows):
        return Diagnosis((), ())
    evidence = evidence_of(table, totals, flows, lost, sent, window_s, p, unseen, known)
    chosen = _with_shares(evidence, (), (), p)
    # Else two that are faulty already and one more may look like one that is the rest of both, and be left at that.
    old = np.array([place for place in map(evidence.find, sorted(known)) if place >= 0], np.int64)
    chosen = _greedy(evidence, chosen, old, p.most, p)
    sure: tuple[int, ...] | None = None
    for _ in range(_ROUNDS):
        before = chosen.components
        close = _candidates(evidence, chosen, p)
        chosen = _refitted(evidence, _greedy(evidence, chosen, close, p.most, p), p)
        if chosen.components == sure:
            break
        # What has withstood every doubt is not doubted again.
        better = _improved(evidence, chosen, p)
        sure = better.components if better.components == chosen.components else None
        chosen = better
        if chosen.components == before:
            break
    findings = _described(evidence, chosen, p)
    loss = np.full(len(flows), p.background)
    loss[np.searchsorted(flows, evidence.flows)] = chosen.loss
    expected = sent * loss
    # What the findings leave: three standard deviations above what they explain, and one train more.
    beyond = lost > expected + 3 * np.sqrt(p.dispersion * np.maximum(expected, 1e-9)) + p.dispersion
    return Diagnosis(findings, tuple(int(flow) for flow in flows[beyond]))


def _excused(evidence: Evidence, chosen: _Chosen) -> Floats:
    """The loss of each row for what is still to be explained. Hosts do not report at one moment, so a flow may lose
    somewhat more than what explains it. What stands for several switches that cannot be distinguished loses more on
    some flows than on others, and they ask for no further explanation.
    """
    least = chosen.loss
    observed = np.minimum(evidence.lost / evidence.sent, _ALL)
    known = np.zeros(len(least), bool)
    most = least.copy()
    for component in chosen.components:
        rows = evidence.rows(component)
        known[rows] = True
        if evidence.unnamed[component]:
            most[rows] = 1.0
            rows = evidence.akin(component)
            known[rows] = True
            most[rows] = 1.0
    most = np.where(known, np.maximum(most, _TOLERANCE * least), least)
    return np.maximum(least, np.minimum(observed, most))


def _candidates(evidence: Evidence, chosen: _Chosen, p: Parameters) -> Flows:
    """Components that lose more than what is explained already, and those that share flows with what is chosen."""
    unexplained = evidence.lost * p.background / _excused(evidence, chosen)
    score = alone(evidence.summed(unexplained), evidence.packets, evidence.prior, p)
    able = np.flatnonzero(score > p.threshold)
    able = able[np.argsort(-score[able], kind="stable")]
    kind = kinds(evidence.components[able])
    best = [able[kind == each][:_MOST_OF_A_KIND] for each in Kind]
    return np.unique(np.concatenate([*best, *(_rivals(evidence, each) for each in chosen.components)]))


def _rivals(evidence: Evidence, component: int) -> Flows:
    """The components that lose some of the same packets: what could be faulty in its place; itself too."""
    if component not in evidence.rivals:
        weight = np.zeros(len(evidence.lost))
        rows = evidence.rows(component)
        weight[rows] = evidence.lost[rows]
        shared = evidence.summed(weight)
        rivals = np.flatnonzero(shared > 0.02 * evidence.hit[component])
        evidence.rivals[component] = rivals[np.argsort(-shared[rivals], kind="stable")[:_MOST_OF_A_KIND]]
    return evidence.rivals[component]


def _with_shares(
    evidence: Evidence, components: tuple[int, ...], shares: tuple[float, ...], p: Parameters
) -> _Chosen:
    passes = np.full(len(evidence.lost), 1 - p.background)
    for component, share in zip(components, shares, strict=True):
        passes[evidence.rows(component)] *= 1 - share
    return _Chosen(components, shares, 1 - passes)


def _without(evidence: Evidence, chosen: _Chosen, component: int, p: Parameters) -> _Chosen:
    kept = [pair for pair in zip(chosen.components, chosen.shares, strict=True) if pair[0] != component]
    rest = _with_shares(evidence, tuple(c for c, _ in kept), tuple(q for _, q in kept), p)
    return _refitted(evidence, rest, p)


def _refitted(evidence: Evidence, chosen: _Chosen, p: Parameters) -> _Chosen:
    """The same components with the shares that fit best together: expectation maximisation of the noisy-or."""
    for _ in range(_REFITS if chosen.components else 0):
        blamed = evidence.lost / chosen.loss
        shares = tuple(
            min(share * float(blamed[evidence.rows(component)].sum()) / evidence.packets[component], _ALL)
            for component, share in zip(chosen.components, chosen.shares, strict=True)
        )
        chosen = _with_shares(evidence, chosen.components, shares, p)
    return chosen


def _score(evidence: Evidence, chosen: _Chosen, p: Parameters, damped: float = 1.0) -> float:
    """Nats by which this explains the evidence better than nothing does, prior probabilities included. damped : what is
    left of what the evidence says.
    """
    at = list(chosen.components)
    # What may cross a choice counts as far as it suffers; to be well speaks against none: it may cross another one.
    loss = chosen.loss.copy()
    for component in at:
        if evidence.unnamed[component]:
            rows = evidence.akin(component)
            observed = np.minimum(evidence.lost[rows] / evidence.sent[rows], _ALL)
            loss[rows] = np.maximum(loss[rows], observed)
    kept = ((evidence.packets - evidence.hit)[at] * np.log1p(-np.array(chosen.shares))).sum()
    explained = (evidence.lost * np.log(np.minimum(loss, _ALL) / p.background)).sum()
    ways = evidence.back[at]
    cables = evidence.both[at][(ways >= 0) & np.isin(ways, at)].sum() / 2
    prior = evidence.prior[at].sum() + cables
    return float(damped * (kept + explained) / p.dispersion + prior)


def _levels(loss: Floats, lost: Floats, p: Parameters) -> tuple[Floats, Flows]:
    """Few levels that stand for the losses of all rows, and the level of each row.

    Excused rows have nearly as many losses as there are rows, and a matrix of components times levels would cost more
    than all else. A level spans 1/64 of a factor of e and stands at the mean of its packets, so that the error of a
    score is of the second order: below 1e-5 nats a lost packet.
    """
    loss = np.maximum(loss, p.background)
    place = (np.log((loss / p.background).astype(np.float32)) * _LEVELS_A_FACTOR).astype(np.int64)
    packets = np.bincount(place, weights=lost)
    there = np.flatnonzero(packets)
    number = np.zeros(len(packets), np.int64)
    number[there] = np.arange(len(there))
    return (np.bincount(place, weights=lost * loss)[there] / packets[there]).astype(float), number[place]


def _scores(
    evidence: Evidence,
    loss: Floats,
    components: Flows,
    p: Parameters,
    crossings: tuple[Flows, Flows] | None = None,
) -> tuple[Floats, Floats]:
    """Of each of `components`: the nats that it adds where `loss` is explained already, and its best share. crossings :
    theirs, where they are known.
    """
    levels, level = _levels(loss, evidence.lost, p)
    row, column = crossings or evidence.crossings(components)
    size = len(components), len(levels)
    by_level = np.bincount(
        column * size[1] + level[row], weights=evidence.lost[row], minlength=size[0] * size[1]
    ).reshape(size)
    # What each lost packet says for a share q, where a loss was expected already.
    says = np.log((1 - np.outer(1 - levels, 1 - _GRID)) / levels[:, None])
    # That all is lost is explained: that it is even more certain beside another fault says nothing, of many packets.
    says[levels > _ALL - 1e-6] = 0
    left = (evidence.packets - evidence.hit)[components]
    gain = by_level @ says + np.outer(left, np.log1p(-_GRID))
    best = np.argmax(gain, axis=1)
    return gain[np.arange(size[0]), best] / p.dispersion + evidence.prior[components], _GRID[best]


def _greedy(
    evidence: Evidence, chosen: _Chosen, close: Flows, most: int, p: Parameters, target: float = -np.inf
) -> _Chosen:
    """Chooses up to `most` more of `close`, one at a time, until nothing explains enough any more, or all that are left
    could not reach the score `target`: each explains less than the one before, twice as much is allowed for.
    """
    crossings = evidence.crossings(close)
    for step in range(most if len(close) else 0):
        scores, shares = _scores(evidence, _excused(evidence, chosen), close, p, crossings)
        scores[np.isin(close, chosen.components)] = -np.inf
        # The other way of a link that is faulty is not named by less, but before what explains as much.
        ways = np.isin(evidence.back[close], chosen.components)
        best = int(np.argmax(np.where(scores < p.threshold, -np.inf, scores + ways * evidence.both[close])))
        if scores[best] < p.threshold:
            break
        # Before the first step the shares of the others have not been fitted to what was taken back.
        if (
            step
            and target > -np.inf
            and _score(evidence, chosen, p) + 2 * (most - step) * scores[best] < target
        ):
            break
        components = (*chosen.components, int(close[best]))
        chosen = _with_shares(evidence, components, (*chosen.shares, float(shares[best])), p)
        chosen = _refitted(evidence, chosen, p)
    return chosen


def _improved(evidence: Evidence, chosen: _Chosen, p: Parameters) -> _Chosen:
    """Without each choice in turn: a switch that was named first may be some of its links, better named alone."""
    score = _score(evidence, chosen, p)
    for component in chosen.components[:_MOST_DOUBTS]:
        if component not in chosen.components:
            continue
        kept = [pair for pair in zip(chosen.components, chosen.shares, strict=True) if pair[0] != component]
        rest = _with_shares(evidence, tuple(c for c, _ in kept), tuple(q for _, q in kept), p)
        rivals = _rivals(evidence, component)
        rivals = rivals[rivals != component]
        instead = [rivals]
        kind = kinds(evidence.components)
        if kind[component] == Kind.SWITCH:
            # Both ways of a cable explain less, each, than the switch beyond it: the next best switch hides them.
            instead.append(rivals[kind[rivals] != Kind.SWITCH])
        for some in instead:
            other = _greedy(evidence, rest, some, _MOST_INSTEAD, p, score)
            if (better := _score(evidence, other, p)) > score + 1e-6:
                chosen, score = other, better
    return _merged(evidence, chosen, p)


def _merged(evidence: Evidence, chosen: _Chosen, p: Parameters) -> _Chosen:
    """With a switch in the place of some of its links that were chosen: none of them can be taken back alone, where the
    others leave too little for the switch. Those that lose more than it remain.

    Of a switch that stands for several each flow takes one, all its packets the same: so many flows of a link cross a
    faulty one by chance, and each flow counts as one packet.
    """
    ends: dict[int, set[int]] = {}
    for component in chosen.components:
        kind, *both = parts(int(evidence.components[component]))
        for node in both if kind is Kind.LINK else ():
            ends.setdefault(node, set()).add(component)
    for node, links in sorted(ends.items()):
        switch = evidence.find(code(Kind.SWITCH, node))
        links &= set(chosen.components)
        if len(links) < 2 or switch < 0 or switch in chosen.components:
            continue
        share = min(chosen.shares[chosen.components.index(link)] for link in links)
        other = _with_shares(evidence, (*chosen.components, switch), (*chosen.shares, share), p)
        other = _refitted(evidence, other, p)
        damped = 1.0
        if evidence.unnamed[switch]:
            damped = min(p.dispersion / float(evidence.lost[evidence.rows(switch)].mean()), 1.0)
        score, better = (_score(evidence, each, p, damped) for each in (chosen, other))
        # What loses hardly more than the switch first.
        for _, link in sorted(
            (q, c) for c, q in zip(other.components, other.shares, strict=True) if c in links
        ):
            without = _without(evidence, other, link, p)
            if (left := _score(evidence, without, p, damped)) > better:
                other, better = without, left
        if better > score + 1e-6:
            chosen = other
    return chosen


def _cables(
    evidence: Evidence, component: int, rivals: Flows, scores: Floats
) -> Iterator[tuple[int, int, float]]:
    """What else a switch or a NIC may be: both ways of one of its links, with what they explain together."""
    kind = kinds(evidence.components[[component]])[0]
    if kind not in (Kind.SWITCH, Kind.NIC):
        return
    more = _BY_HASH if kind == Kind.NIC and _by_hash(evidence, component) else 0.0
    score = dict(zip(rivals.tolist(), scores.tolist(), strict=True))
    for one, own in score.items():
        other = int(evidence.back[one])
        if one < other and other in score:
            yield one, other, own + score[other] + _BOTH_WAYS + more


def _by_hash(evidence: Evidence, component: int) -> bool:
    """Whether a good part of what crosses it loses nothing, where flows that lose packets lose many."""
    crossed, hit = evidence.packets[component], evidence.hit[component]
    well = crossed - evidence.sent[evidence.rows(component)].sum()
    return bool(well > 0.3 * crossed and well * hit / crossed > _MISSED)


def _whole(
    evidence: Evidence, chosen: _Chosen, component: int, score: float, p: Parameters
) -> Iterator[tuple[int, float]]:
    """What else both ways of a cable may be: a switch at its end, with the nats by which that explains more."""
    other = int(evidence.back[component])
    if other not in chosen.components:
        return
    rest = _without(evidence, _without(evidence, chosen, component, p), other, p)
    share = min(chosen.shares[chosen.components.index(way)] for way in (component, other))
    for node in parts(int(evidence.components[component]))[1:]:
        switch = evidence.find(code(Kind.SWITCH, node))
        if switch < 0 or switch in chosen.components:
            continue
        one = _with_shares(evidence, (*rest.components, switch), (*rest.shares, share), p)
        yield switch, _score(evidence, _refitted(evidence, one, p), p) - score


def _nats(evidence: Evidence, chosen: _Chosen, rows: Flows, p: Parameters) -> float:
    """By how much this explains what some rows have lost better than nothing does."""
    says = evidence.lost[rows] * np.log(np.minimum(chosen.loss[rows], _ALL) / p.background)
    return float(says.sum()) / p.dispersion


def _described(evidence: Evidence, chosen: _Chosen, p: Parameters) -> tuple[Finding, ...]:
    findings = []
    total = _score(evidence, chosen, p)
    for number, component in enumerate(chosen.components):
        others = [k for k in range(len(chosen.components)) if k != number]
        without = _with_shares(
            evidence, tuple(chosen.components[k] for k in others), tuple(chosen.shares[k] for k in others), p
        )
        rows = evidence.rows(component)
        rivals = np.array([c for c in _rivals(evidence, component) if c not in without.components])
        scores, _ = _scores(evidence, without.loss, rivals, p)
        # That one of two that explain alike has the name already makes it no surer.
        scores = scores - evidence.boost[rivals]
        best = np.argsort(-scores, kind="stable")
        own = float(scores[rivals == component][0])
        margin = max(p.alternatives, _INEXACT * _nats(evidence, without, rows, p))
        temper = p.alternatives / margin
        odds = np.exp(temper * np.minimum(scores - own, 0.0)).sum()
        ranked = [int(k) for k in best if rivals[k] != component]
        alike = [int(evidence.components[rivals[k]]) for k in ranked if scores[k] > own - margin]
        for one, other, score in _cables(evidence, component, rivals, scores):
            odds += np.exp(temper * min(score - own, 0.0))
            if score > own - margin:
                alike += [int(c) for c in evidence.components[[one, other]] if int(c) not in alike]
        for switch, by in _whole(evidence, chosen, component, total, p):
            more = by + float(evidence.boost[[component, evidence.back[component]]].sum())
            odds += np.exp(temper * min(more, 0.0))
            if more > -margin and int(evidence.components[switch]) not in alike:
                alike.append(int(evidence.components[switch]))
        findings.append(
            Finding(
                int(evidence.components[component]),
                chosen.shares[number],
                own,
                float(1 / odds),
                tuple(alike),
                int(evidence.components[rivals[ranked[0]]]) if ranked else None,
                tuple(int(flow) for flow in evidence.flows[rows]),
            )
        )
    return tuple(sorted(findings, key=lambda finding: -finding.score))
