"""Swap."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

CHECK = Check(
    id="swap",
    category="node",
    severity="warning",
    title="Swap",
    proves="Nothing is swapped out: what a GPU job waits for is in memory.",
    how="SwapTotal and SwapFree of /proc/meminfo.",
    fix="`swapoff -a` on compute hosts, and remove it from /etc/fstab; find out what needed the memory.",
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    text = host.text("/proc/meminfo") or ""
    found = {key: int(kib) for key, kib in re.findall(r"^(\w+): +([0-9]{1,15}) kB$", text, re.MULTILINE)}
    if "SwapTotal" not in found or "SwapFree" not in found:
        yield unknown("not in /proc/meminfo")
        return
    used = found["SwapTotal"] - found["SwapFree"]
    # Some idle pages of a daemon are no harm.
    if used > 1 << 20:
        yield failed(f"{used >> 10} MiB in use", used_kib=used, total_kib=found["SwapTotal"])
    else:
        yield passed(f"{used >> 10} MiB in use" if found["SwapTotal"] else "none")
