"""Ranks and collectives of a workload, from the answers of Prometheus. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from fabricpulse.core.web.prometheus import Sample
from fabricpulse.why.facts import Collective, Rank

# By name of query; one that is not in it was not answered.
Answers = Mapping[str, list[Sample]]


def ranks_of(now: Answers, before: Answers) -> tuple[Rank, ...]:
    """By instance, communicator and rank."""

    def by(samples: Iterable[Sample]) -> dict[tuple[str, str, int], float]:
        return {
            (s.labels.get("instance", ""), s.labels.get("communicator", ""), rank): s.value
            for s in samples
            if (rank := integer(s.labels.get("rank"))) is not None
        }

    operations, progress = by(now.get("rank_operations", ())), by(now.get("rank_in_progress", ()))
    rate, busy = by(now.get("rank_rate", ())), by(now.get("rank_busy", ()))
    rate_before, busy_before = by(before.get("rank_rate", ())), by(before.get("rank_busy", ()))

    def ratio(a: float | None, b: float | None) -> float | None:
        return a / b if a is not None and b else None

    size: dict[str, int] = defaultdict(int)
    for _, communicator, _ in operations:
        size[communicator] += 1
    return tuple(
        Rank(
            communicator,
            rank,
            host,
            size[communicator],
            operations[key],
            rate.get(key),
            rate_before.get(key),
            ratio(busy.get(key), rate.get(key)),
            progress.get(key),
            ratio(busy_before.get(key), rate_before.get(key)),
        )
        for key in sorted(operations)
        for host, communicator, rank in [key]
    )


def collectives_of(now: Answers, before: Answers) -> tuple[Collective, ...]:
    """By name."""

    def by(samples: Iterable[Sample]) -> dict[str, float]:
        return {s.labels.get("collective", ""): s.value for s in samples}

    rate, size, busy = by(now.get("rate", ())), by(now.get("bytes", ())), by(now.get("busy", ()))
    rate0, size0, busy0 = by(before.get("rate", ())), by(before.get("bytes", ())), by(before.get("busy", ()))
    total = sum(busy0.values()) or sum(busy.values())
    siblings = _siblings(now)

    def ratio(a: float | None, b: float | None) -> float | None:
        return a / b if a is not None and b else None

    found = []
    for name in sorted(rate.keys() | rate0.keys()):
        each = ratio(size.get(name), rate.get(name))
        found.append(
            Collective(
                name,
                rate.get(name),
                rate0.get(name),
                ratio(size.get(name), busy.get(name)),
                ratio(size0.get(name), busy0.get(name)),
                (busy0 or busy).get(name, 0.0) / total if total else None,
                each,
                ratio(size0.get(name), rate0.get(name)),
                _sibling(siblings.get(name, []), each),
            )
        )
    return tuple(found)


def _siblings(now: Answers) -> dict[str, list[tuple[float, float]]]:
    """Collective -> (size, bandwidth) of other jobs."""

    def by(samples: Iterable[Sample]) -> dict[tuple[str, str], float]:
        return {(s.labels.get("workload", ""), s.labels.get("collective", "")): s.value for s in samples}

    rate, size, busy = (by(now.get(f"others_{name}", ())) for name in ("rate", "bytes", "busy"))
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for key, value in size.items():
        if rate.get(key) and busy.get(key):
            found[key[1]].append((value / rate[key], value / busy[key]))
    return found


def _sibling(others: list[tuple[float, float]], size: float | None) -> float | None:
    """Median bandwidth of at least two other jobs with messages of half to twice the size."""
    if not size:
        return None
    alike = [bandwidth for s, bandwidth in others if 0.5 < s / size < 2]
    return median(alike) if len(alike) >= 2 else None


def integer(text: str | None) -> int | None:
    """A number in a label, such as a rank; None for what is none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
