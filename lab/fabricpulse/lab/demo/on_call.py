"""On-call in the demo: receives Alertmanager's notifications, as a pager would."""

import asyncio
import json
import time
from socket import SOCK_STREAM

from aiohttp import web

from fabricpulse.lab import Lab
from fabricpulse.lab.demo.names import ON_CALL_PORT
from fabricpulse.lab.demo.observed import Observed, PageSeen
from fabricpulse.lab.demo.watch import Watch


class OnCall(Watch):
    """The webhook of the receiver `on-call`, in the management node."""

    name = "on call"
    interval_s = 60.0

    def __init__(self, lab: Lab) -> None:
        """Listens at once: what comes before `run` waits in the socket's queue."""
        self._socket = lab.socket(lab.mgmt.name, SOCK_STREAM)
        self._socket.bind(("127.0.0.1", ON_CALL_PORT))
        self._socket.listen(64)
        self._observed: Observed | None = None
        self._changed = asyncio.Event()

    async def run(self, observed: Observed, changed: asyncio.Event) -> None:
        """Takes pages for ever."""
        self._observed, self._changed = observed, changed
        application = web.Application()
        application.router.add_post("/", self._page)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, self._socket).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def poll(self, observed: Observed) -> None:
        """Nothing: pages come by themselves."""

    async def _page(self, request: web.Request) -> web.Response:
        """A notification, version 4 of Alertmanager's webhook: the firing alerts of one group."""
        message = json.loads(await request.read())
        for alert in message["alerts"]:
            labels = alert["labels"]
            page = PageSeen(
                labels.get("alertname", ""),
                tuple(sorted((name, labels[name]) for name in PageSeen.ABOUT if labels.get(name))),
                message["groupKey"],
            )
            if alert["status"] == "firing" and self._observed is not None:
                self._observed.pages.setdefault(page, time.monotonic())
        self._changed.set()
        return web.Response()
