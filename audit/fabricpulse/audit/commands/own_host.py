"""What the audit reads on the host that it runs on, or in a copied tree of another one."""

import re
import socket
from pathlib import Path

from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.host.nvml import ask as ask_nvml
from fabricpulse.core.errors import UserError
from fabricpulse.core.run_dir import clock_page_path
from fabricpulse.hostinfo.gid_rules import NcclRules
from fabricpulse.hostinfo.sources import host_sources


def resolve(name: str) -> list[str]:
    """Addresses of a host's name, [] if it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(entry[4][0]) for entry in found})


def own_reader(
    root: Path = Path("/"), rails: dict[str, str] | None = None, nccl: NcclRules | None = None
) -> HostReader:
    """Of this host, or of a copied tree: of that, nothing is asked of the running kernel."""
    if root == Path("/"):
        return HostReader(
            host_sources(),
            root,
            nccl=nccl or NcclRules(),
            rails=rails or {},
            clock_page=clock_page_path(),
            resolve=resolve,
            nvml=ask_nvml,
        )
    if not (root / "sys").is_dir() and not (root / "proc").is_dir():
        raise UserError(
            f"{root} is no tree of a host: it has neither sys nor proc; set --root to a folder that has"
        )
    return HostReader(host_sources(root / "sys"), root, rails=rails or {}, disk=lambda _: None)


def own_name(root: Path) -> str:
    """The name that a copied tree gives its host."""
    try:
        name = (root / "proc/sys/kernel/hostname").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return name if re.fullmatch(r"[\w.-]{1,95}", name, re.ASCII) else ""
