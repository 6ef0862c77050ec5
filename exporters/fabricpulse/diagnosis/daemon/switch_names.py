"""Names of the switches that traces show only as addresses, by reverse look-up in DNS.

A resolver blocks its thread for seconds where nobody answers. The threads are daemons, so that no look-up under way
delays the end of the process; they are few, and each address is asked for once.
"""

import asyncio
import queue
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated

from msgspec import Meta

from fabricpulse.core.config import Section
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

_THREADS = 4
# Names are handed over when all that was asked for is answered, or after so many seconds.
_PAUSE_S, _LONGEST_PAUSES = 1.0, 30
# Of an address without a name; it may get one.
_AGAIN_S = 600.0
# Addresses that are remembered: reports may hold any. More go without a name.
_MOST = 100_000
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_GROUP = "switch"


class SwitchNaming(Section, frozen=True):
    """What switches are called that the topology file does not name.

    dns : look the addresses up that switches answer traces with (PTR records, or the hosts file); each once, and again
    every ten minutes where there is no name. pattern : regular expression, searched for in the name; its group "switch"
    is the switch. Without one the whole name is, and a switch whose interfaces have names of their own is several.
    """

    dns: bool = False
    pattern: Annotated[str, Meta(max_length=1024)] = ""

    def validate(self) -> None:
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from None
        if self.pattern and _GROUP not in groups:
            raise ValueError(f"pattern has no group (?P<{_GROUP}>...)")

    def switch_of(self, name: str) -> str:
        """The switch that a name in DNS is one of; "" where it is none, or is no name that a label may have."""
        switch = name.rstrip(".")
        if self.pattern:
            found = re.search(self.pattern, switch)
            switch = (found and found[_GROUP]) or ""
        return switch if _NAME.fullmatch(switch) else ""


def reverse_lookup(address: str) -> str:
    """The name of an address, "" for none, or where it is no address. Blocks."""
    try:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    except (OSError, ValueError):
        return ""


class SwitchNames:
    """Of one coordinator. found : names by address so far."""

    def __init__(
        self,
        naming: SwitchNaming,
        declared: Collection[str],
        put: Callable[[dict[str, str]], bool],
        lookup: Callable[[str], str] = reverse_lookup,
    ) -> None:
        """declared : addresses that have names already. put : hands names over; False if they cannot be taken now."""
        self._naming = naming
        self._put = put
        self._lookup = lookup
        self._declared = frozenset(declared)
        self._asked: dict[str, float] = {}  # address, and when it was asked for
        self._fresh: dict[str, str] = {}
        self._wanted = queue.SimpleQueue[str]()
        self._waiting = self._pauses = 0
        self.found: dict[str, str] = {}  # names stay
        self._inverse: dict[str, set[str]] = {}
        self._inverse_of = 0

    def saw(self, addresses: Iterable[str], now_s: float) -> None:
        """Asks for those that are new. now_s : monotonic."""
        if not self._naming.dns:
            return
        for address in addresses:
            if not address or address in self.found or address in self._declared:
                continue
            asked_s = self._asked.get(address)
            if asked_s is None and len(self._asked) + len(self.found) >= _MOST:
                continue
            if asked_s is not None and now_s - asked_s < _AGAIN_S:
                continue
            self._asked[address] = now_s
            self._waiting += 1
            self._wanted.put(address)

    def addresses(self) -> Mapping[str, set[str]]:
        """Of each name that was found."""
        if self._inverse_of != len(self.found):
            self._inverse, self._inverse_of = {}, len(self.found)
            for address, name in self.found.items():
                self._inverse.setdefault(name, set()).add(address)
        return self._inverse

    def worker_is_new(self) -> None:
        """It has no names yet."""
        self._fresh.update(self.found)

    async def run(self) -> None:
        """Looks up until cancelled."""
        loop = asyncio.get_running_loop()
        for _ in range(_THREADS if self._naming.dns else 0):
            threading.Thread(target=self._serve, args=(loop,), daemon=True, name="switch names").start()
        while True:
            await asyncio.sleep(_PAUSE_S)
            self.deliver()

    def deliver(self) -> None:
        """Hands over what was found; all of a burst at once, as each time every path is read again. To be called once a
        second.
        """
        self._pauses = self._pauses + 1 if self._fresh else 0
        if not self._fresh or (self._waiting and self._pauses < _LONGEST_PAUSES):
            return
        if self._put(self._fresh):
            log.info("switches named", addresses=len(self._fresh), switches=len({*self.found.values()}))
            self._fresh = {}

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            address = self._wanted.get()
            name = self._lookup(address)
            try:
                loop.call_soon_threadsafe(self.take, address, name)
            except RuntimeError:
                return  # the loop is closed

    def take(self, address: str, name: str) -> None:
        """The answer of one look-up."""
        self._waiting -= 1
        if switch := self._naming.switch_of(name):
            self.found[address] = self._fresh[address] = switch
            self._asked.pop(address, None)
