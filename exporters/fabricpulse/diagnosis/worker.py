"""The diagnosis in a process of its own: `python -m fabricpulse.diagnosis.worker`, reports in, suspects out.

The sums over a large fleet take seconds and hold the interpreter's lock; the daemon that takes the reports keeps the
fleet's time in its event loop. Frames: four bytes of length (big endian), then msgpack. It ends with its
input.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator

import msgspec

from fabricpulse.core.log import get_logger
from fabricpulse.diagnosis.fleet_evidence import FleetEvidence
from fabricpulse.diagnosis.messages import EvidenceReport
from fabricpulse.diagnosis.survey import Survey
from fabricpulse.diagnosis.surveyed import Surveyed
from fabricpulse.diagnosis.suspect import Suspect
from fabricpulse.diagnosis.tree.minima import TwoWayMinima

log = get_logger(__name__)

_ROUND_S = 0.4
_LENGTH = 4


class Declared(msgspec.Struct, frozen=True):
    """The first frame: what is declared of the fabric, as in FleetEvidence. keep_s, share_machines : as in
    TwoWayMinima.
    """

    leaf_of: dict[str, str]
    switch_of: dict[str, str]
    keep_s: float = 600.0
    share_machines: bool = True


class Report(msgspec.Struct, frozen=True, array_like=True):
    """Each further frame. at_s : monotonic, when it came."""

    at_s: float
    report: EvidenceReport


class Answer(msgspec.Struct, frozen=True):
    """What a round has found. hosts, flows, paths, reports : as in FleetEvidence. took_s : of the round. surveyed : the
    fabric's tree, once each time that it has been computed.
    """

    hosts: int = 0
    flows: int = 0
    paths: int = 0
    reports: int = 0
    took_s: float = 0.0
    suspects: tuple[Suspect, ...] = ()
    surveyed: Surveyed | None = None


def frame(message: msgspec.Struct) -> bytes:
    """A message as it goes through a pipe."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class Frames:
    """Cuts a stream into the bodies of its frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds bytes; gives what is whole now."""
        self._data += data
        at = 0
        while len(self._data) >= at + _LENGTH:
            end = at + _LENGTH + int.from_bytes(self._data[at : at + _LENGTH], "big")
            if len(self._data) < end:
                break
            yield bytes(self._data[at + _LENGTH : end])
            at = end
        del self._data[:at]


def serve(source: int, sink: int) -> None:
    """Takes reports from one descriptor and writes an Answer a second to the other, until the first ends."""
    frames = Frames()
    evidence: FleetEvidence | None = None
    decoder = msgspec.msgpack.Decoder(Report)
    survey: Survey | None = None
    next_s = time.monotonic() + _ROUND_S
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
                    survey = Survey(TwoWayMinima(declared.keep_s, declared.share_machines), declared.leaf_of)
                    continue
                message = decoder.decode(body)
                evidence.report(message.report, message.at_s)
                if survey is not None:
                    survey.report(message.report, message.at_s)
        now_s = time.monotonic()
        if evidence is None or now_s < next_s:
            continue
        found: tuple[Suspect, ...] = ()
        try:
            found = evidence.suspects(now_s)
        except Exception:
            # What nobody foresaw in one round must not end those that follow.
            log.exception("diagnosis failed")
        took_s = time.monotonic() - now_s
        # Less often where a round takes long: reports are taken in between.
        next_s = time.monotonic() + max(_ROUND_S, 4 * took_s)
        answer = Answer(evidence.hosts, evidence.flows, evidence.paths, evidence.reports, took_s, found)
        if survey is not None:
            answer = msgspec.structs.replace(answer, surveyed=survey.advance(time.monotonic()))
        _write(sink, frame(answer))


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
