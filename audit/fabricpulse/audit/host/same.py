"""Is one value the same on all NICs of a host?"""

from collections import Counter
from collections.abc import Iterator, Mapping

from fabricpulse.audit.model import Outcome, failed, not_applicable, passed, unknown


def same_on_all(
    values: Mapping[str, object], what: str, nothing: str, boards: Mapping[str, str] | None = None
) -> Iterator[Outcome]:
    """Outcomes of the subjects that have a value.

    boards : of NICs (`HostReader.boards`); each is compared with those of its own board, for a host may have slower
    NICs for storage. None : all are compared with one another.

    values : subject -> value, None for one that is not known. With a majority, those with another value fail; without
    one, all do: which of them is right is not known. nothing : why it does not apply without any subject.
    """
    known = {subject: str(value) for subject, value in values.items() if value is not None}
    for subject in sorted(set(values) - set(known)):
        yield unknown(f"its {what} is not known", subject)
    if not values:
        yield not_applicable(nothing)
        return
    groups: dict[str, dict[str, str]] = {}
    for subject, value in sorted(known.items()):
        groups.setdefault((boards or {}).get(subject, ""), {})[subject] = value
    for _, group in sorted(groups.items()):
        yield from _same(group, what)


def _same(known: Mapping[str, str], what: str) -> Iterator[Outcome]:
    counts = Counter(known.values())
    usual, often = counts.most_common(1)[0]
    if 2 * often > len(known):
        for subject, value in sorted(known.items()):
            if value == usual:
                yield passed(value, subject)
            else:
                yield failed(f"{what} {value}, the others have {usual}", subject, value=value, usual=usual)
    else:
        for subject, value in sorted(known.items()):
            others = ", ".join(sorted(set(known.values()) - {value}))
            yield failed(f"{what} {value}, others have {others}", subject, value=value)
