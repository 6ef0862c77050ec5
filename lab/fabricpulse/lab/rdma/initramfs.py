"""The initial file system of the guest: busybox, the modules of its kernel in load order, one script."""

import io
import lzma
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fabricpulse.core.errors import UserError

_FOLDER, _FILE, _PROGRAM, _DEVICE = 0o040755, 0o100644, 0o100755, 0o020600

# Modules of the transport by which the guest reaches its files and its caller.
BOOT_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
RDMA_MODULES = ("rdma_rxe", "ib_uverbs", "rdma_ucm", "veth", "bridge", "sch_netem", "sch_tbf")


@dataclass(frozen=True)
class Entry:
    """A file of the archive. device : (major, minor) of a device node."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def archive(entries: Iterable[Entry]) -> bytes:
    """A cpio archive in the format "newc", as the kernel unpacks it."""
    out = io.BytesIO()
    for number, entry in enumerate((*entries, Entry("TRAILER!!!", 0)), 1):
        name = entry.name.encode() + b"\0"
        fields = (number, entry.mode, 0, 0, 1, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
        header = ("070701" + "".join(f"{field:08X}" for field in fields)).encode() + name
        for part in (header, entry.data):
            out.write(part + b"\0" * (-len(part) % 4))
    return out.getvalue()


def modules_in_order(kernel: Path, release: str, names: Iterable[str]) -> list[Path]:
    """The files of these modules and of all that they need, in load order; what is built in is left out.

    Raises UserError for a module that the kernel does not have.
    """
    base = kernel / "lib" / "modules" / release
    needs: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for line in (base / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
        by_name[_module_name(path)] = path
    listed = base / "modules.builtin"
    built_in = {_module_name(line) for line in listed.read_text().split()} if listed.exists() else set()
    order: dict[str, None] = {}

    def add(path: str) -> None:
        for other in reversed(needs[path]):
            if other not in order:
                add(other)
        order.setdefault(path)

    for name in names:
        plain = name.replace("-", "_")
        if plain in by_name:
            add(by_name[plain])
        elif plain not in built_in:
            raise UserError(f"the guest's kernel {release} has no module {name}")
    return [base / path for path in order]


def _module_name(path: str) -> str:
    return re.sub(r"\.ko(\.\w+)?$", "", path.rpartition("/")[2]).replace("-", "_")


def _module(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dqc", path], capture_output=True, check=True).stdout
    return data


# The kernel's own requests for modules (crypto of rxe, qdiscs) go to the modprobe of the real root.
_MODPROBE = b'#!/bin/busybox sh\nexec /bin/busybox chroot /new /sbin/modprobe "$@"\n'


def initramfs(busybox: Path, modules: Iterable[Path], init: str, command: str) -> bytes:
    """The archive: `init` is the first program, `command` the script that it runs in the real root as /cmd.sh."""
    entries = [Entry(name, _FOLDER) for name in ("bin", "mods", "dev", "sbin")]
    entries += [
        Entry("dev/console", _DEVICE, device=(5, 1)),
        Entry("dev/null", _DEVICE, device=(1, 3)),
        Entry("bin/busybox", _PROGRAM, busybox.read_bytes()),
        Entry("sbin/modprobe", _PROGRAM, _MODPROBE),
    ]
    names = []
    for path in modules:
        names.append(re.sub(r"\.(xz|zst)$", "", path.name))
        entries.append(Entry(f"mods/{names[-1]}", _FILE, _module(path)))
    entries += [
        Entry("mods/order", _FILE, "".join(f"{name}\n" for name in names).encode()),
        Entry("init", _PROGRAM, init.encode()),
        Entry("cmd.sh", _FILE, command.encode()),
    ]
    return archive(entries)
