"""Which targets a host has: a host asks every half minute, and a fleet has fifty thousand NICs that may fire."""

from collections.abc import Collection, Iterable


class TargetsOfHost:
    """Host -> keys of its targets; made at the first query, kept from then on by `follow`."""

    def __init__(self) -> None:
        self._keys: dict[str, set[str]] | None = None

    def __eq__(self, other: object) -> bool:
        """It follows from the targets, and so makes no two states differ."""
        return isinstance(other, TargetsOfHost)

    __hash__ = None  # type: ignore[assignment]

    def of(self, targets: Iterable[str], host: str) -> Collection[str]:
        """Keys of one host. targets : keys of all of them."""
        if self._keys is None:
            self._keys = {}
            for key in targets:
                self._add(self._keys, key)
        return self._keys.get(host, ())

    def follow(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Takes over a change of the targets."""
        if self._keys is None:
            return
        for key in added:
            self._add(self._keys, key)
        for key in removed:
            host = key.partition("/")[0]
            keys = self._keys.get(host)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[host]

    @staticmethod
    def _add(keys: dict[str, set[str]], key: str) -> None:
        keys.setdefault(key.partition("/")[0], set()).add(key)
