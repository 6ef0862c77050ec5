"""Which episodes began, ended or went: who follows them pays for what has changed, not for all that fire."""

from collections.abc import Collection

# Changes that are remembered; who asks for older ones looks at all episodes.
_MOST = 50_000


class EpisodeChanges:
    """Committed changes by the version that they led to, newest last; see State.episodes_version."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[str, ...]] = {}
        self._count = 0

    def __eq__(self, other: object) -> bool:
        """It follows from the episodes, and so makes no two states differ."""
        return isinstance(other, EpisodeChanges)

    __hash__ = None  # type: ignore[assignment]

    def note(self, version: int, fingerprints: Collection[str]) -> None:
        """The episodes of these fingerprints have changed, which led to `version`."""
        self._changed[version] = tuple(fingerprints)
        self._count += len(fingerprints) + 1
        while self._count > _MOST and len(self._changed) > 1:
            self._count -= len(self._changed.pop(next(iter(self._changed)))) + 1

    def since(self, version: int) -> dict[str, None] | None:
        """Fingerprints that changed after `version`, oldest first; None when it is forgotten, or was not committed."""
        later: list[tuple[str, ...]] = []
        for number in reversed(self._changed):
            if number == version:
                return dict.fromkeys(name for names in reversed(later) for name in names)
            later.append(self._changed[number])
        return None
