"""Fleet time."""

from collections.abc import Iterator

from fabricpulse.audit.host.check import Check
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import Outcome, failed, not_applicable, passed
from fabricpulse.core.shm.clock_page import ClockStatus

CHECK = Check(
    id="clock-synchronized",
    category="node",
    severity="warning",
    title="Fleet time",
    proves="The host follows fleet time, so its one-way delays mean something.",
    how="The clock page of the clocksync sidecar in the run directory.",
    fix=(
        "`fabricpulse clocksync status` says why; start `fabricpulse-clocksync-sidecar` where there is no "
        "page."
    ),
)


def run(host: HostReader) -> Iterator[Outcome]:
    """Outcomes of the subjects."""
    status = host.clock_status()
    if status is None:
        yield not_applicable("no clocksync sidecar on this host")
    elif status is ClockStatus.SYNCHRONIZED:
        yield passed("synchronized")
    else:
        yield failed(status.name.lower(), status=status.name.lower())
