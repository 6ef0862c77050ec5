"""Bandwidth by RDMA WRITE between two NICs: both ends of one test. Linux, RoCE v2.

The writer connects a control connection and shows the key; both tell each other their end of a queue pair. Then the
writer keeps some writes under way, all into the same buffer of the other host, at the rate that was asked for. A write
counts when the other NIC has acknowledged it: the other host's processors take no part in it. Both ends do blocking
work with a deadline, in a thread each; `stop` ends either within a tenth of a second.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Protocol

import msgspec

from fabricpulse.audit.node.host_losses import host_counts, since
from fabricpulse.audit.node.queue_pair import BUFFER_BYTES, DEPTH, NoRdmaError, QueuePair
from fabricpulse.audit.node.rdma_wire import (
    QueuePairEnd,
    RdmaReceiveAnswer,
    RdmaReceiveRequest,
    RdmaResult,
    RdmaSendRequest,
)
from fabricpulse.audit.node.transfer import (
    PATIENCE_S,
    TICK_S,
    TransferError,
    accept,
    bound_socket,
    check,
    connect,
    has_gone,
    read_document,
    send_document,
)
from fabricpulse.audit.node.verbs_abi import RETRIES_EXCEEDED, STATUS_NAMES, SUCCESS
from fabricpulse.audit.node.wire import Hindered

# Of the time that does not count: an empty path takes the first writes at once.
_WARM_UP = 0.2
# One write is so much of the rate's time, within bounds: a thread of Python begins and reaps some 20,000 a second.
_WRITE_S, _LEAST_WRITE = 50e-6, 16 << 10
# Of the rate's time under way, at least two writes: more would wait in the queues of a slow path until they fail.
_UNDER_WAY_S, _LEAST_UNDER_WAY = 4e-3, 2
# Where no write has ended, before it is asked again: a quarter of the time that one has, within bounds.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 100e-6, 1e-3
# After the time is over: a write that is lost has failed by then.
_LAST_S = 5.0


class Writing(Protocol):
    """What a test does with its queue pair."""

    @property
    def own(self) -> QueuePairEnd:
        """What the other end needs."""

    def connect(self, peer: QueuePairEnd) -> None:
        """Raises NoRdmaError."""

    def write(self, size: int) -> None:
        """Begins a write. Raises OSError."""

    def completed(self) -> list[int]:
        """Statuses of those that have ended. Raises OSError."""

    def close(self) -> None:
        """Leaves nothing behind."""


MakePair = Callable[[str, str], Writing]


class RdmaListener:
    """Waits for one writer from the moment that it is made. Raises NoRdmaError, OSError, ValueError."""

    def __init__(self, request: RdmaReceiveRequest, make: MakePair = QueuePair) -> None:
        self._request = request
        self._key = os.urandom(16)
        self._stack = ExitStack()
        try:
            self._pair = self._stack.enter_context(closing(make(request.device, request.address)))
            self._listener = self._stack.enter_context(bound_socket(request.address, request.device, "tcp"))
            self._listener.listen(4)
        except BaseException:
            self._stack.close()
            raise

    @property
    def answer(self) -> RdmaReceiveAnswer:
        """Where to connect to."""
        return RdmaReceiveAnswer(self._listener.getsockname()[1], self._key.hex())

    def run(self, stop: threading.Event) -> None:
        """Lets the writer write until it says that it has ended, or has gone. Raises TransferError, NoRdmaError,
        OSError."""
        request = self._request
        with self._stack:
            deadline = time.monotonic() + PATIENCE_S
            control = accept(self._listener, self._key, request.peer, stop, deadline)
            # Closed before the queue pair: the writer hears of it before its writes fail.
            self._stack.enter_context(control)
            peer = read_document(control, QueuePairEnd, stop, PATIENCE_S)
            self._pair.connect(peer)
            before = host_counts(request.device)
            send_document(control, self._pair.own)
            _wait_for_end(control, stop, time.monotonic() + request.seconds + _LAST_S + PATIENCE_S)
            own = since(request.device, before)
            send_document(control, Hindered(own.starved_s, own.stolen_s))

    def close(self) -> None:
        """Of one that is not run."""
        self._stack.close()


def _wait_for_end(control: socket.socket, stop: threading.Event, deadline: float) -> None:
    """Until the writer says that it has ended."""
    control.settimeout(TICK_S)
    while True:
        check(stop, deadline)
        try:
            if not control.recv(1):
                raise TransferError("the sender has gone")
        except TimeoutError:
            continue
        return


def rdma_send(request: RdmaSendRequest, stop: threading.Event, make: MakePair = QueuePair) -> RdmaResult:
    """Makes the test; raises nothing: why it was not made, or not to its end, is in the result."""
    try:
        with ExitStack() as stack:
            # First: where there is no RDMA the receiver is free again at once.
            control = stack.enter_context(
                connect(request.address, request.device, request.peer, request.tcp_port, request.key)
            )
            try:
                pair = stack.enter_context(closing(make(request.device, request.address)))
            except NoRdmaError as error:
                return RdmaResult(error=str(error)[:256], unable=True)
            send_document(control, pair.own)
            pair.connect(read_document(control, QueuePairEnd, stop, PATIENCE_S))
            before = host_counts(request.device)
            begun = time.monotonic()
            result = _Writes(request, pair, control, stop).run()
            own = since(request.device, before)
            lasted_s = max(request.seconds, time.monotonic() - begun)
            # Who has stopped says so by closing it: what fails then is no fault of the path.
            control.setblocking(True)
            control.sendall(b".")
            peer = read_document(control, Hindered, stop, PATIENCE_S)
            return msgspec.structs.replace(
                result,
                starved=min(1.0, max(own.starved_s, peer.starved_s) / lasted_s),
                stolen=min(1.0, max(own.stolen_s, peer.stolen_s) / lasted_s),
            )
    except (TransferError, NoRdmaError, OSError, ValueError) as error:
        return RdmaResult(error=(str(error) or type(error).__name__)[:256])


def write_size(rate_bps: int) -> int:
    """Bytes of one write at this rate: whole pages."""
    wanted = int(rate_bps / 8 * _WRITE_S)
    return min(max(_LEAST_WRITE, wanted // 4096 * 4096), BUFFER_BYTES)


class _Writes:
    """The writes of one test."""

    def __init__(
        self, request: RdmaSendRequest, pair: Writing, control: socket.socket, stop: threading.Event
    ) -> None:
        self._pair = pair
        self._control = control
        self._stop = stop
        self._seconds = request.seconds
        self._bytes_per_s = request.rate_bps / 8
        self._size = write_size(request.rate_bps)
        under_way = int(self._bytes_per_s * _UNDER_WAY_S / self._size)
        self._most = min(max(_LEAST_UNDER_WAY, under_way), DEPTH)
        write_s = self._size / self._bytes_per_s
        self._pause_s = min(max(_LEAST_PAUSE_S, write_s / 4), _MOST_PAUSE_S)
        self._begun = self._ended = 0
        self._failed = False

    def run(self) -> RdmaResult:
        """Until the time is over, or a write has failed."""
        begin = paced_from = time.monotonic()
        warm, end = begin + _WARM_UP * self._seconds, begin + self._seconds
        first: tuple[float, int] | None = None
        looked = begin
        while (now := time.monotonic()) < end and not self._failed:
            if first is None and now >= warm:
                first = now, self._ended
            if now - looked >= TICK_S:
                looked = now
                self._poll(end + 1)
            due = (now - paced_from) * self._bytes_per_s / self._size + 1
            # What this host was too late for is not made up: the rest would exceed the rate, and look like a fast path.
            late = due - self._begun - self._most
            if late > 0:
                paced_from += late * self._size / self._bytes_per_s
            while self._begun < due and self._begun - self._ended < self._most:
                self._pair.write(self._size)
                self._begun += 1
            if not self._reap():
                time.sleep(self._pause_s)
        last = time.monotonic(), self._ended
        # A write that has not come through yet may be late, or lost for good: that is known soon.
        while self._ended == 0 and not self._failed and time.monotonic() < end + _LAST_S:
            self._poll(end + _LAST_S + 1)
            if not self._reap():
                time.sleep(TICK_S / 10)
        if self._failed:
            return RdmaResult(self._ended, failed=True)
        if self._ended == 0:
            raise TransferError(f"no write of {self._size} bytes has ended")
        # Where the thread had no processor for all of it nothing is known.
        if first is None or last[0] - first[0] < (1 - _WARM_UP) * self._seconds / 2:
            raise TransferError("this host was too busy to write")
        return RdmaResult(self._ended, (last[1] - first[1]) * self._size * 8 / (last[0] - first[0]))

    def _poll(self, deadline: float) -> None:
        check(self._stop, deadline)
        if has_gone(self._control):
            raise TransferError("the receiver has gone")

    def _reap(self) -> int:
        """Counts what has ended; how many. Raises TransferError where a host's own doing made one fail."""
        statuses = self._pair.completed()
        for status in statuses:
            if status == SUCCESS:
                self._ended += 1
            elif status == RETRIES_EXCEEDED:
                self._failed = True
                break
            else:
                raise TransferError(f"a write has failed: {STATUS_NAMES.get(status, f'status {status}')}")
        return len(statuses)
