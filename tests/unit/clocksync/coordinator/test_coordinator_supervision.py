"""A coordinator that cannot solve any more does not say that it is ready."""

import aiohttp
import pytest

from fabricpulse.clocksync.coordinator.coordinator import Coordinator
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.supervision import TaskFailedError
from fabricpulse.core.web.options import WebOptions


async def test_a_solver_that_dies_ends_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody expects in the solver's task: not ready at once, then the daemon fails with it."""
    life = Lifetime()
    coordinator = Coordinator(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), life)
    answers: list[tuple[int, str]] = []

    def broken() -> tuple[int, int]:
        raise ZeroDivisionError("injected")

    stop = coordinator.server.stop

    async def ask_and_stop() -> None:
        host, port = coordinator.server.addresses[0]
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/-/ready") as answer:
            answers.append((answer.status, await answer.text()))
        await stop()

    monkeypatch.setattr(coordinator, "_outstanding", broken)
    monkeypatch.setattr(coordinator.server, "stop", ask_and_stop)
    with pytest.raises(
        TaskFailedError, match="task solver of this daemon failed: ZeroDivisionError: injected"
    ):
        await coordinator.run()

    status, text = answers[0]
    assert status == 503
    assert "task solver of this daemon failed" in text
