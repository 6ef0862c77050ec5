"""A GPU server's own view of its NICs through the trace: the real NIC exporter on a fake `/sys` in which faults come
and go, at the replay's time.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.fixtures.hostinfo.sys_tree import SysTree
from tests.fixtures.nic.daemon import Dcb, Ethtool, Rdma

from fabricpulse.hostinfo.netlink.ethtool import Statistics
from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.nic import exporter
from fabricpulse.nic.config import NicConfig
from fabricpulse.nic.exporter import NicExporter
from fabricpulse.nic.sections import ExpectedSection, GidSection

RAILS = 2
_NAMES = ("rx_discards_phy", "rx_crc_errors_phy", "rx_out_of_buffer", "outbound_pci_stalled_wr")
# What an error of the GID table may be: gone, elsewhere, or without the address, which leaves RoCE v1.
GID_ERRORS = ("no GID", "another index", "no address")


class _Ethtool(Ethtool):
    """A NIC without errors."""

    def statistics(self, netdev: str) -> Statistics:
        return Statistics(_NAMES, (0,) * len(_NAMES))


def netdev(rail: int) -> str:
    """The netdev of a rail's NIC, which is also its network."""
    return f"rail{rail}"


class Nics:
    """The `/sys` of a server with RAILS NICs of 400 Gb/s, of which any may have a fault. root : for it."""

    def __init__(self, root: Path) -> None:
        self._tree = SysTree(root)
        for rail in range(RAILS):
            self._tree.mlx5_roce(rail, gpu=False, netdev=netdev(rail))

    def breaks(self, rail: int, kind: str, nth: int) -> None:
        """A fault of the trace begins. nth : which of the GID_ERRORS it is."""
        device, tree = f"mlx5_{rail}", self._tree
        if kind == "link down":
            self._link(rail, up=False)
        elif kind == "low speed":
            tree.write(tree.port(device) / "rate", "100 Gb/sec (4X EDR)")
            tree.write(tree.net(netdev(rail)) / "speed", 100_000)
        elif kind == "PCIe width low":
            tree.write(self._pci(rail).resolve() / "current_link_width", 8)
        elif kind == "NIC lost":
            folder = self._pci(rail).resolve()
            for path in (f"class/infiniband/{device}", f"class/net/{netdev(rail)}"):
                (tree.root / path).unlink()
            self._pci(rail).unlink()
            shutil.rmtree(folder)
        elif kind == "GID error":
            error = GID_ERRORS[nth % len(GID_ERRORS)]
            if error == "no GID":
                tree.gids(device, {})
            elif error == "another index":
                tree.roce_gids(device, rail, netdev(rail), offset=2)
            else:
                local = f"fe80:0000:0000:0000:ba3f:d2ff:fe00:10{rail:02x}"
                kinds = {0: "IB/RoCE v1", 1: "RoCE v2"}
                tree.gids(device, {index: (local, name, netdev(rail)) for index, name in kinds.items()})

    def repaired(self, rail: int, kind: str) -> None:
        """It ends."""
        device, tree = f"mlx5_{rail}", self._tree
        if kind == "link down":
            self._link(rail, up=True)
        elif kind == "NIC lost":
            tree.mlx5_roce(rail, gpu=False, netdev=netdev(rail))
        elif kind == "low speed":
            tree.write(tree.port(device) / "rate", "400 Gb/sec (4X NDR)")
            tree.write(tree.net(netdev(rail)) / "speed", 400_000)
        elif kind == "PCIe width low":
            tree.write(self._pci(rail).resolve() / "current_link_width", 16)
        elif kind == "GID error":
            tree.roce_gids(device, rail, netdev(rail))

    def _pci(self, rail: int) -> Path:
        return self._tree.root / "bus/pci/devices" / f"0000:{0x10 + 0x10 * rail:02x}:00.0"

    def _link(self, rail: int, *, up: bool) -> None:
        tree, port, net = self._tree, self._tree.port(f"mlx5_{rail}"), self._tree.net(netdev(rail))
        tree.write(port / "state", "4: ACTIVE" if up else "1: DOWN")
        tree.write(port / "phys_state", "5: LinkUp" if up else "3: Disabled")
        tree.write(net / "carrier", int(up))
        tree.write(net / "operstate", "up" if up else "down")
        tree.write(net / "speed", 400_000 if up else -1)
        if not up:
            downs = net / "carrier_down_count"
            tree.write(downs, int(downs.read_text()) + 1)


class Server(Nics):
    """The same with an exporter."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        config = NicConfig(
            expected=ExpectedSection(ports=RAILS, rate_gbit_s=400),
            # As link and address events make it read the table anew.
            gid=GidSection(refresh_s=0),
            networks={f"mlx5_{rail}": netdev(rail) for rail in range(RAILS)},
        )
        self._exporter = NicExporter(config, HostSources(root, _Ethtool, Dcb, Rdma, Path("/dev/null")))

    def says(self, minute: int) -> dict[str, float]:
        """Series and values of its exporter at this minute of the replay, which must not run backwards."""
        with _at(60.0 * minute):
            body = self._exporter.collect_once().decode()
        found = {}
        for line in body.splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                found[series] = float(value)
        return found

    def close(self) -> None:
        """Ends its exporter."""
        self._exporter.close()


@contextmanager
def _at(seconds: float) -> Iterator[None]:
    """The clock by which an exporter knows what is recent."""

    class Clock:
        monotonic = staticmethod(lambda: seconds)
        time = staticmethod(time.time)

    with patch.object(exporter, "time", Clock):
        yield
