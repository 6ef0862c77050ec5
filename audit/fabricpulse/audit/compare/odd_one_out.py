"""Which values of a fleet are odd: those that few have where most have another. Pure.

Theory of operation. Values are grouped by attribute and role. Within a group, the usual value is the one that more
than half have; a host with another one is odd. Without such a majority it is not known which value is right, and
the group is reported as divided, with all values: nothing is left out, and no host is named by a guess. Of two values
one is as odd as the other: in a group below LEAST no host is named either, and it is divided only where both are the
same machine with GPUs or RDMA devices; two hosts of no such kind need not be alike.

A host's role follows from its GPUs. One that has lost all of them is compared with those of the same machine all the
same: the same board, CPUs, memory and RDMA devices, if most of these have GPUs.

Who reports no value where more than half of its like report one is in no group, and listed by itself: it may lack what
the value is of, or its agent the right to read it.

What follows from hardware is compared among hosts of the same machine (`machines.py`), what is configured among all of
the role; what is configured of a NIC whose network is not known, among NICs of one name of the same machine.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fabricpulse.audit.compare.machines import MOST_FREQUENT, OTHER, PARTS, machines_of
from fabricpulse.audit.host.attributes import BY_NAME
from fabricpulse.audit.model import Value

LEAST = 3
# What tells a machine, and the end of the roles of hosts with GPUs.
_MACHINE = ("board", "cpu_model", "cpus", "memory_gib", "rdma_devices")
_WITH_GPUS = " GPU host"
# Memory is reported in steps of 4 GiB; what the kernel takes may put like hosts on both sides of a step. No module of
# memory of a host with more than this is as small as a step.
_STEP_GIB, _LEAST_GIB = 4, 100


def alike(attribute: str, one: str, other: str) -> bool:
    """Whether two values of an attribute are the same as far as is known."""
    if one == other:
        return True
    if attribute != "memory_gib" or not (one.isdecimal() and other.isdecimal()):
        return False
    return min(int(one), int(other)) >= _LEAST_GIB and abs(int(one) - int(other)) <= _STEP_GIB


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
class Missing:
    """One subject without values that more than half of its like have. attributes : of these; () for a host that
    reports nothing at all."""

    host: str
    subject: str
    attributes: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All that differs, each list in order of attribute, role and host; `missing` in order of host and subject."""

    odd: tuple[OddValue, ...]
    divided: tuple[Divided, ...]
    missing: tuple[Missing, ...] = ()


def compare(values: Mapping[str, Iterable[Value]], least: int = LEAST) -> Comparison:
    """Compares the values of hosts. values : host -> its values. least : size of a group in which a host is named."""
    odd: list[OddValue] = []
    divided: list[Divided] = []
    lacking: dict[tuple[str, str], list[str]] = defaultdict(list)
    if any(values.values()):
        lacking.update({(host, ""): [] for host, own in values.items() if not own})
    for group in _groups(values):
        attribute, role, members = group.attribute, group.role, group.members
        if 2 * len(members) > len(group.subjects) >= least:
            for subject in group.subjects - {(host, value.subject) for host, value in members}:
                lacking[subject].append(attribute)
        known_as = _known_as(attribute, members)
        counts = Counter(known_as[value.value] for _, value in members)
        if len(counts) < 2 or (len(members) < least and not group.one_machine):
            continue
        usual, have = counts.most_common(1)[0]
        if 2 * have > len(members) >= least:
            odd += [
                OddValue(host, value, usual, have, len(members))
                for host, value in members
                if known_as[value.value] != usual
            ]
        else:
            by_value = {
                text: tuple((host, value.subject) for host, value in members if known_as[value.value] == text)
                for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            }
            divided.append(Divided(attribute, role, by_value))
    missing = tuple(Missing(*subject, tuple(names)) for subject, names in sorted(lacking.items()))
    return Comparison(tuple(odd), tuple(divided), missing)


