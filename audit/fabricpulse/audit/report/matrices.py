"""What was measured between NICs, packed for the page: of 1,000 hosts with eight rails in some megabytes. Pure.

A matrix is of one kind and network. Its ways and its NICs, which like matrices share, stand in a pool once.
A way is two numbers, source and target; what was measured on it is one, three times the place of the value in the
matrix's list of values, plus 0 for failed, 1 for passed, 2 for not judged. Numbers are digits of base 90, in characters
that stand in JSON and in HTML as they are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fabricpulse.audit.model import Measurement

# Ways that all matrices hold together, in 2 bytes each beside what they share.
MOST_WAYS = 1_000_000
# NICs that the page names as the worst of a matrix.
WORST = 10
DIGITS = "".join(chr(code) for code in range(35, 127) if chr(code) not in "<\\")
_CODES = len(DIGITS) ** 2
_UNITS = {
    "bandwidth": (1e-9, "Gb/s"),
    "ecmp_loss": (100, "% lost on some source ports"),
    "ecmp_delay": (1e6, "µs later on some source ports"),
    "duplex": (100, "% of the two alone"),
    "connectivity": (1e6, "µs round trip"),
    "loss": (100, "% lost"),
    "mtu": (1e6, "µs round trip"),
    "owd": (1e6, "µs one way"),
    "rdma": (1e-9, "Gb/s by RDMA"),
}
# Of the others more is worse.
_MORE_IS_BETTER = ("bandwidth", "duplex", "rdma")

Nic = tuple[str, str]


def matrices(measured: Iterable[Measurement], most: int = MOST_WAYS) -> Mapping[str, object]:
    """`matrices`, and the `pool` that they refer to by place.

    Beyond `most` ways a matrix keeps those that failed and of each NIC the worst that it sends and is sent, so that
    none is missing, then others while there is room; `of` is how many there were.
    """
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for m in measured:
        groups[m.kind, m.network].append(m)
    left, matrices_left = most, len(groups)
    pool: dict[str | tuple[str, ...], int] = {}
    found = []
    for (kind, network), group in sorted(groups.items(), key=lambda item: len(item[1])):
        kept = _kept(kind, group, left // matrices_left)
        left, matrices_left = max(0, left - len(kept)), matrices_left - 1
        nics = sorted({_source(m) for m in kept} | {_target(m) for m in kept})
        place = {nic: index for index, nic in enumerate(nics)}
        width = 2 if len(nics) <= _CODES else 3
        kept.sort(key=lambda m: (place[_source(m)], place[_target(m)]))
        scale, unit = _UNITS[kind]
        values, places = _values([m.value * scale for m in kept])
        ways = "".join(_digits(place[_source(m)], width) + _digits(place[_target(m)], width) for m in kept)
        codes = (3 * index + _state(m) for index, m in zip(places, kept, strict=True))
        found.append(
            {
                "name": f"{kind}, {network}",
                "unit": unit,
                "nics": pool.setdefault(tuple(" ".join(nic) for nic in nics), len(pool)),
                "ways": pool.setdefault(ways, len(pool)),
                "width": width,
                "values": values,
                "codes": "".join(_digits(code, 2) for code in codes),
                "of": len(group),
                "worst": _worst(group),
            }
        )
    found.sort(key=lambda matrix: str(matrix["name"]))
    return {"matrices": found, "pool": list(pool)}


def _kept(kind: str, group: Sequence[Measurement], room: int) -> list[Measurement]:
    if len(group) <= room:
        return list(group)
    worst_first = sorted(group, key=lambda m: _badness(kind, m))
    kept: dict[int, Measurement] = {}
    sends: set[Nic] = set()
    is_sent: set[Nic] = set()
    for m in worst_first:
        if m.ok is False or _source(m) not in sends or _target(m) not in is_sent:
            kept[id(m)] = m
            sends.add(_source(m))
            is_sent.add(_target(m))
    for m in worst_first:
        if len(kept) >= room:
            break
        kept[id(m)] = m
    return list(kept.values())


def _badness(kind: str, m: Measurement) -> tuple[bool, float]:
    return m.ok is not False, m.value if kind in _MORE_IS_BETTER else -m.value


def _worst(group: Iterable[Measurement]) -> list[tuple[str, int, int]]:
    """NIC, of how many of its ways how many failed, most first."""
    bad: Counter[Nic] = Counter()
    total: Counter[Nic] = Counter()
    for m in group:
        total.update((_source(m), _target(m)))
        if m.ok is False:
            bad.update((_source(m), _target(m)))
    first = sorted(bad, key=lambda nic: (-bad[nic] / total[nic], nic))[:WORST]
    return [(" ".join(nic), bad[nic], total[nic]) for nic in first]


def _values(exact: Sequence[float]) -> tuple[list[float], list[int]]:
    """The distinct values, in as many of four digits as leave each a code, and the place of each."""
    for digits in (4, 3, 2, 1):
        rounded = [float(f"{value:.{digits}g}") for value in exact]
        distinct = sorted(set(rounded))
        if 3 * len(distinct) <= _CODES:
            break
    distinct = distinct[: _CODES // 3]
    place = {value: index for index, value in enumerate(distinct)}
    return distinct, [place.get(value, len(distinct) - 1) for value in rounded]


def _state(m: Measurement) -> int:
    return 2 if m.ok is None else int(m.ok)


def _source(m: Measurement) -> Nic:
    return m.source_host, m.source_device


def _target(m: Measurement) -> Nic:
    return m.target_host, m.target_device


def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, digit = divmod(number, len(DIGITS))
        text = DIGITS[digit] + text
    return text
