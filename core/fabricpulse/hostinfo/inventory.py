"""What NICs this host has: RDMA devices, their ports and netdevs, and the netdevs without RDMA.

Everything that does not change while a device exists is read once and cached until the device's directory changes.
"""

import os
import re
import stat
from dataclasses import dataclass, field

from fabricpulse.core.errors import is_exhausted
from fabricpulse.hostinfo.device_filter import DeviceFilter
from fabricpulse.hostinfo.rdma_drivers import family
from fabricpulse.hostinfo.sysfs import ReadErrors, clean_text, numbers, read_once, reason_of, text_names

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class RdmaDevice:
    """An RDMA device. path : its directory. ports : numbers, ascending. netdevs : (port, netdev) as GID tables say."""

    name: str
    path: str
    ports: tuple[int, ...]
    netdevs: tuple[tuple[int, str], ...]
    pci_address: str
    pci_path: str
    driver: str
    family: str
    firmware: str
    board: str
    hca: str
    node_guid: str
    node_type: str

    def netdev(self, port: int) -> str:
        """The netdev of a port, empty if none is known."""
        return next((netdev for number, netdev in self.netdevs if number == port), "")

    @property
    def labels(self) -> tuple[str, str]:
        """(device, rdma_device): the first netdev of its ports, or its own name where there is none; its own name."""
        return (self.netdevs[0][1] if self.netdevs else self.name, self.name)

    def port_labels(self, port: int) -> tuple[str, str, str]:
        """(device, rdma_device, port), device being the port's own netdev where there is one."""
        return (self.netdev(port) or self.name, self.name, str(port))


@dataclass(frozen=True)
class Netdev:
    """A link.

    rdma_device, port : the RDMA port that it belongs to, itself or as the slave of a bond; empty without RDMA. master :
    bond, or empty.
    """

    name: str
    path: str
    rdma_device: str
    port: str
    ifindex: int
    pci_address: str
    pci_path: str
    master: str
    is_bond: bool
    driver: str

    @property
    def labels(self) -> tuple[str]:
        """(device,)."""
        return (self.name,)

    @property
    def port_labels(self) -> tuple[str, str, str]:
        """(device, rdma_device, port)."""
        return (self.name, self.rdma_device, self.port)


