"""Single random faults on every kind of element of a lab: what is named first, how soon, and what else is.

Named is what the coordinator suspects, or what an alert of a NIC says. A link, a switch and each direction of a NIC are
elements of their own; of a NIC that is dead one way its exporter says that it is disconnected, which is right, too.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.bench.map.lab import AlertedFleet
from tests.bench.rows import Rows
from tests.fixtures.waiting import wait_for

from fabricpulse.lab import Fault, Lab

_LEAVES, _SPINES, _HOSTS = 3, 3, 9
# Seconds after which a fault counts as not found; after the first alert in which it must be named; that are watched on.
_PATIENCE_S, _WITHIN_S, _STAYS_S = 90.0, 10.0, 5.0
_POLL_S = 0.1
_MTU_S = 30.0
# Over which the traffic of a port is measured that becomes four times slower.
_MEASURED_S = 2.0
Name = tuple[str, str, str]


@dataclass(frozen=True)
class _Element:
    """One that can be faulty. names : as suspects give it; of several any is right. outs : ports by which packets leave
    that cross it, as (node, port). ends : as (node, port), that go down with it; () if that does nobody any harm.
    """

    kind: str
    names: frozenset[Name]
    outs: tuple[tuple[str, str], ...]
    ends: tuple[tuple[str, str], ...] = ()


def _elements(lab: Lab) -> list[_Element]:
    found = []
    for host in lab.hosts:
        nic = host.nic("rail0")
        name = f"{host.name}/rail0"
        sends, receives = (host.name, "rail0"), (nic.leaf, host.name)
        found.append(_Element("nic_tx", frozenset({("nic_tx", name, "")}), (sends,)))
        found.append(_Element("nic_rx", frozenset({("nic_rx", name, "")}), (receives,)))
        found.append(_Element("nic", frozenset({("nic", name, "")}), (sends, receives), (receives,)))
    fabric = lab.fabric
    for leaf in fabric.leaf_names:
        for spine in fabric.spine_names:
            up, down = ("link", leaf, spine), ("link", spine, leaf)
            found.append(_Element("link up", frozenset({up}), ((leaf, spine),)))
            found.append(_Element("link down", frozenset({down}), ((spine, leaf),)))
            both = frozenset({up, down})
            found.append(_Element("cable", both, ((leaf, spine), (spine, leaf)), ((spine, leaf),)))
    for spine in fabric.spine_names:
        outs = tuple((spine, leaf) for leaf in fabric.leaf_names)
        found.append(_Element("spine", frozenset({("switch", spine, "")}), outs))
    for leaf in fabric.leaf_names:
        hosts = [(leaf, host.name) for host in lab.hosts if host.nic("rail0").leaf == leaf]
        uplinks = [(leaf, spine) for spine in fabric.spine_names]
        found.append(
            _Element("leaf", frozenset({("switch", leaf, "")}), (*hosts, *uplinks), (*hosts, *uplinks))
        )
    return found


@dataclass(frozen=True)
class _Played:
    """at_once : what was named first. right_s : until the right one was the first of all, None if it was not.
    alert_s : until anything was named. wrong : what else was named, in how many looks.
    """

    alert_s: float | None
    at_once: str
    right_s: float | None
    wrong: dict[str, int]


@dataclass
class _Sum:
    times: int = 0
    right: int = 0
    at_once: int = 0
    with_wrong: int = 0
    took_s: list[float] = field(default_factory=list)


class _Draw:
    """Random faults; each kind of element and of fault alike often."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.random = lab, random.Random(seed)
        self.elements = _elements(lab)

    def fault(self) -> tuple[_Element, str, Callable[[], list[Fault]]]:
        """An element, what happens to it, and that."""
        choose = self.random.choice
        kind = choose(sorted({element.kind for element in self.elements}))
        element = choose([element for element in self.elements if element.kind == kind])
        what = choose(["down", "one way", "loss", "loss", "delay", "slow", "mtu"])
        if what == "down" and not element.ends:
            what = "one way"  # a spine that is down is one that no path takes any more
        return element, *self._of(element, what)

    def _of(self, element: _Element, what: str) -> tuple[str, Callable[[], list[Fault]]]:
        port = self.lab.port
        if what == "down":
            return "down", lambda: [port(*end).down() for end in element.ends]
        if what == "one way":
            return "loses all", lambda: [port(*out).loss(100, "out") for out in element.outs]
        if what == "loss":
            percent = 60 ** self.random.random()
            return f"loses {percent:.1f} %", lambda: [port(*out).loss(percent, "out") for out in element.outs]
        if what == "delay":
            ms = 0.2 * 25 ** self.random.random()
            return f"{ms:.2f} ms longer", lambda: [port(*out).delay(ms) for out in element.outs]
        if what == "mtu":
            size = self.random.choice([1400, 2000, 4000, 8000])
            return f"drops above {size} bytes", lambda: [
                port(*out).black_hole("out", f"meta length > {size}") for out in element.outs
            ]
        return "four times slower", lambda: [port(*out).limit(mbit) for out, mbit in self._quarters(element)]

    def _quarters(self, element: _Element) -> list[tuple[tuple[str, str], float]]:
        """Of each port a quarter of what leaves by it, Mbit/s."""

        def sent(node: str, device: str) -> int:
            return int(self.lab.run(node, ["cat", f"/sys/class/net/{device}/statistics/tx_bytes"]).stdout)

        before = [sent(*out) for out in element.outs]
        began = time.monotonic()
        time.sleep(_MEASURED_S)
        seconds = time.monotonic() - began
        rates = [8e-6 * (sent(*out) - old) / seconds for out, old in zip(element.outs, before, strict=True)]
        return [(out, max(rate / 4, 0.01)) for out, rate in zip(element.outs, rates, strict=True)]


