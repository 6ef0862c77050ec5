"""Whether the NICs of this host are healthy now: by the mesh's probes where they are asked, by the link otherwise."""

import errno
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from fabricpulse.remediation.node.survey import Survey
from fabricpulse.remediation.protocol import MAX_NICS, Health

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
            # What cannot be read now is compared once it can: a flap meanwhile shows then.
            has_changed = bool(changes) and changes != before
            if changes:
                self._changes[device] = changes
            if links.get(device) is False or carrier == "0" or has_changed:
                health[device] = "unhealthy"
            elif links.get(device) or carrier == "1":
                health[device] = "healthy"
        return health

    def _read(self, device: str, name: str) -> str:
        """One attribute, "" where there is none or nobody can tell: no descriptor is left, say. An interface that is
        administratively down has no carrier (EINVAL)."""
        if "/" in device or device in (".", ".."):
            return ""
        try:
            return (self._sys_net / device / name).read_text().strip()
        except OSError as error:
            return "0" if name == "carrier" and error.errno == errno.EINVAL else ""


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
        # Of a NIC that this scrape does not have (one that has failed has none) a disconnect meanwhile shows later.
        kept = {**disconnects, **{d: n for d, n in self._disconnects.items() if d not in disconnects}}
        self._disconnects = dict(islice(kept.items(), MAX_NICS))
        return health
