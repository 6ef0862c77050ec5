"""Running the checks of one host."""

import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from fabricpulse.audit.boot import BOOT_ID, HOSTNAME, MACHINE_ID, machine_of
from fabricpulse.audit.host.attributes import values_of
from fabricpulse.audit.host.check import HostCheck
from fabricpulse.audit.host.host_reader import HostReader
from fabricpulse.audit.model import HostReport, Outcome, Result, Value, clip, unknown
from fabricpulse.audit.registry import host_checks
from fabricpulse.core.errors import is_exhausted
from fabricpulse.core.log import get_logger

log = get_logger(__name__)

_VERSION = version("fabricpulse")

# A check that reads a NIC whose firmware does not answer hangs in the kernel: it is left behind.
CHECK_PATIENCE_S = 5.0
# For all checks of a host; those that are left then are unknown.
PATIENCE_S = 20.0
MOST_OUTCOMES = 512

T = TypeVar("T")


def audit_host(
    name: str,
    reader: HostReader,
    *,
    checks: Sequence[HostCheck] | None = None,
    clock: Callable[[], float] = time.time,
    check_patience_s: float = CHECK_PATIENCE_S,
    patience_s: float = PATIENCE_S,
    progress: Callable[[str], None] = lambda _: None,
) -> HostReport:
    """The report of a host, whatever state it is in: raises nothing.

    A check that breaks or does not come back is unknown and costs no other. progress : gets the identifier of each
    check before it is made.
    """
    started_at, begun = clock(), time.monotonic()
    results: list[Result] = []
    for entry in host_checks() if checks is None else checks:
        progress(entry.check.id)
        left = min(check_patience_s, begun + patience_s - time.monotonic())
        outcomes = _within(left, lambda entry=entry: _outcomes(entry, reader), entry.check.id)  # type: ignore[misc]
        if outcomes is None:
            outcomes = [
                unknown(f"did not end within {check_patience_s:g} s: the host does not answer its reader")
            ]
        results += [Result(entry.check.id, entry.check.category, entry.check.severity, o) for o in outcomes]
    progress("values")
    left = min(check_patience_s, begun + patience_s - time.monotonic())
    values: tuple[Value, ...] = _within(left, lambda: _values(reader), "values") or ()
    return HostReport(
        name,
        started_at,
        round(time.monotonic() - begun, 6),
        tuple(results),
        values,
        _VERSION,
        boot=clip(_text(reader, BOOT_ID), 128),
        machine=machine_of(_text(reader, MACHINE_ID)),
        rails=tuple(sorted(name[:128] for name in reader.rails)[:1024]),
        hostname=clip(_text(reader, HOSTNAME), 128),
    )


def _text(reader: HostReader, path: Path) -> str:
    """ "" where it is not known."""
    try:
        return reader.text(str(path)) or ""
    except OSError:
        return ""


def _outcomes(entry: HostCheck, reader: HostReader) -> list[Outcome]:
    found: list[Outcome] = []
    try:
        for outcome in entry.run(reader):
            found.append(outcome)
            if len(found) >= MOST_OUTCOMES:
                break
    except Exception as error:
        if is_exhausted(error):
            return [*found, unknown("this process may open no more files: nothing of the host could be read")]
        log.exception("a check has failed itself", check=entry.check.id)
        found.append(unknown(clip(f"the check broke: {type(error).__name__}: {error}")))
    return found


def _values(reader: HostReader) -> tuple[Value, ...]:
    try:
        return values_of(reader)
    except Exception:
        log.exception("the values of this host cannot be collected")
        return ()


def _within(patience_s: float, work: Callable[[], T], name: str) -> T | None:
    """What `work` returns, None if it does not within the patience."""
    if patience_s <= 0:
        return None
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(work()), name=f"audit-{name}"[:15], daemon=True)
    thread.start()
    thread.join(patience_s)
    return found[0] if found else None
