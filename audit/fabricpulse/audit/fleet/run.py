"""An audit of a fleet: asks the agents of all hosts at once, within bounds.

A host that does not answer in time is a finding, never a wait. The agents keep nothing for a run that is cancelled:
each request is whole, and ends with its connection.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from fabricpulse.audit.compare.clocks import ClockOffset, offset_of
from fabricpulse.audit.fleet.agent_client import AgentClient, DeadAgentError
from fabricpulse.audit.model import HostReport
from fabricpulse.audit.node.wire import (
    AUDIT_PATH,
    ECHO_TESTS_PATH,
    FRESH_S,
    AuditRequest,
    EchoResult,
    EchoTest,
    EchoTestsAnswer,
    EchoTestsRequest,
)
from fabricpulse.core.web.client import describe, read_body
from fabricpulse.core.web.client_config import HttpClientConfig

# Of a report: 20,000 outcomes are more than any host has.
MOST_ANSWER = 16 << 20
AT_A_TIME = 256
DEAD = "no answer, not even whether its agent is alive"

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A host to be audited. url : of its agent. rails : netdev -> network."""

    host: str
    url: str
    rails: Mapping[str, str]


class AgentError(Exception):
    """An agent has not given what was asked for; the text says why. answered : whether it has said anything at all.
    unknown : it does not understand the request; one of an older release refuses all that has a field it lacks. dead :
    it does not even say that it is alive. of_peer : another agent, that this one has to do with."""

    def __init__(
        self,
        text: str,
        *,
        answered: bool = False,
        unknown: bool = False,
        dead: bool = False,
        of_peer: bool = False,
    ) -> None:
        super().__init__(text)
        self.answered = answered
        self.unknown = unknown
        self.dead = dead
        self.of_peer = of_peer


async def collect(
    targets: Sequence[Target],
    config: HttpClientConfig,
    *,
    host_timeout_s: float = 30.0,
    progress: Callable[[str, bool], None] = lambda _host, _ok: None,
    cancelled: asyncio.Event | None = None,
    clocks: dict[str, ClockOffset] | None = None,
) -> tuple[list[HostReport], dict[str, str]]:
    """The reports of the hosts that answered, and why the others did not, by host.

    progress : gets each host and whether it has answered. cancelled : once set, requests under way end and what
    there is is returned; hosts that were not asked are not in the result. clocks : is given that of each host that
    answered. Raises ConfigError for credentials that
    cannot be used.
    """
    reports: list[HostReport] = []
    silent: dict[str, str] = {}
    slots = asyncio.Semaphore(AT_A_TIME)

    async with AgentClient(
        msgspec.structs.replace(config, timeout_s=host_timeout_s), connections=AT_A_TIME
    ) as client:

        async def one(target: Target) -> None:
            async with slots:
                asked_at = time.time()
                try:
                    report = await _audit(client, target)
                except AgentError as error:
                    silent[target.host] = str(error)
                    progress(target.host, False)
                else:
                    reports.append(report)
                    if clocks is not None:
                        clocks[target.host] = offset_of(report, asked_at, time.time(), FRESH_S)
                    progress(target.host, True)

        await until(cancelled or asyncio.Event(), (one(target) for target in targets))
    return sorted(reports, key=lambda report: report.host), dict(sorted(silent.items()))


async def until(cancelled: asyncio.Event, work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all of `work` at once, until it is done or `cancelled` is set; nothing of it runs on afterwards."""
    everything = asyncio.gather(*work)
    waiter = asyncio.create_task(cancelled.wait())
    waited: set[asyncio.Future[Any]] = {everything, waiter}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waited:
            future.cancel()
        outcomes = await asyncio.gather(*waited, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


@contextmanager
def cancelling(cancelled: asyncio.Event) -> Iterator[None]:
    """Sets the event on Ctrl-C and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancelled.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _audit(client: AgentClient, target: Target) -> HostReport:
    body = await _post(client, target.url + AUDIT_PATH, AuditRequest(dict(target.rails)))
    try:
        report = msgspec.json.decode(body, type=HostReport)
    except (msgspec.DecodeError, RecursionError) as error:
        raise AgentError(f"its answer is no report: {error}", answered=True) from error
    # The name that it was asked by: two hosts with one name must not become one.
    return msgspec.structs.replace(report, host=target.host)


async def send_echoes(
    client: AgentClient, target: Target, echo_tests: Sequence[EchoTest]
) -> tuple[EchoResult, ...]:
    """Has an agent make echo tests; as many results. Raises AgentError."""
    answer = await ask(
        client, target.url + ECHO_TESTS_PATH, EchoTestsRequest(tuple(echo_tests)), EchoTestsAnswer
    )
    if len(answer.results) != len(echo_tests):
        raise AgentError(f"{len(answer.results)} results for {len(echo_tests)} echo tests", answered=True)
    return answer.results


async def post_document(client: AgentClient, url: str, document: msgspec.Struct) -> None:
    """Gives an agent a document. Raises AgentError when it does not take it."""
    await _post(client, url, document)


async def ask(
    client: AgentClient, url: str, document: msgspec.Struct, kind: type[T], patience_s: float | None = None
) -> T:
    """An agent's answer to a request. patience_s : the client's if None. Raises AgentError."""
    try:
        async with asyncio.timeout(patience_s):
            body = await _post(client, url, document)
    except TimeoutError as error:
        raise AgentError("no answer in time") from error
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise AgentError(f"its answer is none: {error}", answered=True) from error


async def _post(client: AgentClient, url: str, document: msgspec.Struct) -> bytes:
    try:
        return await client.while_alive(url, _posted(client, url, document))
    except DeadAgentError as error:
        raise AgentError(DEAD, dead=True) from error


async def _posted(client: AgentClient, url: str, document: msgspec.Struct) -> bytes:
    headers = {"Content-Type": "application/json"}
    try:
        async with client.post(url, data=msgspec.json.encode(document), headers=headers) as response:
            body = await read_body(response, MOST_ANSWER)
            if response.status != 200:
                text = body[:200].decode("utf-8", "replace").strip()
                raise AgentError(
                    f"HTTP {response.status}: {text}", answered=True, unknown=response.status == 400
                )
            return body
    except TimeoutError as error:
        raise AgentError("no answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise AgentError(describe(error)) from error
    except UnicodeError as error:
        # Raised by the look-up of a name with a part that is empty or longer than 63 letters.
        raise AgentError(f"its name cannot be looked up: {error}") from error
