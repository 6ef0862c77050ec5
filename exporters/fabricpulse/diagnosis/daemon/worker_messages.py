"""What the daemon and the worker that diagnoses say to each other. Frames: four bytes of length (big endian), then
msgpack.

Apart from the worker, so that the daemon does not load what only the worker computes with.
"""

from collections.abc import Iterator

import msgspec

from fabricpulse.diagnosis.leaf_paths.found import LeafPaths
from fabricpulse.diagnosis.search.suspect import Suspect
from fabricpulse.diagnosis.tree.findings import AssignedPeers
from fabricpulse.diagnosis.tree.surveyed import Surveyed
from fabricpulse.diagnosis.wire.messages import EvidenceReport

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
    """Each further frame. at_s : monotonic, when it came. names : of switches by address, for all that is known."""

    at_s: float
    report: EvidenceReport | None
    names: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True):
    """What a round has found. hosts, flows, paths, reports : as in FleetEvidence. took_s : of the round. surveyed : the
    fabric's tree, once each time that it has been computed. assigned : temporary peers, once each time that they
    change. leaf_paths : leaves with fewer live paths than their siblings. suspects : None if nothing is
    known of them, as their part of the round has failed or the worker has died. failed : some part has failed.
    """

    hosts: int = 0
    flows: int = 0
    paths: int = 0
    reports: int = 0
    took_s: float = 0.0
    suspects: tuple[Suspect, ...] | None = ()
    surveyed: Surveyed | None = None
    assigned: AssignedPeers | None = None
    leaf_paths: LeafPaths = LeafPaths()
    failed: bool = False


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