@contextmanager
def _fleet() -> Iterator[AlertedFleet]:
    """With fleet time, so that delays are known."""
    with Lab(hosts=_HOSTS, rails=1, spines=_SPINES, pods=_LEAVES) as lab:
        fleet = AlertedFleet(lab)
        fleet.mesh.true_clock()
        yield fleet


def _named(fleet: AlertedFleet) -> list[tuple[str, Name]]:
    """What is named now, the surest first: what suffers, and which component."""
    found = [(s["what"], (s["kind"], s["component"], s["peer"])) for s in fleet.document()["suspects"]]
    if found:
        return found
    return [
        ("loss", ("nic", f"{instance}/rail0", ""))
        for name, _, _, _, instance in sorted(fleet.alerts())
        if name == "FabricNicDisconnected"
    ]


def _alerts(fleet: AlertedFleet) -> set[str]:
    """Without that a NIC flaps, which is true for minutes where faults by chance hit one again and again."""
    return {alert[0] for alert in fleet.alerts()} - {"FabricNicFlapping"}


def _played(fleet: AlertedFleet, element: _Element, begin: Callable[[], list[Fault]]) -> _Played:
    right = element.names
    if element.kind in ("nic_tx", "nic_rx"):
        # That it is dead one way its own exporter cannot tell from dead both ways, and says disconnected.
        right = right | {("nic", name, "") for _, name, _ in right}
    alert_s: float | None = None
    right_s: float | None = None
    at_once, wrong = "", dict[str, int]()
    began = time.monotonic()
    made = begin()
    end_s = _PATIENCE_S
    while (now_s := time.monotonic() - began) < end_s:
        named = _named(fleet)
        if named and alert_s is None:
            alert_s, at_once = now_s, _text(*named[0])
            end_s = now_s + _WITHIN_S
        if named and named[0][1] in right and right_s is None:
            right_s, end_s = now_s, now_s + _STAYS_S
        for what, name in named:
            if name not in right:
                wrong[_text(what, name)] = wrong.get(_text(what, name), 0) + 1
        time.sleep(_POLL_S)
    for fault in made:
        fault.undo()
    wait_for(lambda: not _alerts(fleet) and not fleet.suspects(), 300, "all is well again")
    return _Played(alert_s, at_once, right_s, wrong)


def _text(what: str, name: Name) -> str:
    return f"{what} {' '.join(part for part in name if part)}"


def bench_localised(rows: Rows, faults: int, seed: int) -> None:
    """Share of random single faults that are named right first within ten seconds of the first alert."""
    sums: dict[str, _Sum] = {}
    with _fleet() as fleet:
        draw = _Draw(fleet.lab, seed)
        for number in range(faults):
            element, what, begin = draw.fault()
            played = _played(fleet, element, begin)
            name = " or ".join(sorted(" ".join(part for part in each if part) for each in element.names))
            for group in ("all", what.split()[0] if what[0].isalpha() else "longer", element.kind):
                one = sums.setdefault(group, _Sum())
                one.times += 1
                one.right += played.right_s is not None
                one.at_once += played.right_s is not None and played.right_s == played.alert_s
                one.with_wrong += bool(played.wrong)
                one.took_s += [played.right_s] if played.right_s is not None else []
            late = "never" if played.right_s is None else f"{played.right_s:.1f} s"
            print(
                f"bench map: {number} {name} {what}: right after {late}; first after "
                f"{played.alert_s or float('nan'):.1f} s {played.at_once}; beside it {played.wrong}",
                file=sys.stderr,
                flush=True,
            )
    for group, one in sums.items():
        case = (
            f"lab, 3 leaves, 3 spines, 9 hosts, random single faults, {group}, {one.times} times, seed {seed}"
        )
        must = ">= 98" if group == "all" else None
        worst = round(max(one.took_s), 1) if one.took_s else None
        more = {"at_once": one.at_once, "others_named": one.with_wrong, "worst_s": worst}
        rows.report(case, "localised_percent", 100 * one.right / one.times, "%", must, **more)
    cut = sums.get("drops")
    if cut is not None and cut.took_s:
        worst_s = max(cut.took_s) if cut.right == cut.times else float("nan")
        rows.report(
            f"lab, the {cut.times} of them that drop large packets", "mtu_blackhole_s", worst_s, "s", "<= 30"
        )
