"""A stand-in for the ethtool of the kernel."""

import errno
from typing import Any

from fabricpulse.hostinfo.netlink.ethtool import Statistics


class FakeEthtool:
    """Statistics of one NIC under its driver's names; everything else is declined."""

    def __init__(self, values, fec=None, pause=None, pages=None) -> None:
        self.names = tuple(values)
        self.values = list(values.values())
        self.asked: list[str] = []
        self._fec, self._pause, self._pages = fec, pause, pages

    def _or_declined(self, value: Any) -> Any:
        if value is None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return value

    def statistics(self, netdev: str) -> Statistics:
        self.asked.append(netdev)
        return Statistics(self.names, self.values)

    def fec(self, netdev):
        return self._or_declined(self._fec)

    def pause(self, netdev):
        return self._or_declined(self._pause)

    def module(self, netdev, page, offset, length, address):
        data = self._or_declined(self._pages)[(page, address)]
        return data[offset % 128 : offset % 128 + length]

    def close(self):
        pass
