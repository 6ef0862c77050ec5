"""Random faults on the NICs of a ring, drawn from a seed."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault


def play(
    ring: Ring, lab: Lab, seed: int, count: int, pause_s: tuple[float, float] = (0.02, 0.4)
) -> list[str]:
    """Plays `count` random faults, several at a time; returns what was done. All are healed at the end.

    Kinds: link down, administratively down, one-way and two-way black hole, 20 % loss, throttle, both NICs of one host
    at once, one NIC twice in a row, a stopped peer. A NIC has one of them at a time.
    """
    dice = random.Random(seed)
    hosts = [lab.host(rank.host) for rank in ring.ranks]
    story: list[str] = []
    running: list[tuple[float, Fault, object]] = []

    def undo(until: float) -> None:
        for entry in list(running):
            if entry[0] <= until:
                entry[1].undo()
                running.remove(entry)

    while len(story) < count:
        host = dice.choice(hosts)
        nic = host.nic(dice.randrange(len(host.nics)))
        busy = {id(entry[2]) for entry in running}
        kinds: dict[str, Callable[[], Fault]] = {
            "down": nic.down,
            "admin_down": nic.admin_down,
            "black_hole": nic.black_hole,
            "one_way_rx": partial(nic.black_hole, "rx"),
            "one_way_tx": partial(nic.black_hole, "tx"),
            "loss": partial(nic.loss, 20),
            "throttle": partial(nic.limit, 40),
        }
        kind = dice.choice([*kinds, "both_nics", "twice", "stop"])
        needed = {"both_nics": host.nics, "stop": ()}.get(kind, (nic,))
        if busy & {id(each) for each in needed}:
            continue  # has a fault already: another one is drawn in its place
        story.append(f"{kind} {nic!r}")
        # The lengths of faults and pauses are drawn, not waited for: what meets what is the test.
        if kind == "stop":
            rank = dice.choice(ring.ranks)
            rank.process.suspend()
            time.sleep(dice.uniform(0.01, 0.3))
            rank.process.resume()
        elif kind == "both_nics":
            faults = [each.down() for each in host.nics]
            time.sleep(dice.uniform(0.01, 0.3))
            for fault in faults:
                fault.undo()
        elif kind == "twice":
            for _ in range(2):
                fault = nic.down()
                time.sleep(dice.uniform(0.01, 0.2))
                fault.undo()
                time.sleep(dice.uniform(0.0, 0.05))
        else:
            running.append((time.monotonic() + dice.uniform(0.05, 1.0), kinds[kind](), nic))
        time.sleep(dice.uniform(*pause_s))
        undo(time.monotonic())
    undo(float("inf"))
    with suppress(Exception):
        lab.heal()
    return story
