"""A number for each name of a host, NIC or switch: hosts tell millions of names, most of them again and again. Pure."""

from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fabricpulse.diagnosis.flows.components import Nodes

# Beside names that are in use others are kept that nobody tells any more, until they are more than the used ones.
_SPARE = 10_000


class Names:
    """Names are numbered as they come. A number stays until `compact`."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._host = array("i")
        self._used = 0  # after the last compaction

    def __len__(self) -> int:
        return len(self._number)

    def of(self, name: str) -> int:
        """Of a host or switch."""
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self._host)
            self._host.append(-1)
        return number

    def nic(self, host: str, device: str) -> int:
        """Of a NIC."""
        name = f"{host}/{device}"
        number = self._number.get(name)
        if number is None or self._host[number] < 0:
            owner = self.of(host)
            number = self.of(name)
            self._host[number] = owner
        return number

    def find(self, name: str) -> int:
        """The number of a name that is there already, else -1."""
        return self._number.get(name, -1)

    def host_of(self) -> Nodes:
        """By number the host of a NIC, -1 for what is none."""
        return np.array(self._host, np.int32)

    def texts(self) -> tuple[str, ...]:
        """By number."""
        return tuple(self._number)

    def rename(self, names: Mapping[str, str]) -> Nodes:
        """Other names for some switches; several that get one name are one. Returns new numbers by old ones."""
        number: dict[str, int] = {}
        moved = [number.setdefault(names.get(text, text), len(number)) for text in self._number]
        self._number = number
        self._host = array("i", [-1] * len(number))
        return np.array(moved, np.int32)

    @property
    def overdue(self) -> bool:
        """Whether so many have come since the last compaction that it is worth another one."""
        return len(self) > 2 * self._used + _SPARE

    def compact(self, used: NDArray[np.bool_]) -> Nodes:
        """Forgets names that are not used. used : by number. Returns new numbers by old ones, -1 for what is gone."""
        host = self.host_of()
        used = used.copy()
        used[host[used & (host >= 0)]] = True
        # One more at the end, for what has no host.
        moved = np.full(len(used) + 1, -1, np.int32)
        moved[:-1][used] = np.arange(np.count_nonzero(used), dtype=np.int32)
        kept = np.flatnonzero(used).tolist()
        texts = self.texts()
        self._number = {texts[old]: new for new, old in enumerate(kept)}
        self._host = array("i", moved[host[kept]].tolist())
        self._used = len(kept)
        return moved[:-1]
