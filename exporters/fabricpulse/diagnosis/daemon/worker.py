"""The diagnosis in a process of its own: `python -m fabricpulse.diagnosis.daemon.worker`, reports in, suspects out.

The sums over a large fleet take seconds and hold the interpreter's lock; the daemon that takes the reports keeps the
fleet's time in its event loop. It ends with its input.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.diagnosis.daemon.survey import TreeSurvey
from fabricpulse.diagnosis.daemon.worker_messages import Answer, Declared, Frames, Report, frame
from fabricpulse.diagnosis.evidence.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.leaf_paths.found import LeafPaths
from fabricpulse.diagnosis.tree.learner import TreeLearner

log = get_logger(__name__)
Found = TypeVar("Found")

_ROUND_S = 0.4
_AT_ONCE_S = 0.01


class EvidenceClock:
    """What the moment is for the diagnosis. A worker that has no processor for a while takes reports late: what has not
    been taken yet was not sent seconds ago by a fleet that has fallen silent since. Pure.
    """

    def __init__(self) -> None:
        self._now_s = -math.inf

    def now_s(self, real_s: float, last_report_s: float, behind: bool) -> float:
        """behind : there are reports that have not been taken. last_report_s : when that came which was taken last."""
        self._now_s = max(self._now_s, last_report_s if behind else real_s)
        return self._now_s


class Moments:
    """Reports that come within a hundredth of a second have one moment, and one object: those of thousands of hosts,
    replaced one by one, lie on pages that the fork of the survey has, too, and each page would be copied. last_s : the
    latest one.
    """

    def __init__(self) -> None:
        self._at_s = self.last_s = -math.inf

    def of(self, at_s: float) -> float:
        """The moment of a report that came at this one."""
        if not 0 <= at_s - self._at_s < _AT_ONCE_S:
            self._at_s = at_s
        self.last_s = max(self.last_s, self._at_s)
        return self._at_s


def serve(source: int, sink: int) -> None:
    """Takes reports from one descriptor and writes an Answer a second to the other, until the first ends."""
    frames = Frames()
    evidence: FleetEvidence | None = None
    decoder = msgspec.msgpack.Decoder(Report)
    survey: TreeSurvey | None = None
    next_s = time.monotonic() + _ROUND_S
    moments, clock = Moments(), EvidenceClock()
    while True:
        pipes = survey.pipes if survey is not None else []
        ready = select.select([source, *pipes], [], [], max(next_s - time.monotonic(), 0.0))[0]
        if survey is not None and len(ready) > (source in ready):
            survey.collect(time.monotonic())
        if source in ready:
            data = os.read(source, 1 << 20)
            if not data:
                return
            for body in frames.feed(data):
                if evidence is None:
                    declared = msgspec.msgpack.decode(body, type=Declared)
                    evidence = FleetEvidence(declared.leaf_of, declared.switch_of)
                    survey = TreeSurvey(
                        TreeLearner(declared.keep_s, declared.leaf_of, declared.share_machines),
                        evidence.abandon,
                    )
                    continue
                message = decoder.decode(body)
                if message.names:
                    evidence.name_switches(message.names)
                if message.report is None:
                    continue
                at_s = moments.of(message.at_s)
                evidence.report(message.report, at_s)
                if survey is not None:
                    survey.report(message.report, at_s)
        now_s = time.monotonic()
        if evidence is None or now_s < next_s:
            continue
        spent_s = time.thread_time()
        evidence_s = clock.now_s(now_s, moments.last_s, _has_data(source))
        suspects = tried(evidence.suspects, evidence_s)
        leaf_paths = tried(evidence.leaf_paths, evidence_s)
        took_s = time.monotonic() - now_s
        # Less often where a round takes much: reports are taken in between. What it takes of a core counts, or on a
        # busy machine rounds would come ever later.
        next_s = time.monotonic() + max(_ROUND_S, 4 * (time.thread_time() - spent_s))
        answer = Answer(
            *(evidence.hosts, evidence.flows, evidence.paths, evidence.reports, took_s, suspects),
            leaf_paths=leaf_paths or LeafPaths(),
            failed=suspects is None or leaf_paths is None,
        )
        if survey is not None:
            answer = msgspec.structs.replace(
                answer, surveyed=survey.advance(time.monotonic()), assigned=survey.assigned(time.monotonic())
            )
        _write(sink, frame(answer))


def tried(part: Callable[[float], Found], now_s: float) -> Found | None:
    """What a part of a round finds; None where it fails. What nobody foresaw must not end the rounds that follow, nor
    the other part.
    """
    try:
        return part(now_s)
    except Exception:
        log.exception("diagnosis failed", part=getattr(part, "__name__", ""))
        return None


def _has_data(source: int) -> bool:
    return bool(select.select([source], [], [], 0)[0])


def _write(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def main() -> None:
    """Serves the parent."""
    # A terminal's interrupt goes to all; the parent decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(sys.stdin.fileno(), sys.stdout.fileno())
    except BrokenPipeError:
        return  # the parent is gone


if __name__ == "__main__":
    main()
