"""Makes the namespaces of a lab's nodes. Runs in the supervisor, which has entered the lab's own by isolation.py."""

import os
from pathlib import Path

from fabricpulse.lab import syscalls, wiring
from fabricpulse.lab.fabric import Fabric

NETNS_DIR = Path("/run/netns")

KINDS = {"net": syscalls.CLONE_NEWNET, "mnt": syscalls.CLONE_NEWNS, "uts": syscalls.CLONE_NEWUTS}
NAMES = {kind: name for name, kind in KINDS.items()}
MOUNT_KINDS = (syscalls.CLONE_NEWNS, syscalls.CLONE_NEWUTS)

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a mount point, not a place for files


class NamespaceBuilder:
    """Namespaces are known by open descriptors, as {CLONE_NEW…: descriptor}.

    home : those of the supervisor itself, where each method returns to. warnings : what this machine refused and the
    lab can do without. Methods raise OSError.
    """

    def __init__(self, directory: Path, fabric: Fabric) -> None:
        self._directory = directory
        self._fabric = fabric
        self.home = {kind: os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name, kind in KINDS.items()}
        self.warnings: list[str] = []

    def private_mounts(self) -> None:
        """Takes /proc and /run of the lab away from the machine's; for all that follows."""
        syscalls.mount("none", Path("/"), None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        try:
            syscalls.mount("proc", Path("/proc"), "proc", flags)
        except OSError as error:
            # A container that hides parts of /proc does not allow a new one; the old one serves, with outer PIDs.
            self.warnings.append(f"/proc of the lab shows the processes outside ({error})")
        # The old /run may be where the lab's own directory is, so that must be carried over.
        outside = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        syscalls.mount(
            "tmpfs", Path("/run"), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755,size=64m"
        )
        if not self._directory.exists():
            self._directory.mkdir(parents=True)
            syscalls.mount(f"/proc/self/fd/{outside}", self._directory, None, syscalls.MS_BIND)
        os.close(outside)
        NETNS_DIR.mkdir()

    def network_namespace(self, node: str) -> dict[int, int]:
        """A new network namespace with the node's sysctls; {CLONE_NEWNET: descriptor}."""
        syscalls.unshare(syscalls.CLONE_NEWNET)
        try:
            name = NETNS_DIR / node
            name.touch()
            syscalls.mount("/proc/self/ns/net", name, None, syscalls.MS_BIND)
            for path, value in wiring.sysctls(self._fabric, node).items():
                try:
                    (Path("/proc/sys") / path).write_text(value)
                except FileNotFoundError:
                    continue  # older kernels lack some
                except OSError as error:
                    self.warnings.append(f"{node}: this kernel refuses {path} = {value} ({error.strerror})")
            return {syscalls.CLONE_NEWNET: os.open("/proc/self/ns/net", os.O_RDONLY)}
        finally:
            syscalls.setns(self.home[syscalls.CLONE_NEWNET], syscalls.CLONE_NEWNET)

    def node_mounts(self, node: str, network: int) -> dict[int, int]:
        """Gives a node its own /sys (so /sys/class/net is its own), /etc/hosts, /dev/shm, host name, run directory.

        network : its network namespace. Returns descriptors of its mount and UTS namespaces.
        """
        place = self._directory / node
        kinds = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS
        syscalls.setns(network, syscalls.CLONE_NEWNET)
        try:
            syscalls.unshare(kinds)
            syscalls.mount("none", Path("/"), None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.sethostname(node)
            try:
                syscalls.mount("sysfs", Path("/sys"), "sysfs")
            except OSError as error:
                self.warnings.append(f"/sys of {node} shows the NICs outside the lab ({error})")
            syscalls.mount(
                "tmpfs", _SHARED_MEMORY, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777"
            )
            try:
                syscalls.mount(str(self._directory / "hosts"), Path("/etc/hosts"), None, syscalls.MS_BIND)
            except FileNotFoundError:  # a bare chroot or container; nothing of ours resolves names
                self.warnings.append(f"no /etc/hosts to cover: names like h0 mean nothing in {node}")
            inside = Path("/run/fabricpulse")
            inside.mkdir(exist_ok=True)
            syscalls.mount(str(place / "run"), inside, None, syscalls.MS_BIND)
            return {kind: os.open(f"/proc/self/ns/{NAMES[kind]}", os.O_RDONLY) for kind in MOUNT_KINDS}
        finally:
            for kind in (*MOUNT_KINDS, syscalls.CLONE_NEWNET):
                syscalls.setns(self.home[kind], kind)
