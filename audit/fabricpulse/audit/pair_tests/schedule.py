"""Which tests of pairs may begin now: a NIC is in one at a time, and none waits for the end of a round. Pure.

Theory of operation. Tests come in the order of their rounds. A NIC that is free takes the first of its own tests whose
other end is free, too. With tests that take equally long these are the rounds; one that takes longer, because an
agent is slow or gone, holds back its own two NICs and no others. Each NIC looks through its own tests alone, so that a
step costs what a NIC has left to do.
"""

from collections import defaultdict, deque
from collections.abc import Iterable

from fabricpulse.audit.pair_tests.blame import Nic

Ends = tuple[Nic, Nic]


class PairSchedule:
    """The tests of one stage. most : under way at a time."""

    def __init__(self, ways: Iterable[Ends], most: int) -> None:
        self._most = most
        self._left = dict.fromkeys(ways)
        self._queues: dict[Nic, list[Ends]] = defaultdict(list)
        for way in self._left:
            for nic in dict.fromkeys(way):
                self._queues[nic].append(way)
        self._under_way: set[Ends] = set()
        self._busy: set[Nic] = set()
        # NICs that have become free and have not looked yet: a test that has become possible is one of theirs.
        self._free = deque(self._queues)

    def begin(self) -> list[Ends]:
        """Those that are to begin now, in order; each is under way until `end` is called."""
        found = []
        while self._free and len(self._under_way) < self._most:
            nic = self._free.popleft()
            if nic in self._busy:
                continue
            queue = self._queues[nic] = [way for way in self._queues[nic] if way in self._left]
            way = next((way for way in queue if not self._busy & set(way)), None)
            if way is not None:
                del self._left[way]
                self._busy.update(way)
                self._under_way.add(way)
                found.append(way)
        return found

    def end(self, way: Ends) -> None:
        """This one is over: its NICs are free."""
        self._under_way.discard(way)
        self._busy.difference_update(way)
        self._free.extend(way)

    @property
    def left(self) -> list[Ends]:
        """Those that have not begun, in order."""
        return list(self._left)
