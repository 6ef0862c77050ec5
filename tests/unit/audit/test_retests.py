"""Which echo tests are made again."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from fabricpulse.audit.fleet import paths
from fabricpulse.audit.fleet.paths import Echoes
from fabricpulse.audit.fleet.run import AgentError, Target, ask
from fabricpulse.audit.fleet.stage import Fleet
from fabricpulse.audit.node.wire import EchoResult, EchoTest, EchoTestsRequest
from fabricpulse.audit.pair_tests.pairing import plan_rounds
from fabricpulse.audit.pair_tests.path_tests import FRONT_END, PathDirections, Rail
from fabricpulse.audit.pair_tests.transfer_tests import untested_findings
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


@pytest.mark.parametrize("error", ["ENETUNREACH", "EHOSTUNREACH"])
def test_a_host_without_a_route_by_its_front_end_is_not_tested_there(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel says so: no host has failed to answer. On a rail it is a failure, as an answer that does not come."""
    good, refused = EchoResult(2, 2, rtt_s=1e-4), EchoResult(3, 0, error)
    echoes, found, _ = echoed(monkeypatch, lambda host, _: refused if host == "a" else good)
    assert set(echoes.untested) == {("a", FRONT)}
    assert {(m.source_host, m.network) for m in found if not m.ok} == {("a", "rail0")}
    [finding] = untested_findings(echoes.untested, [("a", FRONT)])
    assert (finding.category, finding.check) == ("front-end", "path-untested")
    # A silent host is one that fails.
    echoes, found, _ = echoed(monkeypatch, lambda host, _: EchoResult(3, 0) if host == "a" else good)
    assert echoes.untested == {}
    assert ("a", FRONT_END) in {(m.source_host, m.network) for m in found if not m.ok}


def test_an_agent_of_an_older_release_tests_its_rails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a request of which it lacks a field: what needs the field is not tested, all else is."""

    def answers(host: str, test: EchoTest) -> EchoResult:
        if host == "a" and test.source:
            raise AgentError("unknown field `source`", answered=True, unknown=True)
        return EchoResult(2, 2, rtt_s=1e-4)

    echoes, found, _ = echoed(monkeypatch, answers)
    assert set(echoes.untested) == {("a", FRONT)}
    assert "older release" in echoes.untested["a", FRONT]
    assert all(m.ok for m in found)
    assert {m.source_host for m in found if m.network == "rail0"} == set(HOSTS)
    assert {m.source_host for m in found if m.network == FRONT_END} == set(HOSTS) - {"a"}


@pytest.mark.parametrize(("status", "unknown"), [(400, True), (409, False), (500, False)])
def test_what_an_agent_does_not_understand(
    status: int, unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its HTTP status says so; one that is busy or broken understands."""

    class Client:
        @asynccontextmanager
        async def post(self, *_: Any, **__: Any) -> AsyncIterator[SimpleNamespace]:
            yield SimpleNamespace(status=status)

        async def while_alive(self, _url: str, request: Coroutine[Any, Any, bytes]) -> bytes:
            return await request

    async def body(*_: Any) -> bytes:
        return b"unknown field `source`"

    monkeypatch.setattr("fabricpulse.audit.fleet.run.read_body", body)
    with pytest.raises(AgentError, match="unknown field") as error:
        asyncio.run(ask(Client(), "http://x", EchoTestsRequest(()), EchoResult))  # type: ignore[arg-type]
    assert error.value.unknown is unknown
