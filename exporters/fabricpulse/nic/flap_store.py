"""Flap state on disk, so that a restart of the exporter loses no count.

The kernel's counts already cover the restart itself; what is kept here is what the kernel forgets: counts of earlier
incarnations of a netdev, times, and the histogram of outages.
"""

import errno
import json
import math
import os
from dataclasses import asdict, fields
from pathlib import Path

from fabricpulse.core.files import atomic_write, open_regular
from fabricpulse.core.log import get_logger
from fabricpulse.nic.flap_tracker import LinkState

log = get_logger(__name__)

VERSION = 1
# A link takes 300 bytes.
MAX_BYTES = 16 << 20
_FIELDS = {field.name for field in fields(LinkState)}


def load_links(path: Path) -> dict[str, LinkState]:
    """The links in the file; empty when there is none or it is of no use, which is logged."""
    try:
        data = json.loads(_read(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning(
            "flap state cannot be read, starting from the kernel's counts", file=str(path), error=str(error)
        )
        return {}
    try:
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}")
        return {str(name): _state(raw) for name, raw in data["links"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning(
            "flap state is of another form, starting from the kernel's counts",
            file=str(path),
            error=str(error),
        )
        return {}


def _read(path: Path) -> bytes:
    """The file, which must be one: opening a FIFO would wait for a writer. Raises OSError."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, "larger than 16 MB")
        return file.read()


def _state(raw: dict[str, object]) -> LinkState:
    state = LinkState(**{key: value for key, value in raw.items() if key in _FIELDS})  # type: ignore[arg-type]
    numbers = (
        state.ifindex,
        state.up_count,
        state.down_count,
        state.up_offset,
        state.down_offset,
        state.unobserved,
    )
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("a count is not a number")
    if not all(isinstance(count, int) and count >= 0 for count in state.flap_counts):
        raise ValueError("the histogram is not made of counts")
    times = [
        state.flap_seconds,
        *(time_s for time_s in (state.down_since_s, state.last_transition_s) if time_s is not None),
    ]
    if not all(isinstance(time_s, int | float) and math.isfinite(time_s) for time_s in times):
        raise ValueError("a time is not a number")
    return state


def save_links(path: Path, links: dict[str, LinkState]) -> None:
    """Replaces the file atomically, without waiting for the disk: a power cut is a reboot, which counts anew anyway.

    Raises OSError.
    """
    data = {"version": VERSION, "links": {name: asdict(state) for name, state in links.items()}}
    atomic_write(path, json.dumps(data, separators=(",", ":")), durable=False)
