"""The values that a fleet is compared by. The one list of them: odd-one-out rules elsewhere take their names from here.

An attribute is in this list when like hosts are meant to have the same value, and a host that has another one is a
mistake often enough to look at. What differs by nature (addresses, serial numbers, load) is not.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.audit.host.host_reader import HostReader, RdmaPort
from fabricpulse.audit.model import Severity, Value, clip

_GIB_KIB = 1 << 20
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")
# Services that belong to a GPU host; /proc has 15 bytes of a name. A subnet manager is meant to run on few hosts.
SERVICES = (
    "slurmd",
    "kubelet",
    "containerd",
    "nv-fabricmanage",
    "nvidia-persiste",
    "nv-hostengine",
    "chronyd",
    "ptp4l",
    "irqbalance",
    "lldpd",
)
SYSCTLS = (
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/netdev_max_backlog",
    "net/core/somaxconn",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/fib_multipath_hash_policy",
    "net/ipv4/neigh/default/gc_thresh3",
    "kernel/numa_balancing",
    "kernel/pid_max",
    "vm/swappiness",
    "vm/overcommit_memory",
    "vm/zone_reclaim_mode",
    "vm/max_map_count",
    "vm/nr_hugepages",
    "fs/file-max",
)


@dataclass(frozen=True)
class Attribute:
    """One attribute of a host, or of each of its back-end NICs.

    metric : of the NIC exporter, where it exports the same. severity : of a host that is odd in it.
    """

    name: str
    scope: str
    about: str
    severity: Severity = "warning"
    metric: str = ""

    @property
    def of_machine(self) -> bool:
        """Whether it follows from the hardware, so that another machine may well have another value."""
        return self.name in _OF_MACHINES


# Of the settings those that the kernel takes from the memory and the CPUs.
_OF_MACHINES = frozenset(
    (
        "kernel_parameters",
        "bios",
        "board",
        "cpu_model",
        "cpus",
        "smt",
        "numa_nodes",
        "memory_gib",
        "clock_source",
        "gpus",
        "rdma_devices",
        "sysctl kernel.pid_max",
        "sysctl fs.file-max",
        "sysctl net.ipv4.tcp_rmem",
        "sysctl net.ipv4.tcp_wmem",
        "firmware",
        "driver",
        "speed",
        # Sizes follow from the memory of the NIC.
        "buffers",
        "pcie",
        "numa_node",
        "pci_address",
        "queue_length",
    )
)


def _host(name: str, about: str, severity: Severity = "warning") -> Attribute:
    return Attribute(name, "host", about, severity)


def _nic(name: str, about: str, severity: Severity = "error", metric: str = "") -> Attribute:
    return Attribute(name, "nic", about, severity, metric)


ATTRIBUTES: tuple[Attribute, ...] = (
    _host("kernel", "kernel release"),
    _host("kernel_parameters", "boot parameters, without those that name a disk"),
    _host("distribution", "PRETTY_NAME of /etc/os-release"),
    _host("bios", "version of the firmware of the board"),
    _host("board", "maker and model of the machine"),
    _host("cpu_model", "model of the CPUs"),
    _host("cpus", "CPUs that are online", "error"),
    _host("smt", "whether CPUs have sibling threads"),
    _host("numa_nodes", "NUMA nodes"),
    _host("memory_gib", "memory, in steps of 4 GiB", "error"),
    _host("swap_gib", "swap space"),
    _host("transparent_hugepages", "when the kernel uses huge pages by itself"),
    _host("clock_source", "what the kernel counts time by"),
    _host("gpus", "number and models of GPUs", "error"),
    _host("gpu_driver", "version of the GPU driver", "error"),
    _host("cuda", "version of CUDA"),
    _host("nccl", "version of NCCL in the system's library folders", "error"),
    _host("rdma_core", "version of rdma-core"),
    _host("ofed", "version of NVIDIA's driver package"),
    _host("rdma_devices", "number and kinds of RDMA devices", "error"),
    _host("services", "which services of a GPU host run"),
    _host("fleet_time", "whether a clocksync sidecar gives the host fleet time"),
    *(_host(f"sysctl {name.replace('/', '.')}", "kernel setting") for name in SYSCTLS),
    _nic("firmware", "firmware of the NIC", "warning", "fabricpulse_nic_info"),
    _nic("driver", "driver and its version"),
    _nic("mtu", "MTU", metric="fabricpulse_nic_link_mtu_bytes"),
    _nic("speed", "speed of the link", metric="fabricpulse_nic_link_speed_bytes_per_second"),
    _nic("link_layer", "Ethernet or InfiniBand"),
    _nic("gid_index", "GID index that NCCL takes", metric="fabricpulse_nic_nccl_gid_index"),
    _nic("gid_type", "type of that GID"),
    _nic("pfc", "priorities that have PFC", metric="fabricpulse_nic_pfc_priorities"),
    _nic(
        "trust",
        "DSCP that are mapped to priorities, or trust of the VLAN's",
        metric="fabricpulse_nic_trust_dscp",
    ),
    _nic("traffic_classes", "class of each priority, and shares of the classes"),
    _nic("ecn", "priorities whose congestion marks are answered (np) and obeyed (rp)"),
    _nic("buffers", "receive buffer of each priority, and sizes of the buffers"),
    _nic("pfc_watchdog", "how long the NIC may send pause frames without receiving", "warning"),
    _nic("pcie", "width and speed of the PCIe link", metric="fabricpulse_nic_pcie_link_width_lanes"),
    _nic("numa_node", "NUMA node"),
    _nic("pci_address", "slot", "warning"),
    _nic("pkeys", "InfiniBand partitions"),
    _nic("queue_length", "tx_queue_len"),
)
BY_NAME: Mapping[str, Attribute] = {attribute.name: attribute for attribute in ATTRIBUTES}


def values_of(host: HostReader) -> tuple[Value, ...]:
    """What the host has of the attributes; those that it does not tell are left out.

    A host is compared with the hosts of its role, a NIC with the NICs of its network, or else of its name, on those.
    """
    role = role_of(host)
    found = [
        Value(name, role, "", clip(value)) for name, value in _host_values(host) if value and name in BY_NAME
    ]
    for port in host.ports:
        network = host.rails.get(port.netdev, "")
        nic_role = clip(f"{role}: {network or port.subject}", 128)
        found += [
            Value(name, nic_role, port.subject[:128], clip(str(value)))
            for name, read in _NIC_VALUES.items()
            if (value := read(host, port)) not in (None, "")
        ]
    with_rdma = {port.netdev for port in host.ports}
    for netdev in host.backend:
        if netdev.name not in with_rdma:
            nic_role = clip(f"{role}: {host.rails.get(netdev.name) or netdev.name}", 128)
            speed = host.netdev_text(netdev, "speed")
            plain = {
                "mtu": host.netdev_text(netdev, "mtu"),
                "queue_length": host.netdev_text(netdev, "tx_queue_len"),
                "speed": f"{speed} Mb/s" if speed and speed.isdigit() else None,
                "pci_address": netdev.pci_address,
            }
            found += [
                Value(key, nic_role, netdev.name[:128], clip(value)) for key, value in plain.items() if value
            ]
    return tuple(sorted(found))


def role_of(host: HostReader) -> str:
    """What kind of host it is: not how many GPUs it has, so that one that has lost a GPU is still compared."""
    if host.gpus:
        return f"{host.gpus[0].vendor} GPU host"
    return "RDMA host" if host.ports else "host"


def _host_values(host: HostReader) -> Iterator[tuple[str, str | None]]:
    memory = dict(re.findall(r"^(\w+): +([0-9]{1,15}) kB$", host.text("/proc/meminfo") or "", re.MULTILINE))
    yield "kernel", host.text("/proc/sys/kernel/osrelease")
    yield "kernel_parameters", _parameters(host.text("/proc/cmdline") or "")
    yield "distribution", _quoted(host.text("/etc/os-release") or "", "PRETTY_NAME")
    yield "bios", host.text("/sys/class/dmi/id/bios_version")
    yield (
        "board",
        " ".join(
            filter(None, (host.text(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")))
        ),
    )
    yield "cpu_model", _cpu_model(host)
    yield "cpus", host.text("/sys/devices/system/cpu/online")
    yield "smt", host.text("/sys/devices/system/cpu/smt/active")
    yield "numa_nodes", host.text("/sys/devices/system/node/online")
    if "MemTotal" in memory:
        # What the kernel itself takes differs by some MiB between boots.
        yield "memory_gib", str(round(int(memory["MemTotal"]) / _GIB_KIB / 4) * 4)
    if "SwapTotal" in memory:
        yield "swap_gib", str(round(int(memory["SwapTotal"]) / _GIB_KIB))
    yield "transparent_hugepages", _chosen(host.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    yield "clock_source", host.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    # Where others have some, none is a value; where nothing can be listed there is no value.
    on_pci = "none" if host.names("/sys/bus/pci/devices") else None
    yield "gpus", _counted([f"{gpu.vendor} {gpu.device}" for gpu in host.gpus]) or on_pci
    yield "gpu_driver", _gpu_driver(host)
    yield "cuda", _first(r'"cuda"[^}]*"version"\s*:\s*"([^"]+)"', host.text("/usr/local/cuda/version.json"))
    with_libraries = "none" if host.gpus and any(map(host.names, _LIBRARIES)) else None
    yield "nccl", _library(host, "libnccl.so.") or with_libraries
    yield "rdma_core", _library(host, "libibverbs.so.") or with_libraries
    yield "ofed", host.text("/sys/module/mlx5_core/version")
    # Virtual functions come and go with those whom they are lent to.
    devices = [
        d for d in host.inventory.rdma if not d.pci_path or not os.path.lexists(f"{d.pci_path}/physfn")
    ]
    no_device = "none" if host.names("/sys/class/net") else None
    yield "rdma_devices", _counted([device.hca or device.family for device in devices]) or no_device
    if host.sees_all_processes:
        running = {name for _, name in host.processes}
        yield "services", " ".join(name for name in SERVICES if name in running) or "none"
    if host.clock_page is not None and host.text("/proc/sys/kernel/osrelease"):
        yield "fleet_time", "none" if host.clock_status() is None else "clocksync sidecar"
    for name in SYSCTLS:
        value = host.text(f"/proc/sys/{name}")
        yield f"sysctl {name.replace('/', '.')}", " ".join(value.split()) if value else None


def _parameters(line: str) -> str:
    """The boot parameters in order of name, without what differs between hosts with the same settings."""
    own = (
        "BOOT_IMAGE=",
        "root=",
        "initrd=",
        "resume=",
        "ip=",
        "BOOTIF=",
        "UUID=",
        "rd.luks",
        "rd.lvm",
        "ostree=",
        # Of stateless hosts, verified images, and disks by their own name.
        "hostname=",
        "systemd.hostname=",
        "systemd.machine_id=",
        "ifname=",
        "nfsroot=",
        "rd.md.",
        "rd.iscsi",
        "cryptdevice=",
        "roothash=",
        "usrhash=",
    )
    return " ".join(sorted(part for part in line.split() if not part.startswith(own)))


def _quoted(text: str, key: str) -> str | None:
    return _first(rf'^{key}="?([^"\n]+)"?$', text)


def _first(pattern: str, text: str | None) -> str | None:
    found = re.search(pattern, text or "", re.MULTILINE)
    return found[1] if found else None


def _cpu_model(host: HostReader) -> str | None:
    # The file has a block for each of hundreds of CPUs.
    return _first(r"^model name\s*:\s*(.+)$", host.head("/proc/cpuinfo"))


def _chosen(text: str) -> str | None:
    return _first(r"\[([a-z]+)\]", text)


def _counted(names: list[str]) -> str | None:
    counts: dict[str, int] = {}
    for name in sorted(names):
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or None


def _gpu_driver(host: HostReader) -> str | None:
    nvidia = _first(
        r"Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)", host.text("/proc/driver/nvidia/version")
    )
    return nvidia or host.text("/sys/module/amdgpu/version")


def _library(host: HostReader, prefix: str) -> str | None:
    """The longest version in the names of a library's files."""
    versions = {
        name[len(prefix) :]
        for folder in _LIBRARIES
        for name in host.names(folder)
        if re.fullmatch(re.escape(prefix) + r"[0-9]+(\.[0-9a-z]+)+", name)
    }
    return ", ".join(sorted(versions)) or None


