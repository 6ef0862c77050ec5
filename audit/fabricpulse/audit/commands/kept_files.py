"""Runs in files, and the reports of one host that its agent keeps."""

from pathlib import Path

from fabricpulse.audit.compare.runs import run_of
from fabricpulse.audit.model import HostReport, Run
from fabricpulse.audit.storage import read
from fabricpulse.core.errors import UserError


def read_run(path: Path) -> Run:
    """The run, or of the report of a host the run over this host alone. Raises UserError."""
    try:
        return read(path, Run)
    except UserError as error:
        try:
            report = read(path, HostReport)
        except UserError:
            raise error from None
    return run_of([report], {}, None, "", (report.host,), report.collected_at, report.duration_s)