def usual_values(values: Mapping[str, Iterable[Value]]) -> dict[str, dict[str, str | list[str]]]:
    """role -> attribute -> the value that more than half of the group have, or those of several machines; groups
    without one are left out."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for group in _groups(values):
        known_as = _known_as(group.attribute, group.members)
        usual, have = Counter(known_as[value.value] for _, value in group.members).most_common(1)[0]
        if 2 * have > len(group.members):
            of_machines = found[group.role].setdefault(group.attribute, [])
            if usual not in of_machines:
                of_machines.append(usual)
    return {
        role: {name: usual if len(usual) > 1 else usual[0] for name, usual in own.items()}
        for role, own in found.items()
    }


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
            if not any(alike(value.attribute, value.value, choice) for choice in choices):
                found.append((host, value, " or ".join(choices)))
    return found


@dataclass(frozen=True)
class _Group:
    """What is compared with one another. one_machine : all members are known to be the same one, with GPUs or RDMA.
    subjects : (host, subject) of all that could be members, with or without the value."""

    attribute: str
    role: str
    members: tuple[tuple[str, Value], ...]
    one_machine: bool
    subjects: frozenset[tuple[str, str]]


def _groups(values: Mapping[str, Iterable[Value]]) -> list[_Group]:
    in_roles = _of_machines(values)
    machines = machines_of(in_roles)
    found: dict[tuple[str, str, str], list[tuple[str, Value]]] = defaultdict(list)
    of_role: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for host, own in sorted(in_roles.items()):
        for value in sorted(own):
            of_role[value.role].add((host, value.subject))
            compared_in = _compared_in(value, machines[host])
            if compared_in is not None:
                found[value.attribute, value.role, compared_in].append((host, value))
    return [
        _Group(
            attribute,
            role,
            tuple(members),
            _are_one(role, {machines[host] for host, _ in members}),
            frozenset(
                (host, subject)
                for host, subject in of_role[role]
                if _compared_in(Value(attribute, role, subject, ""), machines[host]) == compared_in
            ),
        )
        for (attribute, role, compared_in), members in sorted(found.items())
    ]


def _compared_in(value: Value, machine: str) -> str | None:
    """Machine among which a value is compared, "" for all of the role; None where nothing is like it."""
    known = BY_NAME.get(value.attribute)
    unknown_network = value.subject and value.role.endswith(f": {value.subject}")
    if not unknown_network and not (known and known.of_machine):
        return ""
    if machine != OTHER:
        return machine
    # Another machine is odd in what makes a machine, and in no more.
    return MOST_FREQUENT if value.attribute in PARTS else None


def _are_one(role: str, machines: set[str]) -> bool:
    return role.partition(":")[0] != "host" and len(machines) == 1 and machines.isdisjoint(("", OTHER))


def _known_as(attribute: str, members: Iterable[tuple[str, Value]]) -> dict[str, str]:
    """value -> the most frequent one that is alike."""
    counts = Counter(value.value for _, value in members)
    found: dict[str, str] = {}
    for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        found[text] = next((known for known in found.values() if alike(attribute, text, known)), text)
    return found


def _of_machines(values: Mapping[str, Iterable[Value]]) -> dict[str, tuple[Value, ...]]:
    """The values with hosts that have lost their GPUs in the role of their like."""
    found = {host: tuple(own) for host, own in values.items()}
    machines: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for host, own in found.items():
        of_host = {value.attribute: value for value in own if not value.subject}
        if all(name in of_host for name in _MACHINE):
            machine = tuple(of_host[name].value for name in _MACHINE)
            machines[machine].append((host, of_host["board"].role))
    for hosts in machines.values():
        usual, have = Counter(role for _, role in hosts).most_common(1)[0]
        if len(hosts) < LEAST or 2 * have <= len(hosts) or not usual.endswith(_WITH_GPUS):
            continue
        for host, role in hosts:
            if not role.endswith(_WITH_GPUS):
                found[host] = tuple(_with_role(value, role, usual) for value in found[host])
    return found


def _with_role(value: Value, role: str, other: str) -> Value:
    rest = value.role.removeprefix(role)
    return Value(value.attribute, f"{other}{rest}", value.subject, value.value)
