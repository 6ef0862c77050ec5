"""A finding of a cause: the place, the evidence, the confidence."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

# What a cause is about: ("nic", host, device), ("host", name), ("rank", communicator, number) or ("job",).
Subject = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """One observation.

    text : a sentence with its numbers. strength : probability, 0 to 1, that the cause is there if nothing else were
    known. query : name in the query set of what shows it.
    """

    text: str
    strength: float
    query: str = ""


@dataclass(frozen=True)
class Finding:
    """One cause at one place.

    where : for people. subjects : what it is about, and what else it touches. needs : components whose data it was
    judged by. past : it has been, and what it did to the job is over. undecided : a hint as what would tell it from
    another cause does not answer, and likely without that; what it may have brought about is no cause beside it.
    """

    cause: str
    where: str
    evidence: tuple[Evidence, ...]
    subjects: frozenset[Subject]
    confidence: float
    needs: frozenset[str] = frozenset()
    past: bool = False
    undecided: bool = False


def noisy_or(strengths: Iterable[float]) -> float:
    """Probability of a cause from independent evidence: 1 - prod(1 - p) (Pearl 1988, noisy OR). At most 0.99: nothing
    that is inferred is certain."""
    return min(1.0 - math.prod(1.0 - min(max(p, 0.0), 1.0) for p in strengths), 0.99)


def finding(
    cause: str, where: str, evidence: Iterable[Evidence], subjects: Iterable[Subject], *needs: str
) -> Finding:
    """A finding whose confidence is that of its evidence."""
    shown = tuple(evidence)
    return Finding(
        cause, where, shown, frozenset(subjects), noisy_or(e.strength for e in shown), frozenset(needs)
    )


# Below it a cause is a hint: shown, and not what the answer says.
LIKELY = 0.5
# What is seen and is not why.
_HINT = 0.4
NOT_ENOUGH = "not enough data"


def as_hint(found: Finding, reason: str) -> Finding:
    """The same as no more than a hint, and why."""
    evidence = (*found.evidence, Evidence(reason, 0.0))
    return replace(found, evidence=evidence, confidence=min(found.confidence, _HINT))


def as_undecided(found: Finding, reason: str) -> Finding:
    """A hint for want of data. One that would be no more with all data is like any other: it explains nothing."""
    hint = as_hint(found, f"{NOT_ENOUGH}: {reason}")
    return replace(hint, undecided=found.confidence >= LIKELY)


def grows(value: float, at: float, full: float, low: float = 0.5, high: float = 0.95) -> float:
    """Strength of an effect size: `low` at `at`, `high` from `full` on, linear in the logarithm between; 0 below."""
    if value < at or at <= 0:
        return 0.0
    share = 1.0 if full <= at else min(math.log(value / at) / math.log(full / at), 1.0)
    return low + (high - low) * share
