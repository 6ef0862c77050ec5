"""What a daemon tells systemd (sd_notify(3)), and its watchdog."""

import asyncio
import faulthandler
import os
import socket
from contextlib import suppress

# Of the time within which systemd wants to be notified that the daemon is alive (WatchdogSec=).
_NOTIFIED, _LATE = 0.25, 0.8


def notify_systemd(state: str) -> None:
    """Tells systemd `state` (sd_notify protocol); does nothing without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())


def watchdog_s() -> float:
    """Within how many seconds systemd wants to be notified again; 0 = not at all, or of another process."""
    text = os.environ.get("WATCHDOG_USEC", "")
    own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(text) / 1e6 if own and text.isascii() and text.isdigit() else 0.0


async def keep_alive() -> None:
    """Notifies systemd that the event loop goes on, until cancelled. Of one that does not any more the stacks of all
    threads are on standard error, and so in the journal, before systemd kills the daemon.
    """
    within_s = watchdog_s()
    if not within_s:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(_LATE * within_s, file=2)
            notify_systemd("WATCHDOG=1")
            await asyncio.sleep(_NOTIFIED * within_s)
    finally:
        faulthandler.cancel_dump_traceback_later()
