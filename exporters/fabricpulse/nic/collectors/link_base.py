"""Collectors that ask the driver of each netdev by ethtool: what is kept of a netdev, and when it is left alone."""

import errno
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

from fabricpulse.hostinfo.inventory import Netdev
from fabricpulse.hostinfo.netlink.ethtool import EthtoolSource
from fabricpulse.nic.collectors.base import Collector, Context, Environment

# What drivers answer that have no such values, or a link that has just gone.
DECLINED = {
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.ENODEV,
    errno.ENXIO,
    errno.ENOSYS,
    errno.ENODATA,
    errno.ENOTTY,
}
# How long a netdev that has declined is left alone, seconds. Judgement: capabilities change with a driver reload.
DECLINED_PAUSE_S = 300.0


class Link(Protocol):
    """What a collector keeps of a netdev."""

    netdev: Netdev


LinkT = TypeVar("LinkT", bound=Link)


class LinkCollector(Collector, Generic[LinkT]):
    """One target a netdev. What is kept of one is dropped when it changes. source : the kernel, or a stand-in."""

    @classmethod
    def make(cls, environment: Environment) -> Self | None:
        ethtool = environment.sources.ethtool
        return cls(ethtool()) if ethtool is not None else None

    def __init__(self, source: EthtoolSource) -> None:
        self._source = source
        self._links: dict[str, LinkT] = {}

    @abstractmethod
    def new_link(self, netdev: Netdev) -> LinkT | None:
        """What is kept of a netdev from now on; None for one that is not collected."""

    def targets(self, context: Context) -> Sequence[str]:
        links = {}
        for netdev in context.inventory.netdevs:
            known = self._links.get(netdev.name)
            link = known if known is not None and known.netdev == netdev else self.new_link(netdev)
            if link is not None:
                links[netdev.name] = link
        self._links = links
        return list(links)

    def close(self) -> None:
        self._source.close()
