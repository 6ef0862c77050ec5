"""Puts the questions of `queries` to Prometheus; `assemble` makes facts of the answers.

Three rounds: which hosts there are, all about them, then a few about the hosts and flows that stand out. The questions
of a round are put as a few unions (`together`). Where a union is refused each of its questions is put by itself, so
that one that a backend limits costs no other its answer.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fabricpulse.core.errors import UserError
from fabricpulse.core.web.prometheus import PromQl, RefusedError, Sample
from fabricpulse.why.analysis import SLOW_DELAY_S, Analysis
from fabricpulse.why.assemble import Gathered, assemble, hosts_of, loss_of
from fabricpulse.why.facts import Facts
from fabricpulse.why.queries import (
    GONE,
    HISTORY,
    LOSSY_EDGES,
    PROBE_DELAY,
    PROCESSES,
    QUERIES,
    WORKLOADS,
    Query,
    Scope,
)
from fabricpulse.why.together import groups, split, union

_MOST_LOSSY_HOSTS = 32
_MOST_ODD_HOSTS = 64
_HISTORY_STEPS = 60
_LOSS = 0.005
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
    """Facts of a workload, and the text of each query by its name. Raises UserError when nobody answers."""
    got = Gathered()
    await asyncio.gather(
        _put(prom, PROCESSES, scope, times.at_s, got, got.now),
        _put(prom, PROCESSES, scope, times.before_s, got, got.before),
    )
    if "processes" not in got.now and "processes" not in got.before:
        raise UserError(f"{prom.url} has not answered the first question: {got.unanswered['processes']}")
    hosts = hosts_of(got)
    scope = replace(scope, hosts=tuple(sorted(hosts)))
    if hosts:
        now = {query.name: scope.fill(query.text) for query in QUERIES}
        before = {query.name: now[query.name] for query in QUERIES if query.before}
        async with asyncio.TaskGroup() as tasks:
            for some in groups(now, _UNIONS):
                tasks.create_task(_put_all(prom, some, times.at_s, got, got.now))
            for some in groups(before, _UNIONS_BEFORE):
                tasks.create_task(_put_all(prom, some, times.before_s, got, got.before))
        await _second_round(prom, scope, times, got)
    else:
        await _put(prom, WORKLOADS, scope, times.at_s, got, got.now)
    facts = assemble(scope.workload, times.at_s, float(scope.window_s), got)
    if hosts and Analysis(facts).slow:
        facts = replace(facts, bandwidth_history=await _history(prom, scope, times, got))
    return facts, got.queries


async def _put(
    prom: PromQl, query: Query, scope: Scope, at_s: float, got: Gathered, answers: dict[str, list[Sample]]
) -> None:
    await _put_all(prom, {query.name: scope.fill(query.text)}, at_s, got, answers)


async def _put_all(
    prom: PromQl, questions: Mapping[str, str], at_s: float, got: Gathered, answers: dict[str, list[Sample]]
) -> None:
    """Questions by name."""
    got.queries |= questions
    if len(questions) > 1:
        try:
            told = split(await prom.instant(union(questions), at_s), questions)
        except RefusedError:
            told = None
        if told is not None:
            answers |= told
            return
    for name, text in questions.items():
        try:
            answers[name] = await prom.instant(text, at_s)
        except RefusedError as error:
            got.unanswered[name] = str(error)


async def _second_round(prom: PromQl, scope: Scope, times: Times, got: Gathered) -> None:
    lossy = {host for (host, _), (i, o) in loss_of(got.now).items() if max(i or 0, o or 0) > _LOSS}
    first = assemble(scope.workload, times.at_s, float(scope.window_s), got)
    odd = {end.host for f in first.flows if (f.floor_s or 0) > SLOW_DELAY_S for end in (f.source, f.target)}
    questions = [
        (LOSSY_EDGES, lossy, _MOST_LOSSY_HOSTS),
        (GONE, lossy, _MOST_LOSSY_HOSTS),
        (PROBE_DELAY, odd, _MOST_ODD_HOSTS),
    ]
    texts = {
        query.name: replace(scope, hosts=tuple(sorted(hosts)[:most])).fill(query.text)
        for query, hosts, most in questions
        if hosts
    }
    if texts:
        await _put_all(prom, texts, times.at_s, got, got.now)


async def _history(
    prom: PromQl, scope: Scope, times: Times, got: Gathered
) -> tuple[tuple[float, float], ...]:
    text = got.queries["history"] = scope.fill(HISTORY)
    start_s = times.at_s - times.history_s
    try:
        return tuple(
            await prom.history(text, start_s, times.at_s, max(times.history_s / _HISTORY_STEPS, 1.0))
        )
    except RefusedError as error:
        got.unanswered["history"] = str(error)
        return ()
