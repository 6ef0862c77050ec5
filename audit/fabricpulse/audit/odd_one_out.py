"""Which values of a fleet are odd: those that few have where most have another. Pure.

Theory of operation. Values are grouped by attribute and role. Within a group, the usual value is the one that more
than half have; whoever has another is odd. Without such a majority nobody can tell which value is right, and the
group is said to be divided, with who has what: nothing is passed over, and nobody is blamed by a guess. Groups below
LEAST are compared with a profile only: of two values one is as odd as the other.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fabricpulse.audit.model import Value

LEAST = 3


@dataclass(frozen=True)
class OddValue:
    """One subject whose value is not the usual one. have : how many of the group of `size` have the usual value."""

    host: str
    value: Value
    usual: str
    have: int
    size: int


@dataclass(frozen=True)
class Divided:
    """A group in which no value has a majority. values : value -> the (host, subject) that have it, most first."""

    attribute: str
    role: str
    values: Mapping[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Comparison:
    """All that differs, each list in order of attribute, role and host."""

    odd: tuple[OddValue, ...]
    divided: tuple[Divided, ...]


def compare(values: Mapping[str, Iterable[Value]], least: int = LEAST) -> Comparison:
    """Compares the values of hosts. values : host -> its values. least : size of a group that is compared."""
    odd: list[OddValue] = []
    divided: list[Divided] = []
    for (attribute, role), members in sorted(_groups(values).items()):
        counts = Counter(value.value for _, value in members)
        if len(members) < least or len(counts) < 2:
            continue
        usual, have = counts.most_common(1)[0]
        if 2 * have > len(members):
            odd += [
                OddValue(host, value, usual, have, len(members))
                for host, value in members
                if value.value != usual
            ]
        else:
            by_value = {
                text: tuple((host, value.subject) for host, value in members if value.value == text)
                for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            }
            divided.append(Divided(attribute, role, by_value))
    return Comparison(tuple(odd), tuple(divided))


def usual_values(values: Mapping[str, Iterable[Value]]) -> dict[str, dict[str, str]]:
    """role -> attribute -> the value that more than half of the group have; groups without one are left out."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for (attribute, role), members in sorted(_groups(values).items()):
        usual, have = Counter(value.value for _, value in members).most_common(1)[0]
        if 2 * have > len(members):
            found[role][attribute] = usual
    return dict(found)


def against(
    values: Mapping[str, Iterable[Value]], wanted: Mapping[str, Mapping[str, str | list[str]]]
) -> list[tuple[str, Value, str]]:
    """(host, value, what is wanted) of each value that a profile does not allow.

    wanted : role -> attribute -> the value, or those that are allowed; the role "*" is for all that have no own entry.
    """
    found = []
    for host, own in sorted(values.items()):
        for value in sorted(own):
            allowed = wanted.get(value.role, {}).get(
                value.attribute, wanted.get("*", {}).get(value.attribute)
            )
            if allowed is None:
                continue
            choices = [allowed] if isinstance(allowed, str) else list(allowed)
            if value.value not in choices:
                found.append((host, value, " or ".join(choices)))
    return found


def _groups(values: Mapping[str, Iterable[Value]]) -> dict[tuple[str, str], list[tuple[str, Value]]]:
    groups: dict[tuple[str, str], list[tuple[str, Value]]] = defaultdict(list)
    for host, own in sorted(values.items()):
        for value in sorted(own):
            groups[value.attribute, value.role].append((host, value))
    return groups
