"""A new token in the coordinator's file: hosts that report as datagrams, which show none, have to show it too."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.clocksync.sidecar.reports import empty_report

from fabricpulse.clocksync.coordinator.coordinator import Coordinator
from fabricpulse.clocksync.sidecar.coordinator_client import CoordinatorClient
from fabricpulse.core.daemon import Lifetime
from fabricpulse.core.options import DaemonOptions
from fabricpulse.core.web.client import HttpClient
from fabricpulse.core.web.client_config import HttpClientConfig
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.token_file import TokenFile


async def test_a_channel_ends_with_the_token_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old token is refused at the report after next at the latest; with the new one the host is back."""
    ours, theirs = tmp_path / "coordinator.token", tmp_path / "sidecar.token"
    for path in (ours, theirs):
        path.write_text("old")
    config = tmp_path / "coordinator.yml"
    config.write_text(f"token_file: {ours}\n")
    life, ready = Lifetime(), asyncio.Event()
    monkeypatch.setattr(life, "ready", ready.set)
    coordinator = Coordinator(
        DaemonOptions(config, WebOptions(("127.0.0.1:0",)), "info", "logfmt"),
        life,
    )
    running = asyncio.create_task(coordinator.run())
    await ready.wait()
    assert coordinator._channels is not None
    url = "http://{}:{}".format(*coordinator.server.addresses[0])
    client = CoordinatorClient(TokenFile(str(theirs)))
    async with HttpClient(HttpClientConfig()) as http:

        async def ask() -> int:
            """Reports; returns how many refusals there have been."""
            await client.report(http, [url], empty_report, lambda *_: None, wait_s=60.0, follow_s=2.0)
            return client.errors["status"]

        for _ in range(3):
            assert await ask() == 0
        by_datagram = sum(coordinator._channels.intake.counts().values())
        assert by_datagram >= 1
        ours.write_text("new, and of another length")
        await ask()
        assert await ask() == 1
        assert not client.up
        theirs.write_text("new, and of another length")
        for _ in range(3):
            assert await ask() == 1
        assert client.up
        assert sum(coordinator._channels.intake.counts().values()) > by_datagram + 1
        await client.close()
    life.stop()
    await running
