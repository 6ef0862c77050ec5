"""Daemons that may have few files open, among clients that take them all: who is not hostile still gets an answer."""

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
import pytest
from tests.fixtures.web.hostile_clients import IDLE, SLOW, hostile_clients

WEBHOOK = b'{"version": "4", "groupKey": "{}", "status": "firing", "receiver": "r", "alerts": []}'
COORDINATOR = ("clocksync coordinator", "{}", (("GET", "/metrics", b""), ("GET", "/-/ready", b"")))
RECEIVER = (
    "remediation receiver",
    "journal: FOLDER/journal.db",
    (
        ("GET", "/metrics", b""),
        ("POST", "/api/v1/alertmanager", WEBHOOK),
        ("POST", "/api/v1/pause", b'{"reason": "test"}'),
    ),
)


@pytest.mark.parametrize(
    ("daemon", "files", "idle", "slow"),
    [
        (COORDINATOR, 256, IDLE, SLOW),
        (COORDINATOR, 1_024, IDLE, SLOW),
        (RECEIVER, 1_024, IDLE, SLOW),
        (RECEIVER, 8_192, 2_500, 2_500),
    ],
    ids=["coordinator 256", "coordinator 1024", "receiver 1024", "receiver 8192"],
)
async def test_daemons_under_a_hard_limit_of_open_files(
    daemon: tuple[str, str, tuple[tuple[str, str, bytes], ...]],
    files: int,
    idle: int,
    slow: int,
    tmp_path: Path,
) -> None:
    """Scrape, webhook and kill switch of real daemons are answered among thousands of connections; the log stays
    short.
    """
    name, config, requests = daemon
    (tmp_path / "config.yaml").write_text(config.replace("FOLDER", str(tmp_path)))
    command = [
        sys.executable,
        "-Im",
        "fabricpulse.core.cli",
        *name.split(),
        f"--config={tmp_path / 'config.yaml'}",
    ]
    process = await asyncio.create_subprocess_exec(
        *["prlimit", f"--nofile={files}:{files}", *command, "--web.listen-address=127.0.0.1:0"],
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"FABRICPULSE_RUN_DIR": str(tmp_path)},
    )
    assert process.stderr is not None
    try:
        while b"event=listening" not in (line := await asyncio.wait_for(process.stderr.readline(), 60)):
            assert line, "it has ended"
        port = int(line.partition(b"address=127.0.0.1:")[2].split()[0])
        text = b""
        async with hostile_clients(("127.0.0.1", port), idle=idle, slow=slow):
            for _ in range(5):
                for method, path, body in requests:
                    async with (
                        aiohttp.ClientSession(
                            headers={"Content-Type": "application/json"}, timeout=aiohttp.ClientTimeout(60)
                        ) as session,
                        session.request(
                            method, f"http://127.0.0.1:{port}{path}", data=body or None
                        ) as response,
                    ):
                        answer = await response.read()
                        assert response.status == 200, (path, answer)
                        text = answer if path == "/metrics" else text
        assert b"fabricpulse_http_connections_closed_total" in text
    finally:
        process.terminate()
        _, rest = await process.communicate()
    assert process.returncode == 0
    assert rest.count(b"\n") < 20, rest