def _firmware(_: HostReader, port: RdmaPort) -> str | None:
    device = port.device
    return f"{device.board} {device.firmware}".strip() if device.firmware else None


def _driver(host: HostReader, port: RdmaPort) -> str | None:
    driver = port.device.driver
    version = host.text(f"/sys/module/{driver}/version") if driver else None
    return f"{driver} {version}" if version else driver


def _speed(host: HostReader, port: RdmaPort) -> str | None:
    if port.link_layer == "Ethernet" and port.netdev:
        speed = host.netdev_text(port.netdev, "speed")
        return f"{speed} Mb/s" if speed and speed.isdigit() else None
    return host.port_text(port, "rate") if (host.port_text(port, "state") or "").startswith("4:") else None


def _gid_type(host: HostReader, port: RdmaPort) -> str | None:
    index = host.gid_index(port)
    return host.gid_table(port)[0][index].kind if index is not None else None


def _pfc(host: HostReader, port: RdmaPort) -> str | None:
    state = host.dcb(port.netdev) if port.netdev else None
    if state is None or state.pfc_enabled is None:
        return None
    return " ".join(str(priority) for priority, on in enumerate(state.pfc_enabled) if on) or "none"


def _trust(host: HostReader, port: RdmaPort) -> str | None:
    state = host.dcb(port.netdev) if port.netdev else None
    if state is None:
        return None
    mapped = " ".join(f"{dscp}:{priority}" for dscp, priority in sorted(state.dscp_to_priority.items()))
    return f"DSCP {mapped}" if mapped else "priority"


