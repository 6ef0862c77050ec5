"""Random faults on the NICs of a job, drawn from a seed."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tests.integration.plugin.ring import Rank, Ring

from fabricpulse.lab import Lab
from fabricpulse.lab.faults import Fault, together
from fabricpulse.lab.node import Host, Nic
from fabricpulse.lab.wiring import nic_routes

# What each may last at most, seconds; play() may ask for less.
LONGEST_S = {
    "down": 1.0,
    "admin_down": 1.0,
    "black_hole": 1.0,
    "one_way_rx": 1.0,
    "one_way_tx": 1.0,
    "loss": 3.0,
    "throttle": 1.0,
    "small_packets": 3.0,
    "no_address": 6.0,
    "reject_reset": 3.0,
    "reject_icmp": 3.0,
    "both_down": 5.0,
    "both_silent": 5.0,
    "both_reject": 3.0,
    "stop": 0.3,
}
# No rail is whole meanwhile, or nobody is there to use it.
TOTAL = ("both_down", "both_silent", "both_reject", "stop")


def reject(lab: Lab, host: Host, nics: list[Nic], answer: str) -> Fault:
    """The host's firewall answers every TCP segment on these NICs so."""
    table = f"firewall{nics[0].device}"
    names = "{ " + ", ".join(nic.device for nic in nics) + " }"
    host.run(["nft", "add", "table", "inet", table])
    host.run(["nft", "add", "chain", "inet", table, "in", "{ type filter hook input priority 0; }"])
    rule = ["iifname", names, "meta", "l4proto", "tcp", "reject", "with", *answer.split()]
    host.run(["nft", "add", "rule", "inet", table, "in", *rule])

    def undo() -> None:
        host.run(["nft", "delete", "table", "inet", table])

    return Fault(lab, f"reject {names} of {host.name}", undo)


def no_address(lab: Lab, host: Host, nic: Nic) -> Fault:
    """The NIC loses its IPv4 address, and the routes with it."""
    host.run(["ip", "addr", "del", f"{nic.address}/24", "dev", nic.device])

    def undo() -> None:
        host.run(["ip", "addr", "add", f"{nic.address}/24", "dev", nic.device])
        for line in nic_routes(lab.fabric, host.name, nic.device):
            host.run(["ip", *line.split()])

    return Fault(lab, f"no address {nic!r}", undo)


def play(
    ranks: Sequence[Rank],
    lab: Lab,
    seed: int,
    count: int,
    pause_s: tuple[float, float] = (0.02, 0.4),
    longest_s: float = 1.0,
    whole_rail: int | None = None,
    going: Callable[[], bool] | None = None,
) -> list[str]:
    """Plays `count` random faults, several at a time; returns what was done, and when (CLOCK_MONOTONIC). In the
    end all are healed.

    Kinds: link down, administratively down, one-way and two-way black hole, 30 % loss, throttle, MTU black hole, an
    address that is gone, a firewall that rejects, all NICs of one host at once, one NIC twice in a row, a stopped peer,
    a child without exec. A NIC has one of them at a time. `longest_s` bounds those that LONGEST_S
    allows to last longer.
    whole_rail : nothing happens to it, nor to the processes. going : no further fault once this is false.
    """
    dice = random.Random(seed)
    hosts = [lab.host(rank.host) for rank in ranks]
    story: list[str] = []
    running: list[tuple[float, Callable[[], None], list[Nic]]] = []

    def undo(until: float) -> None:
        for entry in list(running):
            if entry[0] <= until:
                entry[1]()
                running.remove(entry)

    while len(story) < count and (going is None or going()):
        host = dice.choice(hosts)
        nics = [nic for at, nic in enumerate(host.nics) if at != whole_rail]
        nic = dice.choice(nics)
        rank = dice.choice(ranks)
        single: dict[str, Callable[[], Fault]] = {
            "down": nic.down,
            "admin_down": nic.admin_down,
            "black_hole": nic.black_hole,
            "one_way_rx": partial(nic.black_hole, "rx"),
            "one_way_tx": partial(nic.black_hole, "tx"),
            "loss": partial(nic.loss, 30),
            "throttle": partial(nic.limit, 40),
            "small_packets": partial(nic.mtu, 1200),
            "no_address": partial(no_address, lab, host, nic),
            "reject_reset": partial(reject, lab, host, [nic], "tcp reset"),
            "reject_icmp": partial(reject, lab, host, [nic], "icmpx type port-unreachable"),
        }
        all_of_it: dict[str, Callable[[], Fault]] = {
            "both_down": lambda nics=nics: together(lab, "down", [each.down() for each in nics]),  # type: ignore[misc]
            "both_silent": lambda nics=nics: together(  # type: ignore[misc]
                lab, "silent", [each.black_hole() for each in nics]
            ),
            "both_reject": partial(reject, lab, host, nics, "tcp reset"),
        }
        # Twice as often, since those that find their NIC busy are drawn again.
        kinds = [*single, *single, "twice", "child"] + (
            [] if whole_rail is not None else [*all_of_it, "stop"]
        )
        kind = dice.choice(kinds)
        needed = {"stop": [], "child": []}.get(kind, nics if kind in all_of_it else [nic])
        busy = {id(each) for entry in running for each in entry[2]}
        if busy & {id(each) for each in needed}:
            time.sleep(0.01)  # all may be busy for a while
            undo(time.monotonic())
            continue  # has a fault already: another one is drawn in its place
        # The lengths of faults and pauses are drawn, not waited for: what meets what is the test.
        lasts_s = dice.uniform(0.05, min(LONGEST_S.get(kind, 1.0), longest_s))
        story.append(f"{time.monotonic():.3f} {kind} {nic!r} for {lasts_s:.2f} s")  # as the hosts' logs
        if kind == "stop":
            rank.process.suspend()
            time.sleep(lasts_s)
            rank.process.resume()
        elif kind == "child":
            rank.process.send_signal(signal.SIGUSR2)
        elif kind == "twice":
            for _ in range(2):
                fault: Fault = nic.down()
                time.sleep(dice.uniform(0.01, 0.2))
                fault.undo()
                time.sleep(dice.uniform(0.0, 0.05))
        else:
            fault = (single | all_of_it)[kind]()
            running.append((time.monotonic() + lasts_s, fault.undo, needed))
        time.sleep(dice.uniform(*pause_s))
        undo(time.monotonic())
    undo(float("inf"))
    with suppress(Exception):
        lab.heal()
    return story


def connect_beside_a_stopped_peer(lab: Lab, seed: int, port: int) -> None:
    """Two ranks of which one is stopped for 0.1 to 4 s while they connect: the job starts and ends well."""
    dice = random.Random(seed)
    ring = Ring(lab, 2, ["--bytes", "64K"], port=port)
    try:
        time.sleep(dice.uniform(0.0, 0.15))
        stopped = dice.choice(ring.ranks).process
        stopped.suspend()
        time.sleep(dice.uniform(0.1, 4.0))
        stopped.resume()
        ring.wait_running()
        ring.stop()
    finally:
        ring.kill()
