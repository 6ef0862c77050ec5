"""Which paths of queue pairs the coordinator has of this host, and which go with the next report. Pure."""

from collections.abc import Iterable, Mapping
from itertools import chain, islice

from msgspec.structs import replace

from fabricpulse.diagnosis.wire.queue_pairs import QueuePairPath

_MOST_PATHS = 500  # of one report
# One that the coordinator had no room for is sent again after so long.
RETRY_S = 60.0
PathKey = tuple[str, str, str, int]


class ReportedPaths:
    """Of one coordinator. Moments are monotonic seconds."""

    def __init__(self) -> None:
        self._sent: dict[PathKey, QueuePairPath] = {}
        self._refused: dict[
            PathKey, float
        ] = {}  # since when; they are in _sent, too, until they are due again

    def clear(self) -> None:
        """The coordinator has none: all go again."""
        self._sent, self._refused = {}, {}

    def due(self, known: Mapping[PathKey, QueuePairPath], now_s: float) -> tuple[QueuePairPath, ...]:
        """The paths in a report: those that differ from what was reported, some hundred at a time. Of those that are no
        more a path without any queue pair is reported.
        """
        for key in [key for key, since_s in self._refused.items() if now_s - since_s >= RETRY_S]:
            del self._refused[key]
            self._sent.pop(key, None)
        gone = (replace(path, numbers=()) for key, path in self._sent.items() if key not in known)
        changed = (path for key, path in known.items() if self._sent.get(key) != path)
        return tuple(islice(chain(gone, changed), _MOST_PATHS))

    def taken(self, paths: tuple[QueuePairPath, ...], refused: Iterable[int], now_s: float) -> None:
        """A report with these was taken. refused : which of them, counted from 0, the coordinator does not keep."""
        for path in paths:
            self._refused.pop(path.key, None)
            if path.numbers:
                self._sent[path.key] = path
            else:
                self._sent.pop(path.key, None)
        for number in refused:
            if 0 <= number < len(paths) and paths[number].numbers:
                self._refused[paths[number].key] = now_s
