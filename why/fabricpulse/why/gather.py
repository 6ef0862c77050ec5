"""Puts the questions of `queries` to Prometheus; `assemble` makes facts of the answers.

Three rounds: which hosts there are, all about them, then a few about the hosts and flows that stand out. The questions
of a round are put as a few unions (`together`), those about a large job each by itself. Where a union is refused each
of its questions is put by itself, so that one that a backend limits costs no other its answer.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fabricpulse.core.errors import UserError
from fabricpulse.core.output import printable
from fabricpulse.core.web.prometheus import PromQl, RefusedError, Sample
from fabricpulse.why import shorter
from fabricpulse.why.analysis import SLOW_DELAY_S, SLOWER, Analysis
from fabricpulse.why.assemble import Gathered, assemble, exporters_answer, flows_of, hosts_of, loss_of
from fabricpulse.why.facts import Facts, Flow
from fabricpulse.why.no_collection import no_collection
from fabricpulse.why.queries import (
    EDGES,
    EXPORTERS,
    FLOOR,
    GONE,
    HISTORY,
    LOSSY_EDGES,
    PACE_HISTORY,
    PROBE_DELAY,
    PROCESSES,
    QUERIES,
    RECORDED_DELAY,
    RECORDED_WINDOW_S,
    SCRAPED,
    WORKLOADS,
    Query,
    Scope,
    quote,
)
from fabricpulse.why.together import groups, split, union

_MOST_LOSSY_HOSTS = 32
# Of those that receive slow flows, and of those that they are compared with.
_MOST_ODD_HOSTS, _LEAST_OTHERS = 48, 16
_HISTORY_STEPS = 60
_LOSS = 0.005
_MOST_OF = 0.9
# Of a window, the share in which the job ran, for a rate over it to be one of the job.
_WHOLE = 0.9
# By how many scrapes a series may begin later than a window or end before it, and how late one may be.
_SCRAPES, _LATE_S = 1.5, 2.0
_COPIES = "hosts have several series of the job, as of replicas that are not deduplicated: sums are too large"
_CLUSTERS = "series of several clusters (label cluster) are taken together, as --selector wants it"
_CLUSTER, _MOST_CLUSTERS = re.compile(r"\bcluster\s*[=!]"), 8
# From so many on each question is put by itself: a union costs Prometheus a label for each sample and a set of all
# samples for each `or`, a third of the whole answer, while what a request costs does not grow.
_MANY_HOSTS = 256
# Together as many as the client puts at a time.
_UNIONS, _UNIONS_BEFORE = 6, 2


@dataclass(frozen=True)
class Times:
    """Seconds since 1970. at_s : the moment asked about. before_s : of the baseline; history_s : how far back the
    history of the bandwidth goes."""

    at_s: float
    before_s: float
    history_s: float = 3600.0


async def gather(prom: PromQl, scope: Scope, times: Times) -> tuple[Facts, dict[str, str]]:
    """Facts of a workload, and the text of each query by its name. Raises UserError when no source answers."""
    with no_collection():
        return await _gather(prom, scope, times)


async def _gather(prom: PromQl, scope: Scope, times: Times) -> tuple[Facts, dict[str, str]]:
    got = Gathered()
    asked = (PROCESSES, RECORDED_DELAY) if scope.window_s == RECORDED_WINDOW_S else (PROCESSES,)
    first = {query.name: scope.fill(query.text) for query in asked}
    # Each by itself: which hosts there are is not known yet, and a union costs a large job more than two requests.
    await asyncio.gather(
        *(
            _put_all(prom, {name: text}, at_s, got, answers, scope.only)
            for name, text in first.items()
            for at_s, answers in ((times.at_s, got.now), (times.before_s, got.before))
        )
    )
    if "processes" not in got.now and "processes" not in got.before:
        raise UserError(f"{prom.url} has not answered the first question: {got.unanswered['processes']}")
    scope, clusters = _one_cluster(scope, got)
    first = {query.name: scope.fill(query.text) for query in asked}
    got.queries |= first
    hosts = tuple(sorted(hosts_of(got)))
    scope = replace(scope, hosts=hosts, only=hosts if scope.only else ())
    if hosts:
        now = {query.name: scope.fill(query.text) for query in QUERIES}
        before = {query.name: now[query.name] for query in QUERIES if query.before}
        for questions, answers in ((now, got.now), (before, got.before)):
            recorded = answers.pop(RECORDED_DELAY.name, None)
            if recorded:
                answers["delay"] = recorded
                got.queries["delay"] = first[RECORDED_DELAY.name]
                del questions["delay"]
        many = len(hosts) >= _MANY_HOSTS
        async with asyncio.TaskGroup() as tasks:
            for some in groups(now, len(now) if many else _UNIONS):
                tasks.create_task(_put_all(prom, some, times.at_s, got, got.now, scope.hosts))
            for some in groups(before, len(before) if many else _UNIONS_BEFORE):
                tasks.create_task(_put_all(prom, some, times.before_s, got, got.before, scope.hosts))
        await _second_round(prom, scope, times, got)
    else:
        await _put(prom, WORKLOADS, scope, times.at_s, got, got.now)
    got.warnings = tuple(prom.warnings)
    facts = assemble(scope.workload, times.at_s, float(scope.window_s), got)
    if hosts:
        facts = _checked(facts, got, times, scope.window_s, clusters)
    if hosts and (a := Analysis(facts)).slow:
        if not a.stalled and (a.duration or 0.0) > SLOWER:
            facts = replace(facts, bandwidth_history=await _history(prom, scope, times, got, HISTORY))
        else:
            facts = replace(facts, pace_history=await _history(prom, scope, times, got, PACE_HISTORY))
    return facts, got.queries


def _one_cluster(scope: Scope, got: Gathered) -> tuple[Scope, int]:
    """Narrowed to the cluster in which the job runs, and the number of clusters.

    Jobs of one name in several are several jobs, and a host of one name in another is another host. Raises UserError
    for several, unless who asks has named them.
    """
    found = _clusters(got.now) or _clusters(got.before)
    if _CLUSTER.search(scope.extra):
        return scope, len(found)
    if len(found) > 1:
        names = ", ".join(printable(name) or "none" for name in sorted(found)[:_MOST_CLUSTERS])
        raise UserError(
            f"{printable(scope.workload)} runs in {len(found)} clusters ({names}): name one with --selector "
            "'cluster=\"NAME\"'"
        )
    cluster = next(iter(found), "")
    if not cluster:
        return scope, len(found)
    for answers in (got.now, got.before):
        for name, samples in answers.items():
            answers[name] = [s for s in samples if s.labels.get("cluster", cluster) == cluster]
    matcher = f"cluster={quote(cluster)}"
    return replace(scope, extra=f"{scope.extra}, {matcher}" if scope.extra else matcher), 1


def _clusters(answers: Mapping[str, list[Sample]]) -> set[str]:
    return {s.labels.get("cluster", "") for s in answers.get(PROCESSES.name, ())}


@dataclass(frozen=True)
class _Window:
    """In which part of a window the job's series were there. ran_s : 0 to its length. restarts : of its counters.
    ended_s : when they ended before the window did, None where they did not."""

    ran_s: float
    restarts: bool
    ended_s: float | None


def _window(answers: Mapping[str, list[Sample]], end_s: float, window_s: int) -> _Window:
    """As far as is known; where nothing is, all of it."""

    def value(name: str) -> float | None:
        return next((s.value for s in answers.get(name, ())), None)

    begin_s = end_s - window_s
    # Of a scrape more or less nobody knows when it is.
    slack_s = _SCRAPES * window_s / max(value("samples") or 1.0, 1.0)
    slack_s = min(slack_s, window_s) + _LATE_S
    started_s, first_s, last_s = value("started"), value("first_seen"), value("last_seen")
    begun_s = begin_s
    if started_s is not None and 0 < started_s <= end_s:
        begun_s = max(begun_s, started_s)
    if first_s is not None and first_s > begin_s + slack_s:
        begun_s = max(begun_s, first_s)
    ended_s = last_s if last_s is not None and last_s < end_s - slack_s else None
    return _Window(
        max((end_s if ended_s is None else ended_s) - begun_s, 0.0), (value("restarts") or 0) > 0, ended_s
    )


def _checked(facts: Facts, got: Gathered, times: Times, window_s: int, clusters: int) -> Facts:
    """What rates over a window are not worth where the job was not there in all of it, and what else its series say of
    themselves."""
    limits, whole = [], True
    windows = (("the window", got.now, times.at_s), ("that of the baseline", got.before, times.before_s))
    for name, answers, end_s in windows:
        w = _window(answers, end_s, window_s)
        if w.restarts:
            limits.append(f"its counters began anew within {name}: collectives a second are not compared")
        elif w.ran_s < _WHOLE * window_s:
            ran = f"the job was seen for {w.ran_s:.0f} s of {name}, {window_s} s"
            limits.append(f"{ran}: collectives a second are not compared")
        whole = whole and not w.restarts and w.ran_s >= _WHOLE * window_s
    if any(s.value < 2 for s in got.now.get("samples", ())):
        limits.append(
            "there are fewer than two samples in the window: give --window four scrape intervals or more"
        )
    now = _window(got.now, times.at_s, window_s)
    exporter_s = max((s.value for s in got.now.get("exporter_seen", ())), default=0.0)
    # The exporter says that there is no process any more; without it nobody says anything.
    gone_s = now.ended_s if now.ended_s is not None and exporter_s > now.ended_s + _LATE_S else None
    silent_s = now.ended_s if gone_s is None else None
    if silent_s is not None:
        limits.append(
            f"nothing is known of the last {times.at_s - silent_s:.0f} s: the exporters or Prometheus were away"
        )
    if any(s.value > 1 for s in got.now.get("copies", ())):
        limits.append(_COPIES)
    if clusters > 1:
        limits.append(_CLUSTERS)
    moved = next((s.value for s in got.now.get("moved", ())), None)
    # A pause of such a length is none of a job that made pauses before, or of which that is not known.
    steady = any(s.value > 0 for s in got.before.get("moved_least", ()))
    unmoved_s = float(max(30, window_s // 4)) if moved == 0 and steady and silent_s is None else None
    limits += [f"the backend warns: {text}" for text in got.warnings]
    return replace(
        facts,
        whole=whole,
        gone_s=gone_s,
        silent_s=silent_s,
        unmoved_s=unmoved_s,
        partial=bool(got.warnings),
        limits=(*facts.limits, *limits),
    )


async def _put(
    prom: PromQl, query: Query, scope: Scope, at_s: float, got: Gathered, answers: dict[str, list[Sample]]
) -> None:
    await _put_all(prom, {query.name: scope.fill(query.text)}, at_s, got, answers)


async def _put_all(
    prom: PromQl,
    questions: Mapping[str, str],
    at_s: float,
    got: Gathered,
    answers: dict[str, list[Sample]],
    hosts: Sequence[str] = (),
) -> None:
    """Questions by name. hosts : that they are about, by whom one may be divided that is too long."""
    got.queries |= questions
    if len(questions) > 1:
        try:
            parts = split(await prom.instant(union(questions), at_s), questions)
        except RefusedError:
            parts = None
        if parts is not None:
            answers |= parts
            return
    for name, text in questions.items():
        try:
            answers[name] = await _answer(prom, name, text, at_s, hosts)
        except RefusedError as error:
            got.unanswered[name] = str(error)


async def _answer(prom: PromQl, name: str, text: str, at_s: float, hosts: Sequence[str]) -> list[Sample]:
    """Of one question, in parts where it is too long for the backend. Raises RefusedError."""
    try:
        return await prom.instant(text, at_s)
    except RefusedError as error:
        most = shorter.most_bytes(str(error))
        some = None if most is None else shorter.parts(name, text, hosts, most)
        if some is None:
            raise
    return shorter.together(name, await asyncio.gather(*(prom.instant(part, at_s) for part in some)))


async def _second_round(prom: PromQl, scope: Scope, times: Times, got: Gathered) -> None:
    lossy = {host for (host, _), (i, o) in loss_of(got.now).items() if max(i or 0, o or 0) > _LOSS}
    odd = _odd_hosts(flows_of(got.now, got.before))
    questions = [
        (EDGES, sorted(lossy)[:_MOST_LOSSY_HOSTS]),
        (LOSSY_EDGES, sorted(lossy)[:_MOST_LOSSY_HOSTS]),
        (GONE, sorted(lossy)[:_MOST_LOSSY_HOSTS]),
        (PROBE_DELAY, odd),
        (FLOOR, odd),
    ]
    texts = {
        query.name: replace(scope, hosts=tuple(hosts)).fill(query.text) for query, hosts in questions if hosts
    }
    # About all hosts: the answers of a large job are large.
    whole = {}
    if got.now.get("waiting"):
        whole["scraped"] = scope.fill(SCRAPED.text)
    if not exporters_answer(got):
        whole["exporters"] = scope.fill(EXPORTERS.text)
    recorded, sending = got.now.get("delay", ()), sum(s.value > 0 for s in got.now.get("sent", ()))
    if got.queries.get("delay") == scope.fill(RECORDED_DELAY.text) and len(recorded) < _MOST_OF * sending:
        # Recorded of a part of them: by rules of one cluster of several, or for a short time.
        whole["delay"] = scope.fill(next(query.text for query in QUERIES if query.name == "delay"))
    async with asyncio.TaskGroup() as tasks:
        for some in (texts, *({name: text} for name, text in whole.items())):
            if some:
                tasks.create_task(_put_all(prom, some, times.at_s, got, got.now, scope.hosts))
        if FLOOR.name in texts:
            past = {FLOOR.name: texts[FLOOR.name]}
            tasks.create_task(_put_all(prom, past, times.before_s, got, got.before, scope.hosts))


def _odd_hosts(flows: tuple[Flow, ...]) -> list[str]:
    """Both ends of the slowest flows, if any are slow, and of as many quick ones, so that most are quick."""
    known = sorted((f for f in flows if f.delay_s is not None), key=lambda f: -(f.delay_s or 0))
    hosts = [end.host for f in known for end in (f.source, f.target)]
    slow = dict.fromkeys(
        end.host for f in known if (f.delay_s or 0) > SLOW_DELAY_S for end in (f.source, f.target)
    )
    worst = list(slow)[:_MOST_ODD_HOSTS]
    others = [host for host in dict.fromkeys(reversed(hosts)) if host not in worst]
    return [*worst, *others[: max(len(worst), _LEAST_OTHERS)]] if worst else []


async def _history(
    prom: PromQl, scope: Scope, times: Times, got: Gathered, query: str
) -> tuple[tuple[float, float], ...]:
    text = got.queries["history"] = scope.fill(query)
    start_s = times.at_s - times.history_s
    try:
        return tuple(
            await prom.history(text, start_s, times.at_s, max(times.history_s / _HISTORY_STEPS, 1.0))
        )
    except RefusedError as error:
        got.unanswered["history"] = str(error)
        return ()
