"""Many questions to Prometheus as one, and its answer as many again. Pure.

An answer of a small job costs Prometheus and us next to nothing; what takes time is that each of some sixty questions
waits for a turn of both processes, on a busy machine for long. So a few unions are asked, in which a label that no
series has says which question a sample answers.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fabricpulse.core.web.prometheus import Sample

_LABEL = "fabricpulse_question"
# Characters of one union: what proxies take without being asked to take more.
MOST_TEXT = 512 << 10


def union(questions: Mapping[str, str]) -> str:
    """One question for all of these, by name; names are identifiers."""
    return " or ".join(
        f'label_replace({text}, "{_LABEL}", "{name}", "", "")' for name, text in questions.items()
    )


def split(samples: Iterable[Sample], names: Iterable[str]) -> dict[str, list[Sample]] | None:
    """The samples of each of these questions, none for one without; None when there is one of another question, of a
    server that has not understood the union."""
    known = set(names)
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        # Of a large job there are 50,000 of them: no label is copied, as the answer of a union has no other owner.
        name = sample.labels.pop(_LABEL, None)
        if name is None or name not in known:
            return None
        found[name].append(sample)
    return {name: found[name] for name in known}


def groups(questions: Mapping[str, str], count: int) -> list[dict[str, str]]:
    """The questions in at most so many groups of some as many each; in more, where a union would be longer than
    MOST_TEXT."""
    length = sum(map(len, questions.values()))
    count = min(max(count, -(-2 * length // MOST_TEXT)), len(questions))
    names = list(questions)
    # Neighbours are alike, and as dear: each goes into another group.
    return [{name: questions[name] for name in names[first::count]} for first in range(count)]
