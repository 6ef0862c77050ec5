"""A daemon for test_daemon.py: serves, and prints its events on standard output."""

import asyncio
import socket
import sys
import threading
from typing import Any

from fabricpulse.core.daemon import Lifetime, run_daemon
from fabricpulse.core.errors import UserError
from fabricpulse.core.log import configure_logging
from fabricpulse.core.metrics.formats import TextFormat
from fabricpulse.core.web.options import WebOptions
from fabricpulse.core.web.server import WebServer


def say(*words: object) -> None:
    print(*words, flush=True)


in_resolver = threading.Event()
resolve = socket.getaddrinfo


def resolver(host: Any, *arguments: Any, **more: Any) -> Any:
    if host != "hangs.invalid":
        return resolve(host, *arguments, **more)
    say("in the resolver")
    in_resolver.set()
    threading.Event().wait()
    raise AssertionError("nothing ends this look-up")


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
    if "resolve-at-start" in sys.argv:
        await asyncio.get_running_loop().getaddrinfo("hangs.invalid", 1)
    looking: asyncio.Future[Any] = asyncio.ensure_future(asyncio.sleep(0))
    if "resolve" in sys.argv:
        looking = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo("hangs.invalid", 1))
        await asyncio.to_thread(in_resolver.wait)
    server = WebServer(
        "child", life, metrics, WebOptions(("127.0.0.1:0",), systemd_socket="socket" in sys.argv)
    )
    await server.start()
    life.ready()
    say("ready", server.addresses[0][1])
    await life.stopped()
    say("stopping")
    looking.cancel()
    if "block" in sys.argv:
        say("blocks")
        threading.Event().wait()
    if "hang" in sys.argv:
        await asyncio.sleep(60)
    await server.stop()
    say("stopped")


configure_logging()
socket.getaddrinfo = resolver
run_daemon(run)
