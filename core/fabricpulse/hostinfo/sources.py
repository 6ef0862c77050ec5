"""The sources of facts about a host: one value that a collector or an audit check takes.

Checks take a `HostSources` and nothing else of the machine, so that a folder that looks like `/sys` and stand-ins for
the kernel's interfaces take the place of hardware in a test, and a copied tree is audited as the host itself is.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.hostinfo.netlink.dcb import DcbSource, KernelDcb
from fabricpulse.hostinfo.netlink.ethtool import EthtoolSource, KernelEthtool
from fabricpulse.hostinfo.netlink.rdma import KernelRdma, RdmaSource


@dataclass(frozen=True)
class HostSources:
    """Interfaces of a host; None (or False) for one that is not there.

    sysfs : root of the tree. ethtool, dcb, rdma : each makes a source; every thread needs its own, because a device
    that hangs keeps the socket. kmsg : the kernel log. verbs : whether libibverbs may open
    devices. link_events : whether rtnetlink reports this host's links.
    """

    sysfs: Path = Path("/sys")
    ethtool: Callable[[], EthtoolSource] | None = None
    dcb: Callable[[], DcbSource] | None = None
    rdma: Callable[[], RdmaSource] | None = None
    kmsg: Path | None = None
    verbs: bool = False
    link_events: bool = True


def host_sources(sysfs: Path = Path("/sys")) -> HostSources:
    """The running kernel's, if `sysfs` is its own tree; of a copied tree that tree alone.

    The devices of a copied tree are not this kernel's, which must not be queried about them.
    """
    try:
        is_own = os.path.samefile(sysfs, "/sys")
    except OSError:
        is_own = False
    if not is_own:
        return HostSources(sysfs)
    return HostSources(sysfs, KernelEthtool, KernelDcb, KernelRdma, Path("/dev/kmsg"), verbs=True)
