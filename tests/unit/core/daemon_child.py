"""A daemon for test_daemon.py: serves, tells what happens to it on standard output."""

import asyncio
import sys

from fabricpulse.core.daemon import Lifetime, run_daemon
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import configure_logging
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.server import WebServer


def say(*words: object) -> None:
    print(*words, flush=True)


async def metrics(_: TextFormat) -> bytes:
    return b""


async def run(life: Lifetime) -> None:
    reloads = 0

    async def reload() -> None:
        nonlocal reloads
        reloads += 1
        say("reload", reloads)
        if reloads == 2:
            raise UserError("the new file is bad")

    life.on_reload(reload)
    server = WebServer(
        "child", life, metrics, WebOptions(("127.0.0.1:0",), systemd_socket="socket" in sys.argv)
    )
    await server.start()
    life.ready()
    say("ready", server.addresses[0][1])
    await life.stopped()
    say("stopping")
    if "hang" in sys.argv:
        await asyncio.sleep(60)
    await server.stop()
    say("stopped")


configure_logging()
run_daemon(run)
