"""Random faults on the NICs of a ring, drawn from a seed."""

import random
import time
from collections.abc import Callable
from contextlib import suppress

from tests.integration.nccl_plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault


def play(
    ring: Ring, lab: Lab, seed: int, count: int, pause_s: tuple[float, float] = (0.02, 0.4)
) -> list[str]:
    """Plays `count` random faults, several at a time; returns what was done. All are healed at the end.

    Kinds: link down, administratively down, one-way and two-way black hole, 20 % loss, throttle, both NICs of one host
    at once, one NIC twice in a row, a stopped peer.
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

    for _ in range(count):
        host = dice.choice(hosts)
        nic = host.nic(dice.randrange(len(host.nics)))
        busy = {id(entry[2]) for entry in running}
        kinds: dict[str, Callable[[], Fault]] = {
            "down": nic.down,
            "admin_down": nic.admin_down,
            "black_hole": nic.black_hole,
            "one_way_rx": lambda nic=nic: nic.black_hole("rx"),  # type: ignore[misc]
            "one_way_tx": lambda nic=nic: nic.black_hole("tx"),  # type: ignore[misc]
            "loss": lambda nic=nic: nic.loss(20),  # type: ignore[misc]
            "throttle": lambda nic=nic: nic.limit(40),  # type: ignore[misc]
        }
        kind = dice.choice([*kinds, "both_nics", "twice", "stop"])
        now = time.monotonic()
        story.append(f"{kind} {nic!r}")
        if kind == "stop":
            rank = dice.choice(ring.ranks)
            rank.process.suspend()
            time.sleep(dice.uniform(0.01, 0.3))
            rank.process.resume()
        elif kind == "both_nics":
            if not busy & {id(each) for each in host.nics}:
                faults = [each.down() for each in host.nics]
                time.sleep(dice.uniform(0.01, 0.3))
                for fault in faults:
                    fault.undo()
        elif kind == "twice":
            if id(nic) not in busy:
                for _ in range(2):
                    fault = nic.down()
                    time.sleep(dice.uniform(0.01, 0.2))
                    fault.undo()
                    time.sleep(dice.uniform(0.0, 0.05))
        elif id(nic) not in busy:
            running.append((now + dice.uniform(0.05, 1.0), kinds[kind](), nic))
        time.sleep(dice.uniform(*pause_s))
        undo(time.monotonic())
    undo(float("inf"))
    with suppress(Exception):
        lab.heal()
    return story
