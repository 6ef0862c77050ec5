"""What a check may read of a host. A folder that looks like a root file system and stand-ins for the kernel's
interfaces take the place of a host in a test.

Reads are bounded and raise nothing: a value that is absent, unreadable or absurd is None. Not safe for use from several
threads at a time, but for what is read once (`functools.cached_property`): the runner calls one check after the other.
"""

import errno
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fabricpulse.audit.host.kernel_messages import KernelMessages, kernel_messages
from fabricpulse.audit.host.nvml import NvmlAnswer
from fabricpulse.audit.host.routes import front_end
from fabricpulse.core.errors import is_exhausted
from fabricpulse.core.shm.clock_page import ClockPageReader, ClockStatus
from fabricpulse.core.shm.mapping import LayoutError
from fabricpulse.hostinfo.device_filter import VIRTUAL, DeviceFilter
from fabricpulse.hostinfo.gid_rules import Gid, NcclRules, nccl_index
from fabricpulse.hostinfo.gid_table import read_table
from fabricpulse.hostinfo.inventory import Inventory, Netdev, RdmaDevice, Scanner
from fabricpulse.hostinfo.netlink.dcb import DcbState
from fabricpulse.hostinfo.sources import HostSources
from fabricpulse.hostinfo.sysfs import NO_DESCRIPTORS, NOT_AVAILABLE, ReadErrors

# Largest file that is read, and most names of a folder.
MOST_BYTES = 1 << 20
MOST_NAMES = 65_536
_GPU_CLASSES = ("0x0302", "0x0300", "0x0380", "0x1200")
_GPU_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel", "0x1da3": "habana"}
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Gpu:
    """A GPU. path : its folder below /sys. numa : -1 if unknown."""

    address: str
    path: str
    vendor: str
    device: str
    numa: int
    driver: str


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device that carries jobs. netdev : "" where there is none."""

    device: RdmaDevice
    number: int
    netdev: str
    link_layer: str

    @property
    def subject(self) -> str:
        """The netdev, or the RDMA device of an InfiniBand port."""
        return self.netdev or self.device.name


@dataclass(frozen=True)
class DiskSpace:
    """Of a file system, bytes. free : for users who are not root."""

    size: int
    free: int


# Runtimes name the cgroup of a container by its number: docker-ID.scope, cri-containerd-ID.scope, kubepods/podID/ID.
_CONTAINER = re.compile(r"[/-]([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)


@dataclass(frozen=True)
class ProcessLimit:
    """A limit of a process. value : the soft one, most : the hard one; None for unlimited."""

    process: str
    pid: int
    value: int | None
    most: int | None = None


def disk_space(path: Path) -> DiskSpace | None:
    """Of the file system that `path` is on, None if there is no such path."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def _raise_exhausted(error: OSError) -> None:
    if is_exhausted(error):
        raise error


