"""Whether the NICs of this host are healthy now: by the mesh's probes where they are asked, by the link otherwise."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fabricpulse.remediation.node.survey import Survey
from fabricpulse.remediation.protocol import Health

_SYS_NET = Path("/sys/class/net")


class LinkObserver:
    """Links by sysfs. A link that was down between two readings was not healthy: carrier_changes tells."""

    def __init__(self, sys_net: Path = _SYS_NET) -> None:
        self._sys_net = sys_net
        self._changes: dict[str, str] = {}

    def observe(self, survey: Survey, devices: Iterable[str]) -> dict[str, Health]:
        """Health of the NICs that processes use, and of `devices`; a NIC about which nothing is known is left out."""
        health: dict[str, Health] = {}
        links = survey.links()
        for device in links.keys() | set(devices):
            carrier = self._read(device, "carrier")
            changes = self._read(device, "carrier_changes")
            before = self._changes.get(device, changes)
            self._changes[device] = changes
            if links.get(device) is False or carrier == "0" or changes != before:
                health[device] = "unhealthy"
            elif links.get(device) or carrier == "1":
                health[device] = "healthy"
        return health

    def _read(self, device: str, name: str) -> str:
        """One attribute, "" where there is none. An interface that is administratively down has no carrier (EINVAL)."""
        if "/" in device or device in (".", ".."):
            return ""
        try:
            return (self._sys_net / device / name).read_text().strip()
        except FileNotFoundError:
            return ""
        except OSError:
            return "0" if name == "carrier" else ""


class ProbeObserver:
    """NICs by the mesh's probes. One that was disconnected between two scrapes was not healthy: its counter tells."""

    def __init__(self) -> None:
        self._disconnects: dict[str, float] = {}

    def observe(self, connected: Mapping[str, bool], disconnects: Mapping[str, float]) -> dict[str, Health]:
        """Health of the NICs that the mesh measures."""
        health: dict[str, Health] = {}
        for device, reached in connected.items():
            count = disconnects.get(device, 0.0)
            grown = count > self._disconnects.get(device, count)
            health[device] = "healthy" if reached and not grown else "unhealthy"
        self._disconnects = dict(disconnects)
        return health
