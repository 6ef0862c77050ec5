"""The NICs of this host by the kernel, which no job can invent."""

import socket
from contextlib import suppress
from pathlib import Path

_SYS_CLASS = Path("/sys/class")


def kernel_nics(sys_class: Path = _SYS_CLASS) -> dict[str, int]:
    """Name of a network interface or RDMA device of the agent's network namespace -> its rank.

    0 for hardware, 1 for what software has made: a host with many containers has many virtual interfaces.
    """
    ranks: dict[str, int] = {}
    for kind in ("net", "infiniband"):
        with suppress(OSError):
            for path in (sys_class / kind).iterdir():
                ranks[path.name] = 0 if (path / "device").exists() else 1
    return ranks


def kernel_has(device: str) -> bool:
    """Whether there may be a network interface or RDMA device of this name; /sys may be of another network
    namespace."""
    if device in kernel_nics():
        return True
    try:
        return device in (name for _, name in socket.if_nameindex())
    except OSError:  # no descriptor is left: what is not known is not denied
        return True
