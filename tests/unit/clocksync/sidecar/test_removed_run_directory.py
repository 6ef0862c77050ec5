"""Somebody cleans up in /run while the sidecar runs."""

from pathlib import Path

import pytest

from fabricpulse.clocksync.sidecar.sidecar import Sidecar
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.run_dir import RUN_DIR_ENV
from fabricpulse.core.web.options import WebOptions


async def test_what_cannot_be_made_again_is_said_once_and_tried_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the page and one for the segment, none that claims another is there; then both are."""
    run = tmp_path / "run"
    monkeypatch.setenv(RUN_DIR_ENV, str(run))
    sidecar = Sidecar(DaemonOptions(None, WebOptions(("127.0.0.1:0",)), "info", "logfmt"), Lifetime())
    sidecar._clock.tick()
    run.rename(tmp_path / "away")
    run.write_text("where not even root can make a file")
    caplog.clear()
    for _ in range(3):
        sidecar._clock.tick()
    said = [
        (record.levelname, record.getMessage().partition("recreated")[0] + "recreated")
        for record in caplog.records
    ]
    assert said == [
        ("ERROR", "clock page was deleted and cannot be recreated"),
        ("ERROR", "ClockBound segment was deleted and cannot be recreated"),
    ]
    run.unlink()
    run.mkdir()
    caplog.clear()
    for _ in range(3):
        sidecar._clock.tick()
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "clock page was deleted; recreated"),
        ("WARNING", "ClockBound segment was deleted; recreated"),
    ]
    assert {"clock", "clockbound"} <= {path.name for path in run.iterdir()}
    sidecar._leave()
