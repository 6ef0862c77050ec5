"""A question that a backend refuses for its length, as several about some of the hosts each. Pure.

The names of a large job's hosts make most of a question, once for each series that it reads. Prometheus takes any
length, VictoriaMetrics 16,384 bytes unless it is set to more (`-search.maxQueryLen`). Most questions are by host, so
that answers about some of them are put together by listing them; `Query.parts` says of which that is not so.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence

from fabricpulse.core.web.prometheus import Sample
from fabricpulse.why.queries import PROCESSES, QUERIES, alternatives, quote

# What VictoriaMetrics takes by default; its refusal says what it does take.
MOST_BYTES = 16_384
_REFUSAL = re.compile(r"maxQueryLen(?:=(\d+))?")
_HOW = {query.name: query.parts for query in (PROCESSES, *QUERIES)}
_MERGES: dict[str, Callable[[float, float], float]] = {"sum": operator.add, "min": min, "max": max}


def most_bytes(refusal: str) -> int | None:
    """What the backend takes, by why it has refused; None if that was not the length."""
    found = _REFUSAL.search(refusal)
    return (int(found[1]) if found[1] else MOST_BYTES) if found else None


def parts(name: str, text: str, hosts: Sequence[str], most: int) -> list[str] | None:
    """The question about some of these hosts each, `most` bytes at most. None where that cannot be, or where the
    answers would make none to the question.
    """
    if not _HOW.get(name, "list"):
        return None
    whole = quote(alternatives(hosts))
    times = text.count(whole)
    if not times or not hosts:
        return None
    # A host and what stands between two.
    room = (most - len(text.replace(whole, quote("")).encode())) // times
    groups: list[list[str]] = []
    used = room
    for host in hosts:
        size = len(quote(alternatives([host])).encode()) - 1
        if size > room:
            return None
        if used + size > room:
            groups.append([])
            used = 0
        groups[-1].append(host)
        used += size
    return [text.replace(whole, quote(alternatives(some))) for some in groups]


def together(name: str, answers: Iterable[list[Sample]]) -> list[Sample]:
    """The answers to the parts of one question as one."""
    samples = [sample for answer in answers for sample in answer]
    merge = _MERGES.get(_HOW.get(name, "list"))
    if merge is None:
        return samples
    found: dict[frozenset[tuple[str, str]], Sample] = {}
    for s in samples:
        key = frozenset(s.labels.items())
        found[key] = Sample(s.labels, merge(found[key].value, s.value) if key in found else s.value)
    return list(found.values())
