"""CPUs that are offline."""

import re
from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, passed, unknown

BASE = "/sys/devices/system/cpu"

CHECK = Check(
    id="cpu-offline",
    category="node",
    severity="warning",
    title="CPUs that are offline",
    proves="All CPUs that the host has are in use.",
    how=(
        "offline and present of /sys/devices/system/cpu: numbers that the kernel keeps free for CPUs that might be "
        "added are no CPUs. With SMT switched off, the siblings that this takes are not counted."
    ),
    fix=(
        "Read the kernel log for why a CPU was taken out (machine checks, `nosmt`, `maxcpus=`), and set "
        "it online or service the host."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    online, offline = cpus(host.text(f"{BASE}/online")), cpus(host.text(f"{BASE}/offline"))
    if not online or offline is None:
        yield unknown(f"{BASE}/online or offline cannot be read")
        return
    present = cpus(host.text(f"{BASE}/present"))
    lost = sorted(offline if present is None else offline & present)
    siblings = host.value(f"{BASE}/smt/control") in ("off", "forceoff") and len(lost) == len(online)
    if lost and not siblings:
        text = host.text(f"{BASE}/offline")
        yield failed(f"{len(lost)} offline, {lost[0]} first", offline=text)
    else:
        yield passed("all online, SMT is off" if siblings else "all online")


def cpus(text: str | None) -> set[int] | None:
    """The numbers of "0-3,8"; None for what is no list of CPUs."""
    if text is None or not re.fullmatch(r"(?:[0-9]{1,5}(?:-[0-9]{1,5})?(?:,(?!$)|$))*", text, re.ASCII):
        return None
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
