"""Lists of hosts as Slurm writes them, `gpu-[001-016,020],login1`, or as `kubectl get nodes -o name` does. Pure.

The syntax of the former is that of `scontrol show hostnames` (Slurm's hostlist): prefixes, ranges in brackets that keep
their zeros, several brackets in one name, commas between names.
"""

import re
from collections.abc import Sequence

from fabricpulse.core.errors import UserError

MOST_HOSTS = 100_000
_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
# Of what goes into a bracket, at most nine digits.
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,93}[A-Za-z0-9])?", re.ASCII)


def expand(text: str, most: int = MOST_HOSTS) -> list[str]:
    """The hosts of a list, in its order, each once. Raises UserError for another syntax, or more than `most`."""
    found: dict[str, None] = {}
    for item in _split(text):
        for name in _expand_one(item, most):
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"host list: {name!r} is no host name; write it like gpu-[001-016,020],login1"
                )
            found[name] = None
            if len(found) > most:
                raise UserError(f"host list: more than {most} hosts; give a shorter one")
    return list(found)


def expand_lines(text: str) -> list[str]:
    """As expand, of lines that may begin with `node/`, as `kubectl get nodes -o name` writes them. Raises UserError."""
    return expand("\n".join(line.strip().removeprefix("node/") for line in text.splitlines()))


def fold(hosts: Sequence[str]) -> str:
    """A list that `expand` makes the same hosts of, in the same order: `gpu-[001-004,007],login1`.

    Neighbours whose names differ in their last number alone are put into one bracket.
    """
    items: list[str] = []
    ends: tuple[str, str] | None = None
    ranges: list[list[str]] = []
    for host in hosts:
        parts = _LAST_NUMBER.fullmatch(host)
        if parts is None:
            items += [*_bracketed(ends, ranges), host]
            ends = None
            continue
        before, number, after = parts.groups()
        if ends != (before, after):
            items += _bracketed(ends, ranges)
            ends, ranges = (before, after), []
        if ranges and _follows(ranges[-1][-1], number):
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ",".join([*items, *_bracketed(ends, ranges)])


def _follows(last: str, number: str) -> bool:
    return len(last) == len(number) and int(number) == int(last) + 1


def _bracketed(ends: tuple[str, str] | None, ranges: list[list[str]]) -> list[str]:
    if ends is None:
        return []
    inner = ",".join("-".join(each) for each in ranges)
    return [f"{ends[0]}[{inner}]{ends[1]}" if "-" in inner or "," in inner else f"{ends[0]}{inner}{ends[1]}"]


def _split(text: str) -> list[str]:
    """At commas and white space outside of brackets."""
    items, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        if depth not in (0, 1):
            raise UserError("host list: brackets do not match; write it like gpu-[001-016,020],login1")
        if depth == 0 and (letter == "," or letter.isspace()):
            items.append(text[start:index])
            start = index + 1
    if depth:
        raise UserError("host list: a bracket is not closed; write it like gpu-[001-016,020],login1")
    return [item for item in (*items, text[start:]) if item]


def _expand_one(item: str, most: int) -> list[str]:
    found = [""]
    rest = 0
    for bracket in _PART.finditer(item):
        numbers = _numbers(bracket[1], most)
        prefix = item[rest : bracket.start()]
        if len(found) * len(numbers) > most:
            raise UserError(f"host list: {item!r} is more than {most} hosts; give a shorter one")
        found = [f"{name}{prefix}{number}" for name in found for number in numbers]
        rest = bracket.end()
    return [name + item[rest:] for name in found]


def _numbers(text: str, most: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        hit = _RANGE.fullmatch(part.strip())
        if hit is None:
            raise UserError(f"host list: {part!r} is no number or range; write it like [001-016,020]")
        first, last = hit[1], hit[2] or hit[1]
        if int(last) < int(first):
            raise UserError(f"host list: the range {part!r} goes backward; write the smaller number first")
        if int(last) - int(first) + len(found) >= most:
            raise UserError(f"host list: the range {part!r} is more than {most} hosts; give a shorter one")
        # Slurm keeps the width of the first number.
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
