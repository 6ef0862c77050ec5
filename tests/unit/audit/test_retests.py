"""Which echo tests are made again."""

import asyncio
from typing import Any

import pytest

from fabricpulse.audit.fleet import paths
from fabricpulse.audit.fleet.paths import Echoes
from fabricpulse.audit.fleet.run import Target
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.node.wire import EchoResult, EchoTest
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import FRONT_END, PathDirections, Rail
from fabricpulse.core.web.client_config import HttpClientConfig

HOSTS = tuple("abcd")
# Names of front-end devices come first, as do their ways in the order of tests.
FRONT, NIC = "bond0", "eth0"


def rail(device: str) -> Rail:
    return Rail(
        tuple(((host, device), f"10.0.0.{n}") for n, host in enumerate(HOSTS)), plan_rounds([""] * len(HOSTS))
    )


def echoed(monkeypatch: pytest.MonkeyPatch, answers: Any) -> tuple[Echoes, list[Any], list[list[EchoTest]]]:
    """Runs the echoes of a rail and of the front end. answers : of a host and a test. Returns what was measured, and
    the tests that each request asked for."""
    asked: list[list[EchoTest]] = []

    async def send(_: Any, target: Target, tests: list[EchoTest]) -> tuple[EchoResult, ...]:
        asked.append(tests)
        return tuple(answers(target.host, test) for test in tests)

    monkeypatch.setattr(paths, "send_echoes", send)
    rails = {"rail0": rail(NIC), FRONT_END: rail(FRONT)}
    agents = {host: Target(host, "http://x", {}) for host in HOSTS}

    async def run() -> tuple[Echoes, list[Any]]:
        fleet = Fleet(agents, HttpClientConfig(), PathDirections(rails, []), {}, asyncio.Event())
        echoes = Echoes(fleet)
        return echoes, await echoes.run(rails)

    echoes, found = asyncio.run(run())
    return echoes, found, asked


def test_a_front_end_that_drops_all_echoes_takes_no_turn_of_a_rail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many tests as are made again all are those of the rail."""
    monkeypatch.setattr(paths, "MOST_AGAIN", 3)
    dead = EchoResult(3, 0)
    _, found, asked = echoed(
        monkeypatch,
        lambda host, test: dead if test.device == FRONT or host == "a" else EchoResult(2, 2, rtt_s=1e-4),
    )
    again = [test.device for tests in asked[len(HOSTS) :] for test in tests]
    assert again == [NIC] * 3
    assert {m.attempts for m in found if m.network == FRONT_END} == {1}
