"""The agent's requests to the receiver, and whether they get through."""

import time
from collections.abc import Callable

import aiohttp
import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe, read_body
from fabricpulse.core.web.urls import redact
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.node.older_receivers import for_older
from fabricpulse.remediation.protocol import MAX_DESIRED_BYTES, UNKNOWN_HOST, DesiredState, Envelope, Report

log = get_logger(__name__)

POLL_WAIT_S = 20
# Before a request that has failed is made again.
RETRY_S = 1.0
# An hour is the longest that a receiver may be set to (intent_valid_s); the rest is for clocks that differ.
MAX_VALID_S = 3600.0 + 300.0
_CONNECT_TIMEOUT_S = 3.0
_REPORT_TIMEOUT = aiohttp.ClientTimeout(total=10, connect=_CONNECT_TIMEOUT_S)
# RecursionError: of brackets within brackets, also in what nobody asks for.
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
_LEFT_FLEET = "add it there by the name that is `host` here, or stop this agent if it has left the fleet"
# Of an answer: the payload is text in JSON, where quotes take two bytes each.
_MOST_ANSWER = 2 * MAX_DESIRED_BYTES + 4096


class ReceiverError(Exception):
    """The receiver did not answer, or not as a receiver does."""


class RefusedError(ReceiverError):
    """The receiver is there, and takes nothing from this agent: who it is, or what it sends."""


class ReceiverClient:
    """Fetches and reports. problem : why the last request failed, "" after a success; before the first answer, too.

    The first failure is logged at once, also when the receiver was never reached: an agent that waits in silence looks
    like one that works.
    """

    def __init__(self, config: NodeConfig, clock: Callable[[], float] = time.time) -> None:
        """Made in a running event loop. clock : seconds since 1970. Raises ConfigError when a file of http_client, or
        receiver_keys, cannot be used."""
        self._clock = clock
        self._host = config.host_name
        self._open = _opener(config.receiver_keys)
        self._http = HttpClient(config.http_client)
        self._receivers = config.receivers
        # The one that answered last; after a failure the next.
        self._asked = 0
        self._failures: dict[str, str] = {"desired": "no answer yet", "report": "no answer yet"}
        self._logged: set[tuple[str, str]] = set()
        self._reached = ""
        # Whether the receiver took a report only in the values of the release before. Until another one answers, or it
        # starts again.
        self._is_older = False
        self._epoch = 0
        # A leader that hangs must not hold its agents for longer than its lease.
        self._wait_s = POLL_WAIT_S if len(self._receivers) == 1 else 5

    @property
    def _url(self) -> str:
        return redact(self._receivers[self._asked])

    @property
    def _base(self) -> str:
        return f"{self._receivers[self._asked]}/api/v1/agents/{self._host}"

    @property
    def problem(self) -> str:
        """What is wrong with the receiver, "" while it answers both the long poll and the reports."""
        reasons = [reason for reason in self._failures.values() if reason]
        return f"receiver {self._url} {reasons[0]}" if reasons else ""

    async def fetch_desired(self, version: str) -> DesiredState:
        """The desired state, as soon as it is another than `version`. Raises ReceiverError."""
        params = {"version": version, "wait": str(self._wait_s)}
        timeout = aiohttp.ClientTimeout(
            total=self._wait_s + min(10, self._wait_s), connect=_CONNECT_TIMEOUT_S
        )
        try:
            url = f"{self._base}/desired"
            async with self._http.get(url, params=params, timeout=timeout, allow_redirects=False) as response:
                await _check(response)
                desired = self._decode(await read_body(response, _MOST_ANSWER))
        except (*_UNREADABLE, aiohttp.ClientError, OSError, ReceiverError) as error:
            raise self._failed("desired", error) from error
        if desired.epoch != self._epoch:
            self._epoch, self._is_older = desired.epoch, False
        self._succeeded("desired")
        return desired

    def _decode(self, body: bytes) -> DesiredState:
        payload = self._open(msgspec.json.decode(body, type=Envelope))
        desired = msgspec.json.decode(payload, type=DesiredState)
        if desired.host != self._host:
            raise ReceiverError("the desired state is another host's")
        left_s = desired.not_after - self._clock()
        if left_s <= 0:
            raise ReceiverError(
                f"the desired state expired {-left_s:.0f} s ago: it is an old one, or a clock is wrong, here or there"
            )
        if left_s > MAX_VALID_S:
            raise ReceiverError("the desired state is valid for too long: a clock is wrong, here or there")
        return desired

    async def report(self, report: Report) -> None:
        """Sends a report. Raises ReceiverError."""
        older = for_older(report)
        try:
            # One of this release refuses what is out of bounds as well: in older values too.
            if self._is_older or not await self._post(report, may_be_refused=older != report):
                await self._post(older)
                self._is_older = True
        except (aiohttp.ClientError, OSError, ReceiverError) as error:
            raise self._failed("report", error) from error
        self._succeeded("report")

    async def _post(self, report: Report, may_be_refused: bool = False) -> bool:
        """Whether the receiver took it for a report; raises ReceiverError where it must."""
        body = msgspec.json.encode(report)
        async with self._http.post(f"{self._base}/report", data=body, timeout=_REPORT_TIMEOUT) as response:
            if may_be_refused and response.status == 400:
                return False
            await _check(response)
        return True

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    def _failed(self, request: str, error: Exception) -> ReceiverError:
        reason = describe(error)
        what = "refuses this agent" if isinstance(error, RefusedError) else "not reached"
        self._failures[request] = f"{what}: {reason}"
        if (self._url, reason) not in self._logged:
            self._logged.add((self._url, reason))
            log.warning(
                f"receiver {what}, NICs stay as they are", url=self._url, request=request, error=reason
            )
        if request == "desired":
            self._asked = (self._asked + 1) % len(self._receivers)
        return ReceiverError(reason)

    def _succeeded(self, request: str) -> None:
        self._failures[request] = ""
        if not self.problem and (self._logged or self._reached != self._url):
            self._logged, self._reached = set(), self._url
            log.info("receiver reached", url=self._url)


def _opener(keys_file: str) -> Callable[[Envelope], bytes]:
    """What takes payloads out of envelopes, and raises ReceiverError when no known key has signed them."""
    if not keys_file:
        return lambda envelope: envelope.payload.encode()
    from fabricpulse.remediation.signing import SignatureError, Verifier

    verifier = Verifier(keys_file)

    def verified(envelope: Envelope) -> bytes:
        try:
            return verifier.open(envelope)
        except SignatureError as error:
            raise ReceiverError(str(error)) from error

    return verified


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = (await response.content.read(200)).decode("utf-8", "replace").strip()
        kind = RefusedError if 400 <= response.status < 500 else ReceiverError
        if text == UNKNOWN_HOST:
            text += f" ({_LEFT_FLEET})"
        raise kind(f"HTTP {response.status} {text[:200]}")
