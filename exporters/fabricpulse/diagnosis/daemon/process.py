"""The parent's end of the worker: starts it with the first report, again when it has died; has its last answer."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared, Frames, Report, frame

log = get_logger(__name__)

# Reports that wait for a worker that is busy: beyond it they are refused, and the exporters keep what they have.
_MOST_WAITING = 64 << 20
_AGAIN_S = 1.0
# Of the worker. It forks: no threads of a library then, and it needs one core at most. Columns of a large fleet come
# and go: what is freed goes back to the system at once; the C library's own limit rises to the size of the columns.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 18)}


class DiagnosisProcess:
    """One worker at a time. answer : its last. on_answer : called with each. starts : counts workers."""

    def __init__(self, declared: Declared, on_answer: Callable[[Answer], None]) -> None:
        self._declared = declared
        self._on_answer = on_answer
        self._wanted = asyncio.Event()
        self._process: Process | None = None
        self.answer = Answer()
        self.starts = 0

    @property
    def pid(self) -> int:
        """Of the worker; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def want(self) -> None:
        """There is somebody who reports: a worker is needed."""
        self._wanted.set()

    def put(self, report: Report) -> bool:
        """Hands a report over. False if it cannot be taken: there is no worker yet, or it has too much to do."""
        self.want()
        pipe = self._process.stdin if self._process is not None else None
        if pipe is None or pipe.is_closing() or pipe.transport.get_write_buffer_size() > _MOST_WAITING:
            return False
        pipe.write(frame(report))
        return True

    async def run(self) -> None:
        """Keeps a worker, from the first report on, until cancelled. A worker that dies costs what it knew."""
        await self._wanted.wait()
        while True:
            try:
                status = await self._served()
                log.error("the diagnosis has ended and is started again", status=status)
            except (OSError, msgspec.MsgspecError) as error:
                # Without memory or processes left the daemon has more important work to go on with.
                log.error("the diagnosis cannot be run, and is tried again", error=str(error))
            self._publish(Answer(suspects=None, failed=True))
            await asyncio.sleep(_AGAIN_S)

    async def _served(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", "fabricpulse.diagnosis.daemon.worker"),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, **ENVIRONMENT},
        )
        try:
            if process.stdin is None or process.stdout is None:
                raise OSError("the worker has no pipes")
            process.stdin.write(frame(self._declared))
            self._process = process
            self.starts += 1
            await self._read(process.stdout)
            return await process.wait()
        finally:
            self._process = None
            await _ended(process)

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        frames = Frames()
        decoder = msgspec.msgpack.Decoder(Answer)
        while data := await pipe.read(1 << 16):
            for body in frames.feed(data):
                self._publish(decoder.decode(body))

    def _publish(self, answer: Answer) -> None:
        self.answer = answer
        self._on_answer(answer)


async def _ended(process: Process) -> None:
    """Ends what still runs: it holds nothing that must be kept."""
    if process.returncode is None:
        process.kill()
        await process.wait()