def _classes(host: HostReader, port: RdmaPort) -> str | None:
    state = host.dcb(port.netdev) if port.netdev else None
    if state is None or not state.priority_to_class:
        return None
    classes = " ".join(f"{priority}:{number}" for priority, number in enumerate(state.priority_to_class))
    return f"{classes} / {' '.join(map(str, state.bandwidth_percent))}"


def _ecn(host: HostReader, port: RdmaPort) -> str | None:
    base = f"/sys/class/net/{port.netdev}/ecn"
    sides = []
    for side in ("np", "rp"):
        states = (
            {p: host.number(f"{base}/roce_{side}/enable/{p}") for p in map(str, range(8))}
            if port.netdev
            else {}
        )
        if None in states.values() or not states:
            return None
        sides.append(f"{side} {' '.join(p for p, on in states.items() if on) or 'none'}")
    return ", ".join(sides)


def _buffers(host: HostReader, port: RdmaPort) -> str | None:
    state = host.dcb(port.netdev) if port.netdev else None
    if state is None or not state.priority_to_buffer:
        return None
    buffers = " ".join(f"{priority}:{number}" for priority, number in enumerate(state.priority_to_buffer))
    return f"{buffers} / {' '.join(map(str, state.buffer_bytes))} bytes"


def _pfc_watchdog(host: HostReader, port: RdmaPort) -> str | None:
    found = host.pfc_watchdog_ms(port.netdev) if port.netdev else None
    return None if found is None else {0: "off", 0xFFFF: "by itself"}.get(found, f"{found} ms")


