"""The agent's requests to the receiver, and whether they get through."""

import aiohttp
import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.core.web.client import HttpClient, describe
from fabricpulse.core.web.urls import redact
from fabricpulse.remediation.node.config import NodeConfig
from fabricpulse.remediation.protocol import DesiredState, Report

log = get_logger(__name__)

POLL_WAIT_S = 20
_CONNECT_TIMEOUT_S = 3.0


class ReceiverError(Exception):
    """The receiver did not answer, or not as a receiver does."""


class ReceiverClient:
    """Fetches and reports. problem : why the last request failed, "" after a success; before the first answer, too.

    The first failure is logged at once, also when the receiver was never reached: an agent that waits in silence looks
    like one that works.
    """

    def __init__(self, config: NodeConfig) -> None:
        """Made in a running event loop. Raises ConfigError when a file of http_client cannot be used."""
        self._http = HttpClient(config.http_client)
        self._base = f"{config.receiver.rstrip('/')}/api/v1/agents/{config.host_name}"
        self._url = redact(config.receiver)
        self._failures: dict[str, str] = {"desired": "no answer yet", "report": "no answer yet"}
        self._logged = ""

    @property
    def problem(self) -> str:
        """Why the receiver is not reached, "" while it answers both the long poll and the reports."""
        reasons = [reason for reason in self._failures.values() if reason]
        return f"receiver {self._url} not reached: {reasons[0]}" if reasons else ""

    async def fetch_desired(self, version: str) -> DesiredState:
        """The desired state, as soon as it is another than `version`. Raises ReceiverError."""
        params = {"version": version, "wait": str(POLL_WAIT_S)}
        timeout = aiohttp.ClientTimeout(total=POLL_WAIT_S + 10, connect=_CONNECT_TIMEOUT_S)
        try:
            async with self._http.get(f"{self._base}/desired", params=params, timeout=timeout) as response:
                await _check(response)
                desired = msgspec.json.decode(await response.read(), type=DesiredState)
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, ReceiverError, ValueError) as error:
            raise self._failed("desired", error) from error
        self._succeeded("desired")
        return desired

    async def report(self, report: Report) -> None:
        """Sends a report. Raises ReceiverError."""
        timeout = aiohttp.ClientTimeout(total=10, connect=_CONNECT_TIMEOUT_S)
        try:
            async with self._http.post(
                f"{self._base}/report", data=msgspec.json.encode(report), timeout=timeout
            ) as response:
                await _check(response)
        except (aiohttp.ClientError, OSError, ReceiverError) as error:
            raise self._failed("report", error) from error
        self._succeeded("report")

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    def _failed(self, request: str, error: Exception) -> ReceiverError:
        reason = describe(error)
        self._failures[request] = reason
        if self._logged != reason:
            self._logged = reason
            log.warning(
                "receiver not reached, NICs stay as they are", url=self._url, request=request, error=reason
            )
        return ReceiverError(reason)

    def _succeeded(self, request: str) -> None:
        self._failures[request] = ""
        if not self.problem and self._logged != "reached":
            self._logged = "reached"
            log.info("receiver reached", url=self._url)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = (await response.content.read(200)).decode("utf-8", "replace").strip()
        raise ReceiverError(f"HTTP {response.status} {text[:100]}")
