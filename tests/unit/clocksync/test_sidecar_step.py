"""One step of a sidecar: whatever goes wrong with its coordinators, its neighbours are there."""

from pathlib import Path

import pytest
from aiohttp import ClientSession

from fabricpulse.clocksync.sidecar.sidecar import Sidecar
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.web.options import WebOptions


async def test_neighbours_are_asked_after_a_report_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault on the way to the coordinators is logged and does not end the step."""
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    sidecar = Sidecar(
        DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"),
        Lifetime(),
    )
    asked = []

    async def report(*_: object, **__: object) -> None:
        raise ValueError("of a kind that nobody has thought of")

    async def ask(session: ClientSession) -> None:
        asked.append(session)

    monkeypatch.setattr(sidecar._coordinator, "report", report)
    monkeypatch.setattr(sidecar, "_ask_neighbours", ask)
    async with ClientSession() as session:
        await sidecar._step(session)
    sidecar._leave()

    assert asked == [session]
    assert "reports to the coordinators failed" in [r.getMessage() for r in caplog.records]
