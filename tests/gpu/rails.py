"""Two hosts' worth of NICs on a machine that has one network: namespaces with pairs of veth between them.

Where the kernel has no namespaces or no veth, both ranks share this machine's network with two NICs made for them
(dummy, else tap), whose traffic the kernel turns around; there no NIC can be taken away without the other rank's.
"""

import fcntl
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

RAILS = ("rail0", "rail1")
CONTROL = "control"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def ip(*arguments: str) -> str:
    """Runs `ip`. Raises OSError with what it says."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Rails:
    """How the ranks are connected. spaces : network namespace of each rank; empty: this machine's own, for both.
    devices : NICs that carry the job, in each; control : NICs for what is not the job's data."""

    kind: str
    spaces: tuple[str, ...] = ()
    devices: tuple[str, ...] = RAILS
    control: str = CONTROL
    errors: list[str] = field(default_factory=list)
    _open: list[object] = field(default_factory=list)

    def command(self, rank: int) -> list[str]:
        """What goes before a rank's program."""
        return ["ip", "netns", "exec", self.spaces[rank]] if self.spaces else []

    def link(self, rank: int, device: str, state: str) -> None:
        """Takes a rank's NIC down or up. Raises OSError."""
        ip(*(["-n", self.spaces[rank]] if self.spaces else []), "link", "set", device, state)

    def close(self) -> None:
        """Removes what was made."""
        for space in self.spaces:
            with suppress(OSError):
                ip("netns", "del", space)
        if not self.spaces and self.kind in ("dummy", "tap"):
            for device in (*self.devices, self.control):
                with suppress(OSError):
                    ip("link", "del", device)
        self._open.clear()


def _namespaces() -> Rails:
    spaces = ("fabricpulse-gpu-0", "fabricpulse-gpu-1")
    for space in spaces:
        with suppress(OSError):
            ip("netns", "del", space)
    made = Rails("veth", spaces)
    try:
        for space in spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            # A NIC answers ARP for its own address alone, or lanes between rails come up (check arp-flux).
            for name, value in (("arp_ignore", 1), ("arp_announce", 2)):
                ip("netns", "exec", space, "sh", "-c", f"echo {value} >/proc/sys/net/ipv4/conf/all/{name}")
        for number, device in enumerate((*RAILS, CONTROL)):
            ends = ("netns", spaces[0]), ("netns", spaces[1])
            ip("link", "add", device, *ends[0], "type", "veth", "peer", "name", device, *ends[1])
            for rank, space in enumerate(spaces):
                ip("-n", space, "addr", "add", f"10.97.{number}.{rank + 1}/24", "dev", device)
                ip("-n", space, "link", "set", device, "mtu", "9000", "up")
    except OSError:
        made.close()
        raise
    return made


def _one_network(kind: str) -> Rails:
    made = Rails(kind)
    try:
        for number, device in enumerate((*RAILS, CONTROL)):
            if kind == "tap":
                tap = Path("/dev/net/tun").open("r+b", buffering=0)  # noqa: SIM115 - open as long as the NIC is there
                made._open.append(tap)
                name = struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI)
                fcntl.ioctl(tap, _TUNSETIFF, name)
            else:
                ip("link", "add", device, "type", kind)
            ip("addr", "add", f"10.97.{number}.1/24", "dev", device)
            ip("link", "set", device, "up")
    except OSError:
        made.close()
        raise
    return made


def make() -> Rails:
    """The best that this kernel has; errors says what failed before. The machine's own NICs where nothing works."""
    errors = []
    for attempt in (_namespaces, lambda: _one_network("dummy"), lambda: _one_network("tap")):
        try:
            made = attempt()
        except OSError as error:
            errors.append(str(error)[:300])
        else:
            made.errors = errors
            return made
    own = tuple(sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo"))
    return Rails("own", (), own, own[0] if own else "lo", errors)
