"""Random faults, several at a time: no error, no corrupt byte, no hang. Also under the sanitizers."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.fixtures.native.programs import native
from tests.integration.plugin.chaos import connect_beside_a_stopped_peer, play
from tests.integration.plugin.ring import Ring

from fabricpulse.lab import Lab
from fabricpulse.plugin_ipc.control import ControlError

pytestmark = pytest.mark.root

COMMANDS = {
    "status",
    "events",
    "detail",
    "nic.avoid",
    "nic.restore",
    "lane.disable",
    "lane.weight",
    "lane.repath",
}


@pytest.fixture(scope="module")
def ring_lab() -> Iterator[Lab]:
    with Lab(hosts=3, rails=2, nic_mbit=300) as lab:
        yield lab


@contextmanager
def commands(ring: Ring, seed: int) -> Iterator[list[str]]:
    """Random commands to the control sockets for as long as it lasts, one after the other; those that were answered.

    A refusal (the last healthy lane) is an answer; a job that does not answer in time is not. What was avoided or
    disabled is restored at the end.
    """
    dice = random.Random(seed)
    over = threading.Event()
    answered: list[str] = []

    def send(host: str, number: int, op: str, **fields: object) -> None:
        if op in ("status", "events"):
            ring.control(host, op=op, **fields)
        else:
            ring.control(host, op=op, op_id=f"{host}-{number}", generation=number, **fields)
        answered.append(op)

    def one(number: int) -> None:
        host = dice.choice(ring.ranks).host
        op = dice.choice(
            ("status", "events", "detail", "nic.avoid", "lane.disable", "lane.weight", "lane.repath")
        )
        if op == "detail":
            send(host, number, op, level=dice.randrange(3))
        elif op == "nic.avoid":
            device = dice.choice(("rail0", "rail1"))
            send(host, number, op, device=device)
            send(host, number + 1, "nic.restore", device=device)
        elif op.startswith("lane."):
            connection = dice.choice(ring.control(host, op="status")["connections"])
            lane = {"connection": connection["connection"], "lane": dice.randrange(4)}
            send(
                host, number, op, **lane, **({"weight": dice.randrange(1001)} if op == "lane.weight" else {})
            )
            undo = {"lane.disable": "lane.enable", "lane.weight": "lane.weight"}.get(op)
            if undo is not None:
                send(host, number + 1, undo, **lane, **({"weight": None} if op == "lane.weight" else {}))
        else:
            send(host, number, op)

    def work() -> None:
        number, latest = 0, time.monotonic() + 60
        # On a slow machine the faults may be over before every kind has had its turn.
        while not over.wait(0.01) or (not set(answered) >= COMMANDS and time.monotonic() < latest):
            number += 2
            with suppress(ControlError):  # a stopped process, one that a sanitizer slows down
                one(number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield answered
    finally:
        over.set()
        thread.join()


def survive(
    lab: Lab,
    seed: int,
    count: int,
    program: Path | str = "fabricpulse-ring",
    env: dict[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    longest_s: float = 1.0,
) -> None:
    ring = Ring(lab, 3, ["--bytes", "1M", *arguments], env=env, program=program)
    try:
        ring.wait_running()
        with commands(ring, seed) as answered:
            story = play(ring.ranks, lab, seed, count, longest_s=longest_s)
        assert set(answered) >= COMMANDS
        healed = time.time()
        ring.until(lambda: ring.bandwidth(healed, time.time()) > 0, 20.0)
        ring.stop(30)
        assert "WARNING: ThreadSanitizer" not in ring.said(), story
    finally:
        lab.heal()
        ring.kill()


@pytest.mark.parametrize(("seed", "count"), [(1, 30), pytest.param(2, 40, marks=pytest.mark.slow)])
def test_random_faults(ring_lab: Lab, seed: int, count: int) -> None:
    """Faults of all kinds in a random order, and commands beside them: once all is healed the ring goes on, and ends
    well.
    """
    survive(ring_lab, seed, count)


@pytest.mark.slow
def test_long_faults(ring_lab: Lab) -> None:
    """Outages of up to 5 s, an address that is away for up to 6 s, firewalls that reject: no error while processes
    live."""
    survive(ring_lab, 4, 40, longest_s=6.0)


@pytest.mark.slow
def test_the_ring_waits_on_after_it_was_stopped(ring_lab: Lab) -> None:
    """Two of three ranks are stopped and go on while they wait for the third: a system call with a time limit ends
    then, which is nobody's end."""
    ring = Ring(ring_lab, 3, ["--bytes", "64K"], port=7200, start=2)
    try:
        for _ in range(20):
            for rank in ring.ranks:
                rank.process.suspend()
                rank.process.resume()
            time.sleep(0.02)  # back in the call
        ring.start()
        ring.wait_running()
        ring.stop()
    finally:
        ring.kill()


@pytest.mark.slow
def test_a_process_that_is_stopped_while_it_connects(ring_lab: Lab) -> None:
    """0.1 to 4 s, at a random moment, either end."""
    for number in range(5):
        connect_beside_a_stopped_peer(ring_lab, number, 7100 + number)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", ["optimized_address", "thread"])
def test_random_faults_under_a_sanitizer(ring_lab: Lab, sanitizer: str) -> None:
    """The sanitizer finds nothing while lanes die and come back."""
    env = {
        "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=0:exitcode=66",
    }
    program, plugin = (native(target, sanitizer) for target in ("fabricpulse-ring", "nccl-net-fabricpulse"))
    assert plugin.parent == program.parent
    survive(ring_lab, 3, 12, program, env, ("--plugin", str(plugin)))