@dataclass
class HostReader:
    """One host, as the checks see it.

    root : of the tree that has proc, etc and usr. sources : sysfs and the interfaces of the kernel. disk : space below
    a path. nccl : what jobs of this host tell NCCL about GIDs. rails : netdev -> network of the NICs that the fleet's
    membership lists for this host. clock_page : of the clocksync sidecar. resolve : whether a host's name resolves.
    nvml : asks NVIDIA's library.
    """

    sources: HostSources
    root: Path = Path("/")
    disk: Callable[[Path], DiskSpace | None] = disk_space
    nccl: NcclRules = field(default_factory=NcclRules)
    rails: Mapping[str, str] = field(default_factory=dict)
    clock_page: Path | None = None
    resolve: Callable[[str], Sequence[str]] | None = None
    nvml: Callable[[], NvmlAnswer] | None = None
    errors: ReadErrors = field(default_factory=ReadErrors)

    # -- files ---------------------------------------------------------------------------------------------------

    def place(self, path: str) -> Path:
        """The file of an absolute path of the host, `/sys/class/net` say."""
        if path.startswith("/sys/"):
            return self.sources.sysfs / path[len("/sys/") :]
        return self.root / path.lstrip("/")

    def text(self, path: str | Path) -> str | None:
        """A file without the white space around it; None if it cannot be read, or is larger than MOST_BYTES. Raises
        OSError, as all that reads here, where no descriptor is left: that says nothing of the host.
        """
        file = self.place(path) if isinstance(path, str) else path
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            _raise_exhausted(error)
            return None
        try:
            if not _is_file(descriptor):
                return None
            parts, size = [], 0
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    return None
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("utf-8", "replace").strip()

    def head(self, path: str, size: int = 4096) -> str | None:
        """The beginning of a file that may be long."""
        try:
            descriptor = os.open(self.place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            _raise_exhausted(error)
            return None
        try:
            return os.read(descriptor, size).decode("utf-8", "replace") if _is_file(descriptor) else None
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def value(self, path: str | Path) -> str | None:
        """As `text`, None also for what drivers write in place of a value."""
        found = self.text(path)
        return None if not found or found.encode() in NOT_AVAILABLE else found

    def number(self, path: str | Path) -> int | None:
        """A file that holds one whole number."""
        found = self.text(path)
        return int(found) if found and re.fullmatch(r"-?[0-9]{1,18}", found, re.ASCII) else None

    def names(self, path: str | Path) -> list[str]:
        """What a folder holds, in order of name; [] if it cannot be listed."""
        folder = self.place(path) if isinstance(path, str) else path
        try:
            found = sorted(name for name in os.listdir(folder) if name.isprintable())  # noqa: PTH208 - names are all that is wanted
        except OSError as error:
            _raise_exhausted(error)
            return []
        return found[:MOST_NAMES]

    def link_name(self, path: str | Path) -> str:
        """Last part of what a symbolic link names, "" if there is none."""
        file = self.place(path) if isinstance(path, str) else path
        try:
            return file.readlink().name
        except OSError:
            return ""

    # -- NICs ----------------------------------------------------------------------------------------------------

    @cached_property
    def inventory(self) -> Inventory:
        """All NICs of the host."""
        found = Scanner(str(self.sources.sysfs), DeviceFilter()).scan(self.errors)
        if self.errors.total[NO_DESCRIPTORS]:
            raise OSError(errno.EMFILE, "too many open files to list the NICs")
        return found

    @cached_property
    def ports(self) -> tuple[RdmaPort, ...]:
        """RDMA ports of the back-end network, in order of device: those of the rails if the fleet lists any, else all
        of physical functions and of devices without a PCI function, but for Ethernet ports of the default route whose
        board no other port has: they are the front end."""
        found = []
        for device in self.inventory.rdma:
            if device.pci_path and os.path.lexists(f"{device.pci_path}/physfn"):
                continue
            for number in device.ports:
                netdev = device.netdev(number)
                if self.rails and netdev not in self.rails:
                    continue
                layer = self.text(Path(f"{device.path}/ports/{number}/link_layer")) or ""
                found.append(RdmaPort(device, number, netdev, layer))
        if self.rails:
            return tuple(found)
        front = front_end(self)
        boards = {(p.link_layer, p.device.board) for p in found if p.netdev not in front}
        return tuple(
            p
            for p in found
            if p.link_layer != "Ethernet"
            or p.netdev not in front
            or not boards
            or (p.link_layer, p.device.board) in boards
        )

    @cached_property
    def backend(self) -> tuple[Netdev, ...]:
        """Netdevs of the back-end network: the rails if the fleet lists any, else those of RDMA ports, without the
        slaves of a bond."""
        if self.rails:
            return tuple(netdev for netdev in self.inventory.netdevs if netdev.name in self.rails)
        names = {port.netdev for port in self.ports}
        return tuple(netdev for netdev in self.inventory.netdevs if netdev.name in names)

    @cached_property
    def boards(self) -> dict[str, str]:
        """Kind of board of each RDMA port of the back end, by its subject and by its netdev; of a NIC without RDMA, its
        driver. A port whose board no other port has is given the board of most ports of its model and speed, if two or
        more have it: a NIC may have been replaced by one of another board ID."""
        found = {netdev.name: netdev.driver for netdev in self.backend}
        own = {
            port: f"{port.link_layer} {port.device.board or port.device.hca or port.device.driver}"
            for port in self.ports
        }
        ports_of = Counter(own.values())
        of_model: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        for port, board in own.items():
            if ports_of[board] > 1:
                of_model[self._model(port)][board] += 1
        for port, board in own.items():
            like = of_model.get(self._model(port)) if ports_of[board] == 1 else None
            found[port.subject] = found[port.netdev] = like.most_common(1)[0][0] if like else board
        return found

    def _model(self, port: RdmaPort) -> tuple[str, str, str]:
        """Link layer, model of the chip and speed of the link; the port itself where one of these is not known."""
        is_ethernet = port.link_layer == "Ethernet"
        speed = self.netdev_text(port.netdev, "speed") if is_ethernet else self.port_text(port, "rate")
        # Of a link that is down the speed is -1.
        if not port.device.hca or not speed or speed.startswith("-"):
            return port.link_layer, port.device.name, str(port.number)
        return port.link_layer, port.device.hca, speed

    @cached_property
    def physical(self) -> tuple[Netdev, ...]:
        """Netdevs that a cable belongs to: those with a PCI function."""
        return tuple(
            netdev
            for netdev in self.inventory.netdevs
            if netdev.pci_path and not re.fullmatch(VIRTUAL, netdev.name)
        )

    def port_text(self, port: RdmaPort, name: str) -> str | None:
        """A file of a port, `state` say."""
        return self.value(Path(f"{port.device.path}/ports/{port.number}/{name}"))

    def netdev_text(self, netdev: Netdev | str, name: str) -> str | None:
        """A file of a netdev, `mtu` say."""
        return self.value(f"/sys/class/net/{netdev if isinstance(netdev, str) else netdev.name}/{name}")

    def gid_table(self, port: RdmaPort) -> tuple[dict[int, Gid], int]:
        """Entries by index, and the size of the table."""
        return read_table(f"{port.device.path}/ports/{port.number}", port.device.name, self.errors)

    def gid_index(self, port: RdmaPort) -> int | None:
        """The index that NCCL takes."""
        table, size = self.gid_table(port)
        return nccl_index(table, size, port.link_layer, self.nccl)

    def dcb(self, netdev: str) -> DcbState | None:
        """PFC, ETS and DSCP of a NIC; None if its driver or the kernel does not say."""
        if self.sources.dcb is None:
            return None
        with suppress(OSError):
            source = self.sources.dcb()
            try:
                return source.state(netdev)
            finally:
                source.close()
        return None

    def statistics(self, netdev: str) -> dict[str, int] | None:
        """The driver's own counters of a NIC; None if it has none."""
        if self.sources.ethtool is None:
            return None
        with suppress(OSError):
            source = self.sources.ethtool()
            try:
                found = source.statistics(netdev)
            finally:
                source.close()
            return dict(zip(found.names, found.values, strict=False))
        return None

    def pfc_watchdog_ms(self, netdev: str) -> int | None:
        """How long a NIC may send pause frames without receiving, milliseconds (`EthtoolSource.pfc_watchdog_ms`); None
        if its driver does not say."""
        if self.sources.ethtool is None:
            return None
        with suppress(OSError):
            source = self.sources.ethtool()
            try:
                return source.pfc_watchdog_ms(netdev)
            finally:
                source.close()
        return None

    # -- the rest of the host ------------------------------------------------------------------------------------

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs by their PCI class and maker, without virtual functions."""
        found = []
        base = "/sys/bus/pci/devices"
        for address in self.names(base):
            if not _PCI.fullmatch(address):
                continue
            path = f"{base}/{address}"
            vendor = _GPU_VENDORS.get(self.text(f"{path}/vendor") or "", "")
            kind = (self.text(f"{path}/class") or "")[:6]
            if not vendor or kind not in _GPU_CLASSES or (vendor == "intel" and kind != "0x0380"):
                continue
            if os.path.lexists(self.place(f"{path}/physfn")):
                continue
            numa = self.number(f"{path}/numa_node")
            found.append(
                Gpu(
                    address,
                    path,
                    vendor,
                    self.text(f"{path}/device") or "",
                    -1 if numa is None else numa,
                    self.link_name(f"{path}/driver"),
                )
            )
        return tuple(found)

    @cached_property
    def nvml_answer(self) -> NvmlAnswer:
        """What NVML says of the GPUs."""
        return (
            self.nvml()
            if self.nvml is not None
            else NvmlAnswer(reason="NVML is not asked about a copied tree")
        )

    @cached_property
    def processes(self) -> tuple[tuple[int, str], ...]:
        """(pid, name) of what runs, in order of pid, as far as /proc shows it."""
        found = []
        for name in sorted((n for n in self.names("/proc") if n.isdigit() and len(n) < 9), key=int):
            comm = self.text(f"/proc/{name}/comm")
            if comm:
                found.append((int(name), comm))
        return tuple(found)

    @cached_property
    def sees_all_processes(self) -> bool:
        """Whether `processes` are those of the host: a container, and who may not see others' processes, do not see the
        kernel's own threads."""
        return any(name == "kthreadd" for _, name in self.processes)

    def limits(self, processes: Sequence[str], limit: str) -> list[ProcessLimit]:
        """The limit called `limit` ("Max locked memory") of each running process with one of these names."""
        found = (self._limit(pid, name, limit) for pid, name in self.processes if name in processes)
        return [one for one in found if one is not None]

    def container_limits(self, limit: str) -> list[ProcessLimit]:
        """The same of the first process of each container that runs, which is known by its cgroup."""
        found: dict[str, ProcessLimit] = {}
        for pid, name in self.processes:
            hit = _CONTAINER.search(self.text(f"/proc/{pid}/cgroup") or "")
            if hit and hit[1] not in found and (one := self._limit(pid, name, limit)):
                found[hit[1]] = one
        return list(found.values())

    def _limit(self, pid: int, name: str, limit: str) -> ProcessLimit | None:
        number = "(unlimited|[0-9]{1,20})"
        text = self.text(f"/proc/{pid}/limits") or ""
        hit = re.search(rf"^{re.escape(limit)}\s+{number}\s+{number}\s", text, re.MULTILINE)
        if hit is None:
            return None
        soft, hard = (None if value == "unlimited" else int(value) for value in hit.groups())
        return ProcessLimit(name, pid, soft, hard)

    @cached_property
    def modules(self) -> frozenset[str]:
        """Loaded kernel modules; what is built in is not among them."""
        return frozenset(line.split()[0] for line in (self.text("/proc/modules") or "").splitlines() if line)

    @cached_property
    def kernel_messages(self) -> KernelMessages | None:
        """What the kernel has logged; None if it may not be read."""
        if self.sources.kmsg is None:
            return None
        return kernel_messages(self.sources.kmsg)

    def clock_status(self) -> ClockStatus | None:
        """Of fleet time; None where no sidecar has ever written a page."""
        if self.clock_page is None:
            return None
        try:
            reader = ClockPageReader(self.clock_page)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LayoutError):
            return ClockStatus.UNKNOWN
        try:
            return reader.now().status
        except (OSError, ValueError, LayoutError):
            return ClockStatus.UNKNOWN
        finally:
            reader.close()


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
