"""How a sidecar reports: to one of several coordinators, the next one when that does not answer."""

import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from fabricpulse.clocksync.wire import STEP_PATH, StepReply, StepReport, reply_decoder, report_encoder
from fabricpulse.core.log import get_logger
from fabricpulse.core.web.token_file import TokenFile

log = get_logger(__name__)


class CoordinatorClient:
    """up : the last report was answered. errors : reports that were not, by reason.

    resend_info : the next report must carry HostInfo, because the coordinator said so or may be another.
    """

    def __init__(self, token: TokenFile) -> None:
        self._token = token
        self.up = False
        self.resend_info = True
        self.errors = {"timeout": 0, "connection": 0, "status": 0, "reply": 0}
        self._chosen = 0
        self._answered_s = -1e9
        self._refused = ""

    def silent_s(self) -> float:
        """Seconds since a coordinator last answered."""
        return time.monotonic() - self._answered_s

    async def report(
        self, session: aiohttp.ClientSession, urls: Sequence[str], report: Callable[[bool], StepReport]
    ) -> StepReply | None:
        """Reports to the coordinator; tries each in turn. None when none answered.

        report : makes one of now, because a try may take seconds; with HostInfo if it is passed True.
        """
        for _ in range(len(urls)):
            url = urls[self._chosen % len(urls)]
            sent = report(self.resend_info)
            # What changes while this report is under way is for the next one.
            self.resend_info = False
            reply = await self._post(session, url, report_encoder.encode(sent))
            if reply is not None:
                self._answered_s = time.monotonic()
                if not self.up:
                    log.info("a coordinator answers", url=url)
                self.up = True
                self.resend_info = self.resend_info or reply.resend_info
                return reply
            self._chosen += 1
            self.resend_info = True
        if self.up:
            log.warning("no coordinator answers; holdover, then neighbours", coordinators=list(urls))
        self.up = False
        return None

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> StepReply | None:
        reason = ""
        try:
            async with session.post(
                url.rstrip("/") + STEP_PATH, data=body, headers=self._token.header
            ) as response:
                if response.status == 200:
                    reply = reply_decoder.decode(await response.read())
                    self._refused = ""
                    return reply
                kind, reason = "status", f"{response.status} {(await response.text()).strip()[:200]}"
        except TimeoutError:
            kind, reason = "timeout", "no answer in time"
        except (aiohttp.ClientError, OSError) as error:
            kind, reason = "connection", str(error)
        except msgspec.MsgspecError as error:
            kind, reason = "reply", f"cannot be read: {error}"
        self.errors[kind] += 1
        # Once for each reason, not once a step.
        if reason != self._refused:
            self._refused = reason
            log.warning("report not taken", url=url, kind=kind, reason=reason)
        return None
