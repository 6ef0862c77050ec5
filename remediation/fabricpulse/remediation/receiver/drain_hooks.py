"""Runs the commands that drain hosts and bring them back: the scheduler's own, as the configuration names them."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from fabricpulse.core.log import get_logger
from fabricpulse.core.output import printable
from fabricpulse.core.waiting import wait_with_timeout
from fabricpulse.remediation import failpoints
from fabricpulse.remediation.receiver.commit_loop import CommitLoop
from fabricpulse.remediation.receiver.drains import Order
from fabricpulse.remediation.receiver.reconciler import Reconciler
from fabricpulse.remediation.receiver.state.transaction import Transaction
from fabricpulse.remediation.receiver.store.store import StoreError

log = get_logger(__name__)

# No event says that a retry is due.
_POLL_S = 5.0
_OUTPUT = 500
_ENDED_S = 5.0


class DrainHooks:
    """One command at a time, each in the journal before it is run and once it has ended."""

    def __init__(self, loop: CommitLoop, reconciler: Reconciler, lease_left_s: Callable[[], float]) -> None:
        """lease_left_s : see Database; without a lease nothing is run."""
        self._loop = loop
        self._reconciler = reconciler
        self._lease_left_s = lease_left_s
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There may be something to run."""
        self._wake.set()

    async def run(self) -> None:
        """Runs what is due until cancelled; a command under way is ended with it, and run again at the next start."""
        while True:
            self._wake.clear()
            await self._run_due()
            await wait_with_timeout(self._wake, _POLL_S)

    async def _run_due(self) -> None:
        done: set[Order] = set()
        # Asked anew before each: while one command ran, an operator may have paused, or released the next host.
        while orders := [order for order in self._orders() if order not in done]:
            done.add(orders[0])  # once, though its result could not be written
            await self._carry_out(orders[0])

    def _orders(self) -> list[Order]:
        return self._reconciler.drains.orders(Transaction(self._loop.state), self._loop.clock())

    async def _carry_out(self, order: Order) -> None:
        if self._lease_left_s() <= 0:
            return
        log.info("drain command started", command=order.arguments[0], op_id=order.drain)
        command = asyncio.create_task(run_command(order.arguments, self._reconciler.config.drain.timeout_s))
        message = await self._while_leading(command)
        if message is None:
            log.warning("drain command ended, this receiver leads no more", op_id=order.drain)
            return
        failpoints.reach("receiver.after_drain_command")

        def change(transaction: Transaction, now: float) -> None:
            self._reconciler.drains.on_result(transaction, order, message, now)

        with suppress(StoreError):  # the commit loop has logged it; it is run again
            await self._loop.submit(change)

    async def _while_leading(self, command: "asyncio.Task[str]") -> str | None:
        """What the command comes to; None once the lease is over: a receiver that leads no more must have no command
        under way, or two would order about the host."""
        try:
            # The lease is renewed while the command runs.
            while not command.done() and (left_s := self._lease_left_s()) > 0:
                await asyncio.wait([command], timeout=left_s if left_s < float("inf") else None)
            return command.result() if command.done() else None
        finally:
            if not command.done():
                command.cancel()
                await asyncio.wait([command])


async def run_command(arguments: tuple[str, ...], timeout_s: float) -> str:
    """ "" when it exits with 0 in time; else why not, with the end of its output. It is no shell, and gets no input.

    Whatever it has started in its process group is killed when the time is over or the caller is cancelled.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    )
    try:
        # Not cancelled half-way: asyncio would kill the program alone, and wait for ever for children that keep its
        # output open.
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(OSError, ValueError):
            await _end(await starting)
        raise
    except (OSError, ValueError) as error:
        return f"cannot run {arguments[0]}: {error}"[:_OUTPUT]
    output = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while process.stdout is not None and (piece := await process.stdout.read(4096)):
                output += piece
                del output[:-_OUTPUT]
            code = await process.wait()
    except TimeoutError:
        return f"no end after {timeout_s:g} s"
    finally:
        await _end(process)
    text = printable(output.decode("utf-8", "replace").strip())
    return "" if code == 0 else f"exit code {code}: {text}"[:_OUTPUT]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the process group and waits for its leader, not for what may have left the group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                await process.wait()