def _pcie(host: HostReader, port: RdmaPort) -> str | None:
    if not port.device.pci_path:
        return None
    base = Path(port.device.pci_path)
    width, speed = host.text(base / "current_link_width"), host.text(base / "current_link_speed")
    return f"x{width} {speed}" if width and speed else None


def _numa(host: HostReader, port: RdmaPort) -> str | None:
    return host.text(Path(f"{port.device.pci_path}/numa_node")) if port.device.pci_path else None


def _pkeys(host: HostReader, port: RdmaPort) -> str | None:
    if port.link_layer != "InfiniBand":
        return None
    base = Path(f"{port.device.path}/ports/{port.number}/pkeys")
    return " ".join(
        sorted({key for name in host.names(base) if (key := host.text(base / name)) and key != "0x0000"})
    )


_NIC_VALUES: Mapping[str, Callable[[HostReader, RdmaPort], object]] = {
    "firmware": _firmware,
    "driver": _driver,
    "mtu": lambda host, port: host.netdev_text(port.netdev, "mtu") if port.netdev else None,
    "speed": _speed,
    "link_layer": lambda _, port: port.link_layer,
    "gid_index": lambda host, port: host.gid_index(port) if port.link_layer == "Ethernet" else None,
    "gid_type": _gid_type,
    "pfc": _pfc,
    "trust": _trust,
    "traffic_classes": _classes,
    "ecn": _ecn,
    "buffers": _buffers,
    "pfc_watchdog": _pfc_watchdog,
    "pcie": _pcie,
    "numa_node": _numa,
    "pci_address": lambda _, port: port.device.pci_address,
    "pkeys": _pkeys,
    "queue_length": lambda host, port: host.netdev_text(port.netdev, "tx_queue_len") if port.netdev else None,
}
