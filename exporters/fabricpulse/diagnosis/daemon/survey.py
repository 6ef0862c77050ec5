"""The tree of the fabric, computed now and then beside the diagnosis: a forked process a computation.

The sums over a large fleet take tens of seconds; what is being diagnosed meanwhile must not wait. A fork has all that
was reported without a copy, and its memory is gone when it ends. It runs at low priority, and with pauses of nineteen
times as long as it takes: at most a twentieth of a core. Only where a tree would become older than its delays count,
the pauses are shorter.
"""

import gc
import os
import select
import signal
import time
from collections.abc import Callable

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.core.rfc3339 import rfc3339
from fabricpulse.diagnosis.tree.findings import NOTHING, AssignedPeers
from fabricpulse.diagnosis.tree.learner import TreeLearner
from fabricpulse.diagnosis.tree.surveyed import Surveyed, surveyed
from fabricpulse.diagnosis.wire.messages import EvidenceReport

log = get_logger(__name__)

_PAUSE = 19
# A computation that has not come to an end by then is ended by its own alarm, also when nobody waits for it any more.
_LONGEST_S = 300
_NICE = 10


class TreeSurvey:
    """Of one single-threaded process. learner : what is known. abandon : called in a fork, where it gives back what
    only the parent uses.
    """

    def __init__(self, learner: TreeLearner, abandon: Callable[[], None] = lambda: None) -> None:
        self._learner, self._abandon = learner, abandon
        self._slot_s, self._keep_s = learner.minima.slot_s, learner.minima.keep_s
        self._child = self._pipe = -1
        self._data = bytearray()
        self._found: Surveyed | None = None
        self._began_s = 0.0
        self._next_s: float | None = None

    def report(self, report: EvidenceReport, now_s: float) -> None:
        """Takes in what a checked report says of delays."""
        self._learner.report(report, now_s)

    def assigned(self, now_s: float) -> AssignedPeers | None:
        """As that of the learner."""
        return self._learner.assigned(now_s)

    @property
    def pipes(self) -> list[int]:
        """To be watched: `collect` has work when one is readable."""
        return [self._pipe] if self._pipe >= 0 else []

    def advance(self, now_s: float) -> Surveyed | None:
        """Begins a computation when it is time. Returns what one that has ended has found, once."""
        if self._next_s is None:
            self._next_s = now_s + self._slot_s
        if self._child < 0 and now_s >= self._next_s:
            self._begin(now_s)
        found, self._found = self._found, None
        return found

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._next_s = now_s + self._slot_s
        read_end, write_end = os.pipe()
        # A collection writes to every object, and so to pages that both have: it is to leave them alone in either.
        gc.freeze()
        try:
            child = os.fork()
        except OSError as error:
            gc.unfreeze()
            os.close(read_end)
            os.close(write_end)
            log.error("the tree of the fabric cannot be computed, and is tried again", error=str(error))
            return
        if child == 0:
            os._exit(self._compute(write_end, now_s))
        os.close(write_end)
        os.set_blocking(read_end, False)
        self._child, self._pipe, self._data = child, read_end, bytearray()

    def _compute(self, sink: int, now_s: float) -> int:
        """In the child; nothing of the parent's may be closed, flushed or raised."""
        try:
            signal.alarm(_LONGEST_S)
            os.nice(_NICE)
            self._abandon()
            _, document, findings = self._learner.compute(now_s, last=True)
            document["computed"] = rfc3339(time.time_ns(), 0)
            view = memoryview(msgspec.msgpack.encode(surveyed(document, now_s, findings)))
            while view:
                view = view[os.write(sink, view) :]
        except Exception:
            log.exception("the tree of the fabric cannot be computed")
            return 1
        return 0

    def collect(self, now_s: float) -> None:
        """Takes what has been computed so far."""
        if self._pipe < 0:
            return
        while select.select([self._pipe], [], [], 0)[0]:
            data = os.read(self._pipe, 1 << 20)
            if not data:
                self._ended(now_s)
                return
            self._data += data

    def _ended(self, now_s: float) -> None:
        os.close(self._pipe)
        _, status = os.waitpid(self._child, 0)
        gc.unfreeze()
        self._child = self._pipe = -1
        took_s = now_s - self._began_s
        pause_s = min((1 + _PAUSE) * took_s, self._keep_s / 2)
        self._next_s = self._began_s + max(self._slot_s, pause_s)
        if status == 0:
            found = msgspec.msgpack.decode(self._data, type=Surveyed)
            self._data = bytearray()  # megabytes
            self._learner.learned(found.findings, now_s)
            # They are for the learner alone.
            self._found = msgspec.structs.replace(found, findings=NOTHING)
        else:
            log.error("the tree of the fabric was not computed", status=status, seconds=round(took_s, 1))
