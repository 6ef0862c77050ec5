"""The leaf of each NIC by LLDP: what the lldpd of this host has received, in a file that `lldpctl -f json` writes.

A file, not the program: its socket is open to root only, which a mesh exporter is not.
"""

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from fabricpulse.core.files import open_regular
from fabricpulse.core.log import get_logger
from fabricpulse.diagnosis.wire.messages import LEAF_NAME

log = get_logger(__name__)

_MOST_BYTES = 4 << 20
# The file is read so often, and counts for so long after it was written: lldpd itself forgets a neighbour after two
# minutes.
_PAUSE_S = 15.0
_OLD_S = 300.0
# By which the clock of a file system may be ahead. A file from before the clock was set back would count for hours.
_AHEAD_S = 5.0
_SWITCHES = ("bridge", "router")
Leaves = tuple[tuple[str, str], ...]


class LldpLeaves:
    """Of one host. leaves : of its devices that have one, by device; none once the file could not be read for long."""

    def __init__(self, path: str, devices: Callable[[], Collection[str]]) -> None:
        """devices : those that are looked for."""
        self._path = Path(path)
        self._devices = devices
        self._error = ""
        self._written_s = -math.inf  # on time.monotonic
        self.leaves: Leaves = ()

    async def run(self) -> None:
        """Follows the file until cancelled."""
        while True:
            await self.read(time.monotonic())
            await asyncio.sleep(_PAUSE_S)

    async def read(self, now_s: float) -> None:
        """Once. now_s : monotonic."""
        try:
            text, age_s = await asyncio.to_thread(read_recent, self._path, time.time())
            self.leaves = tuple(sorted(leaves_of(text, self._devices()).items()))
        except (OSError, ValueError, RecursionError) as error:
            # It may just be written anew, in place.
            if now_s - self._written_s > _OLD_S:
                self.leaves = ()
            if str(error) != self._error:
                log.warning("LLDP neighbours cannot be read", file=str(self._path), error=str(error))
            self._error = str(error)
        else:
            self._written_s, self._error = now_s - age_s, ""


def read_recent(path: Path, now_s: float) -> tuple[bytes, float]:
    """The file, if it was written in the last minutes, and how long ago, s. now_s : since 1970. Raises OSError,
    ValueError if it is old, or nobody knows how old.
    """
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        age_s = now_s - status.st_mtime
        if age_s > _OLD_S:
            raise ValueError(f"it has not been written for {_OLD_S / 60:.0f} minutes")
        if age_s < -_AHEAD_S:
            raise ValueError("it was written in the future: has the clock been set back?")
        return file.read(_MOST_BYTES), max(age_s, 0.0)


def leaves_of(text: bytes, devices: Collection[str]) -> dict[str, str]:
    """The switch beside each of these devices, by its system name; none where two are, or its name is none that a label
    may have. text : of `lldpctl -f json` or `json0`, lldpd 0.9 and later. Raises ValueError for anything else.
    """
    document = json.loads(text)
    try:
        found: dict[str, set[Any]] = {}
        for device, neighbour in _interfaces(document["lldp"]):
            if device in devices:
                found.setdefault(device, set()).update(_switches(neighbour.get("chassis", {})))
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ValueError("it is not what lldpctl -f json writes") from None
    names = {device: switches.pop() for device, switches in found.items() if len(switches) == 1}
    return {
        device: name for device, name in names.items() if isinstance(name, str) and LEAF_NAME.fullmatch(name)
    }


def _interfaces(lldp: Any) -> Iterator[tuple[str, Any]]:
    """Devices, each as often as it has neighbours. One of them is no list in `json`; in `json0` everything is one."""
    for part in lldp if isinstance(lldp, list) else [lldp]:
        interfaces = part.get("interface", [])
        for one in interfaces if isinstance(interfaces, list) else [interfaces]:
            if isinstance(one.get("name"), str):
                yield one["name"], one
                continue
            yield from one.items()


def _switches(chassis: Any) -> Iterator[Any]:
    """Names of those that forward packets: a host may say that it is there, too. In `json` the name is the key; in
    `json0` it is a value, of any type in a file that something else has written.
    """
    if isinstance(chassis, list):  # json0
        for one in chassis:
            yield from (entry["value"] for entry in one.get("name", []) if _forwards(one))
        return
    for name, one in chassis.items():
        if isinstance(one, dict) and _forwards(one):
            yield name


def _forwards(chassis: Any) -> bool:
    capabilities = chassis.get("capability", [])
    listed = capabilities if isinstance(capabilities, list) else [capabilities]
    return any(one["enabled"] is True and one["type"].lower() in _SWITCHES for one in listed)