@dataclass(frozen=True)
class Inventory:
    """The NICs of this host at one moment, each list in order of name.

    unwanted_pci : PCI functions of NICs that the filter leaves out; no file of theirs is opened. unreadable_rdma : RDMA
    devices that are listed and cannot be read at all.
    """

    rdma: tuple[RdmaDevice, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    unwanted_pci: frozenset[str] = frozenset()
    unreadable_rdma: frozenset[str] = frozenset()

    def netdev(self, name: str) -> Netdev | None:
        return next((netdev for netdev in self.netdevs if netdev.name == name), None)

    def rdma_device(self, name: str) -> RdmaDevice | None:
        return next((device for device in self.rdma if device.name == name), None)


@dataclass
class _CachedDevice:
    identity: tuple[object, ...]
    device: RdmaDevice


@dataclass
class Scanner:
    """Finds the NICs under `sysfs`. `scan` is cheap when nothing has changed."""

    sysfs: str
    wanted: DeviceFilter
    _rdma: dict[str, _CachedDevice] = field(default_factory=dict)
    _netdevs: dict[str, tuple[tuple[object, ...], Netdev]] = field(default_factory=dict)
    _last: Inventory = field(default_factory=Inventory)

    def scan(self, errors: ReadErrors) -> Inventory:
        """The NICs now. A device that cannot be read is left out and counted in `errors`, as is a class that may not be
        listed. Those of the last time where no descriptor is left: NICs are not gone for that.
        """
        rdma_dir, net_dir = f"{self.sysfs}/class/infiniband", f"{self.sysfs}/class/net"
        excluded_pci: set[str] = set()
        unwanted_pci: set[str] = set()
        unreadable: set[str] = set()
        rdma: list[RdmaDevice] = []
        names: dict[str, list[str]] = {}
        for folder in (rdma_dir, net_dir):
            try:
                names[folder] = _listed(folder)
            except OSError as error:
                errors.add("", folder, reason_of(error))
                if is_exhausted(error):
                    return self._last
        for name in names.get(rdma_dir, ()):
            path = f"{rdma_dir}/{name}"
            address = _pci_of_link(path)
            # A filter may name the netdev in place of the RDMA device. Listing a directory opens nothing of the device.
            siblings = (
                _list(f"{self.sysfs}/bus/pci/devices/{address}/net") if address and self.wanted.is_set else []
            )
            if not self.wanted.allows(name, *siblings):
                unwanted_pci.add(address)
                if address and not self.wanted.include:
                    excluded_pci.add(address)
                continue
            device = self._rdma_device(name, path, address, errors)
            if device is not None:
                rdma.append(device)
            elif errors.now[name]:
                unreadable.add(name)
        for removed in self._rdma.keys() - {device.name for device in rdma}:
            del self._rdma[removed]
        netdevs = self._scan_netdevs(
            net_dir, names.get(net_dir, []), tuple(rdma), excluded_pci, unwanted_pci, errors
        )
        wanted_pci = {device.pci_address for device in rdma} | {netdev.pci_address for netdev in netdevs}
        found = Inventory(
            tuple(rdma), netdevs, frozenset(unwanted_pci - wanted_pci - {""}), frozenset(unreadable)
        )
        if found != self._last:
            self._last = found
        return self._last

    def _rdma_device(self, name: str, path: str, address: str, errors: ReadErrors) -> RdmaDevice | None:
        try:
            status = os.stat(path)
            ports_status = os.stat(f"{path}/ports")
        except FileNotFoundError:
            if os.path.lexists(path):
                errors.add(name, path, "no_ports")
            return None
        except OSError as error:
            errors.add(name, path, reason_of(error))
            return None
        identity = (status.st_ino, status.st_mtime_ns, ports_status.st_ino, ports_status.st_mtime_ns, address)
        cached = self._rdma.get(name)
        if cached is not None and cached.identity == identity:
            return cached.device
        before = errors.now[name]
        device = self._read_rdma(name, path, address, errors)
        if errors.now[name] == before:
            self._rdma[name] = _CachedDevice(identity, device)
        return device

    def _read_rdma(self, name: str, path: str, address: str, errors: ReadErrors) -> RdmaDevice:
        def text(file: str) -> str:
            return clean_text(read_once(f"{path}/{file}", name, errors) or b"")

        ports = tuple(numbers(_list(f"{path}/ports")))
        pci_path = f"{self.sysfs}/bus/pci/devices/{address}" if address else ""
        module = _basename_of_link(f"{pci_path}/driver") if pci_path else ""
        parent = text("parent")
        netdevs = [(port, _gid_netdev(path, port, name) or parent) for port in ports]
        if not any(netdev for _, netdev in netdevs) and pci_path:
            siblings = _list(f"{pci_path}/net")
            netdevs = [(port, _by_dev_port(pci_path, siblings, port, name)) for port in ports]
        return RdmaDevice(
            name=name,
            path=path,
            ports=ports,
            netdevs=tuple((port, netdev) for port, netdev in netdevs if netdev),
            pci_address=address,
            pci_path=pci_path,
            driver=module,
            family=family(name, module, has_parent=bool(parent)),
            firmware=text("fw_ver"),
            board=text("board_id"),
            hca=text("hca_type"),
            node_guid=text("node_guid"),
            node_type=text("node_type").partition(": ")[2],
        )

    def _scan_netdevs(
        self,
        net_dir: str,
        names: list[str],
        rdma: tuple[RdmaDevice, ...],
        excluded_pci: set[str],
        unwanted_pci: set[str],
        errors: ReadErrors,
    ) -> tuple[Netdev, ...]:
        """As `scan`. unwanted_pci : grows by the functions of netdevs that the filter leaves out."""
        by_pci = {device.pci_address: device for device in rdma if device.pci_address}
        by_netdev = {netdev: (device, port) for device in rdma for port, netdev in device.netdevs}
        found: list[Netdev] = []
        for name in names:
            path = f"{net_dir}/{name}"
            try:
                target = os.readlink(path)
            except OSError:
                # bonding_masters is a plain file here; a fixture may hold plain directories.
                target = ""
            addresses = _PCI.findall(target)
            address = addresses[-1] if addresses else ""
            if address in excluded_pci:
                continue
            device = by_netdev.get(name) or ((by_pci[address], 0) if address in by_pci else None)
            if not self.wanted.allows_netdev(name, device[0].name if device else ""):
                unwanted_pci.add(address)
                continue
            netdev = self._netdev(name, path, address, device, by_netdev, errors)
            if netdev is not None:
                found.append(netdev)
        for removed in self._netdevs.keys() - {netdev.name for netdev in found}:
            del self._netdevs[removed]
        return tuple(found)

    def _netdev(
        self,
        name: str,
        path: str,
        address: str,
        rdma: tuple[RdmaDevice, int] | None,
        by_netdev: dict[str, tuple[RdmaDevice, int]],
        errors: ReadErrors,
    ) -> Netdev | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            errors.add(name, path, reason_of(error))
            return None
        if not stat.S_ISDIR(status.st_mode):
            # bonding_masters.
            return None
        if not os.path.isdir(f"{path}/statistics"):
            # Every netdev of the kernel has one: a masked or damaged tree. What there is is exported all the same.
            errors.add(name, f"{path}/statistics", "no_statistics")
        master = _basename_of_link(f"{path}/master")
        owner = rdma or by_netdev.get(master)
        identity = (
            status.st_ino,
            status.st_mtime_ns,
            master,
            owner[0].name if owner else "",
            owner[1] if owner else 0,
        )
        cached = self._netdevs.get(name)
        if cached is not None and cached[0] == identity:
            return cached[1]
        ifindex = read_once(f"{path}/ifindex", name, errors) or b""
        port = ""
        if owner is not None:
            port = str(owner[1] or _dev_port(path, name, errors) + 1)
            if owner[1] == 0 and int(port) not in owner[0].ports:
                port = str(owner[0].ports[0]) if owner[0].ports else ""
        pci_path = f"{self.sysfs}/bus/pci/devices/{address}" if address else ""
        netdev = Netdev(
            name=name,
            path=path,
            rdma_device=owner[0].name if owner else "",
            port=port,
            ifindex=int(ifindex) if ifindex.isdigit() else 0,
            pci_address=address,
            pci_path=pci_path,
            master=master,
            is_bond=os.path.isdir(f"{path}/bonding"),
            driver=_basename_of_link(f"{pci_path}/driver") if pci_path else "",
        )
        self._netdevs[name] = (identity, netdev)
        return netdev


def _list(path: str) -> list[str]:
    try:
        return _listed(path)
    except OSError:
        return []


def _listed(path: str) -> list[str]:
    """Of a class that this kernel or host does not have, nothing. Raises OSError."""
    try:
        return sorted(text_names(os.listdir(path)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _pci_of_link(path: str) -> str:
    """The PCI address in the target of a class symlink: the device itself is not touched."""
    try:
        addresses = _PCI.findall(os.readlink(path))
    except OSError:
        return ""
    return addresses[-1] if addresses else ""


def _basename_of_link(path: str) -> str:
    try:
        return os.readlink(path).rpartition("/")[2]
    except OSError:
        return ""


def _gid_netdev(path: str, port: int, device: str) -> str:
    """The netdev of the first GID of a port: under a bond this is the bond, which is not in the PCI tree."""
    raw = read_once(f"{path}/ports/{port}/gid_attrs/ndevs/0", device, ReadErrors())
    return clean_text(raw or b"")


def _dev_port(path: str, device: str, errors: ReadErrors) -> int:
    raw = read_once(f"{path}/dev_port", device, errors) or b""
    return int(raw) if raw.isdigit() and len(raw) < 4 else 0


def _by_dev_port(pci_path: str, netdevs: list[str], port: int, device: str) -> str:
    """The netdev of a PCI function that has the port's number (dev_port counts from 0), or the only one."""
    if len(netdevs) == 1:
        return netdevs[0]
    for netdev in netdevs:
        if _dev_port(f"{pci_path}/net/{netdev}", device, ReadErrors()) == port - 1:
            return netdev
    return ""
