"""From facts to an answer: is the job slow, since when, which causes, how sure. Pure.

Each cause says where the facts show it and how strong each observation is; independent observations are put together as
a noisy OR. A cause that another one brings about is shown below that one. Confidence falls for a cause whose exporters
did not answer everywhere, and nothing is said without data: *unknown* is an answer.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median

from fabricpulse.why.analysis import SLOWER, Analysis
from fabricpulse.why.catalogue import CAUSES, EVERYWHERE, EXPLAINS, HARMLESS, ONLY_IF_SURE
from fabricpulse.why.facts import Facts
from fabricpulse.why.finding import LIKELY, Finding
from fabricpulse.why.flow_view import SeenFlow, seen_flows
from fabricpulse.why.hang import graph_lines
from fabricpulse.why.moment import when
from fabricpulse.why.no_collection import no_collection

STATES = ("healthy", "slow", "stalled", "ended", "unknown")
_MOST_ORIGINS = 5
# Nobody reads more, and each is compared with each.
_MOST_FINDINGS = 300
_MOST_NAMES = 20
# Factor on the confidence for each component whose data is missing on some host.
_MISSING = 0.85


@dataclass(frozen=True)
class Ranked:
    """A finding with what it explains."""

    finding: Finding
    explains: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Answer:
    """state : one of STATES. headline : one sentence. origins : what the scheduler calls the job,
    whose it is. comparisons : the job with itself, its siblings, its links.
    since_s : when it became slow, if the history shows it. missing : exporter -> hosts on which it did not answer.
    flows : worst first. waits : lines of the wait-for graph. unknown : what is not known, and why."""

    workload: str
    at_s: float
    window_s: float
    state: str
    headline: str
    origins: tuple[str, ...]
    comparisons: tuple[str, ...]
    since_s: float | None
    causes: tuple[Ranked, ...]
    missing: dict[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    flows: tuple[SeenFlow, ...]
    waits: tuple[str, ...]


def infer(facts: Facts) -> Answer:
    """The answer on these facts. Depends on nothing else, and never raises."""
    with no_collection():
        return _infer(facts)


def _infer(facts: Facts) -> Answer:
    a = Analysis(facts)
    findings = [f for cause in CAUSES.values() for f in cause.find(a)]
    missing = a.missing()
    found = len(findings)
    findings = sorted(findings, key=lambda f: -f.confidence)[:_MOST_FINDINGS]
    findings = [
        replace(f, confidence=f.confidence * _MISSING ** (len(f.needs & missing.keys()) + facts.partial))
        for f in findings
    ]
    state = _state(a)
    ranked = _rank(findings, state)
    return Answer(
        workload=facts.workload,
        at_s=facts.at_s,
        window_s=facts.window_s,
        state=state,
        headline=_headline(a, state, ranked),
        origins=_origins(facts),
        comparisons=_comparisons(a),
        since_s=change_point(facts.bandwidth_history or facts.pace_history)
        if state in ("slow", "stalled")
        else None,
        causes=tuple(ranked),
        missing=missing,
        unknown=(*_unknown(a, missing), *_left_out(found - len(findings))),
        flows=seen_flows(facts.flows),
        waits=tuple(graph_lines(facts.waits)),
    )


def change_point(history: tuple[tuple[float, float], ...]) -> float | None:
    """When a series of (time, value) fell for good: the first sample of the last run that is below the usual by more
    than SLOWER. The usual is the median of the best half. None when its end is not low, or all of it is."""
    if len(history) < 4:
        return None
    values = sorted((v for _, v in history), reverse=True)
    usual = median(values[: (len(values) + 1) // 2])
    since = None
    for at_s, value in reversed(history):
        if value >= usual / SLOWER:
            return since
        since = at_s
    return None


def _rank(findings: list[Finding], state: str) -> list[Ranked]:
    """Most likely first; what another finding explains is put below it. Of a job that is slow the first is what likely
    slows it: what slows no job, or is over, is seen beside that, however sure it is."""
    order = list(CAUSES)
    left = sorted(findings, key=lambda f: (order.index(f.cause), -f.confidence, f.where))
    sure = [number for number, f in enumerate(left) if f.confidence >= LIKELY or f.undecided]
    # Of a large job hundreds are found, and most are explained by none of the others.
    may_explain = {
        effect: [number for number in sure if effect in EXPLAINS.get(left[number].cause, ())]
        for effect in {f.cause for f in left}
    }
    explained: set[int] = set()
    effects: defaultdict[int, list[Finding]] = defaultdict(list)
    for number, effect in enumerate(left):
        for other in may_explain[effect.cause]:
            cause = left[other]
            if (
                other != number
                and other not in explained
                and (cause.confidence >= LIKELY or (cause.cause, effect.cause) not in ONLY_IF_SURE)
                and (cause.cause in EVERYWHERE or _touches(cause, effect))
            ):
                explained.add(number)
                effects[other].append(effect)
                break
    ranked = [Ranked(f, tuple(effects[number])) for number, f in enumerate(left) if number not in explained]
    ranked.sort(
        key=lambda r: (-round(r.finding.confidence, 2), order.index(r.finding.cause), r.finding.where)
    )
    reasons = [
        r
        for r in ranked
        if r.finding.confidence >= LIKELY and r.finding.cause not in HARMLESS and not r.finding.past
    ]
    if reasons and state in ("slow", "stalled"):
        ranked.remove(reasons[0])
        ranked.insert(0, reasons[0])
    return ranked


def _touches(cause: Finding, effect: Finding) -> bool:
    if ("job",) in effect.subjects or cause.subjects & effect.subjects:
        return True
    hosts = {s[1] for s in cause.subjects if len(s) > 1}
    return any(len(s) > 1 and s[1] in hosts for s in effect.subjects)


def _state(a: Analysis) -> str:
    facts = a.facts
    if facts.gone_s is not None:
        return "ended"
    if facts.silent_s is not None:
        return "unknown"
    had = any(h.processes_before for h in facts.hosts)
    seen = any(h.processes is not None or "qp" in h.exporters for h in facts.hosts)
    if seen and not any(h.processes for h in facts.hosts) and had and not _carries(a):
        return "ended"
    if a.stalled:
        return "stalled"
    if a.slow is None:
        return "unknown"
    return "slow" if a.slow else "healthy"


def _hosts(names: tuple[str, ...]) -> str:
    return (
        names[0]
        if len(names) == 1
        else f"{len(names)} hosts ({', '.join(names[:3])}{', …' if names[3:] else ''})"
    )


def _carries(a: Analysis) -> bool:
    return any((f.sent or 0) > 0 for f in a.facts.flows)


def _headline(a: Analysis, state: str, ranked: list[Ranked]) -> str:
    likely = [r.finding for r in ranked if r.finding.confidence >= LIKELY]
    named = (
        f"{CAUSES[likely[0].cause].title}: {likely[0].where} ({likely[0].confidence:.0%})" if likely else ""
    )
    job = a.facts.workload
    if state == "ended":
        seen = f", the last was seen at {when(a.facts.gone_s)}" if a.facts.gone_s is not None else ""
        return f"{job} has no process any more{seen}: it has ended."
    if state == "unknown":
        why = "neither its past nor other jobs tell what is usual"
        if not a.facts.hosts:
            why = "nothing is known of it"
        elif a.facts.silent_s is not None:
            why = f"nothing is known of it since {when(a.facts.silent_s)}"
        return f"Not enough data to say whether {job} is slow: {why}." + (f" Seen: {named}." if named else "")
    if state == "healthy":
        return f"{job} is as quick as it was. " + (
            f"Seen all the same: {named}." if named else "Nothing is wrong."
        )
    said = "stands still" if state == "stalled" else "is slow"
    if not named:
        if silent := ", ".join(f"{component} of {_hosts(hosts)}" for component, hosts in a.missing().items()):
            return f"{job} {said}. Not enough data to say why: no answer from {silent}."
        return f"{job} {said}, and what is measured does not say why."
    if likely[0].cause in HARMLESS:
        return f"{job} {said}, and what is measured does not say why. Seen beside it: {named}."
    if likely[0].cause == "compute":
        return f"{job} {said}, and {named}."
    if not CAUSES[likely[0].cause].network and likely[0].cause != "hang":
        return f"{job} {said}, and the network is not the reason. {named}."
    return f"{job} {said}. {named}."


def _origins(facts: Facts) -> tuple[str, ...]:
    lines = []
    for o in facts.origins[:_MOST_ORIGINS]:
        job = f"Slurm job {o.slurm_job}" if o.slurm_job else "no Slurm job"
        parts = [
            *([f"of {o.user}"] if o.user else []),
            *([f"account {o.account}"] if o.account else []),
            f"on {o.hosts} of {o.nodes} nodes"
            if o.nodes
            else f"on {o.hosts} host{'s' if o.hosts != 1 else ''}",
            *(["as its processes say"] if o.slurm_job and not o.proven else []),
        ]
        lines.append(f"{job} {', '.join(parts)}")
    if facts.started_s is not None:
        lines.append(f"oldest process since {when(facts.started_s)}")
    return tuple(lines)


def _comparisons(a: Analysis) -> tuple[str, ...]:
    lines = []
    if a.pace is not None:
        lines.append(f"with itself before: {_times(a.pace)} the collectives a second")
    if a.duration is not None:
        lines.append(f"with itself before: each collective takes {a.duration:.2f} times as long")
    if a.siblings is not None:
        lines.append(f"with other jobs: {_times(a.siblings)} their median bandwidth")
    used = [n.transmitted / n.speed for n in a.facts.nics if n.transmitted is not None and n.speed]
    if used:
        lines.append(
            f"with its links: the busiest sends at {max(used):.0%} of its speed, the median {median(used):.0%}"
        )
    return tuple(lines)


def _times(ratio: float) -> str:
    """A share of what was, or how many times as much."""
    return f"{ratio:.0%} of" if ratio < 1.005 else f"{ratio:.2f} times"


def _unknown(a: Analysis, missing: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What is not known, in sentences that name the exporter to start."""
    facts = a.facts
    lines = [
        f"{component} did not answer on {len(hosts)} of {len(facts.hosts)} hosts ({', '.join(hosts[:3])}"
        f"{', …' if len(hosts) > 3 else ''}): {_TELLS[component]} unknown there"
        for component, hosts in missing.items()
    ]
    if not facts.hosts:
        lines.append(
            "no host runs this workload with the plugin: is the name right, and does qp (port 9612) answer?"
            + (f" There are: {_some(facts.workloads)}" if facts.workloads else "")
        )
    elif not facts.ranks:
        lines.append("ranks tell nothing of collectives (NCCL's profiler is off): a late rank is not found")
    if facts.hosts and a.pace is None and a.duration is None:
        lines.append("there is no baseline: the job did not run then, or Prometheus does not reach back")
    if facts.flows and a.quick_s is None:
        lines.append(
            "no one-way delay of the job's own packets: no fleet time (clocksync), or the plugin does not carry them"
        )
    if facts.flows and facts.other_slow_flows is None:
        lines.append(
            "other jobs' flows are not recorded (rules of fabricpulse): contention is found, with whom is not"
        )
    lines += [f"not answered by Prometheus: {query}" for query in facts.unanswered]
    return (*lines, *facts.limits)


def _left_out(count: int) -> tuple[str, ...]:
    return (f"{count} more findings, none as likely as those shown, are left out",) if count else ()


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f", … ({len(names)} in all)" if len(names) > _MOST_NAMES else "")


_TELLS = {
    "mesh": "flaps and loss are",
    "nic": "link speed, drops and pause are",
    "qp": "what the job does is",
    "clocksync": "whether clocks are right is",
}
