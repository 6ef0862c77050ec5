"""How large a report may be. Pure."""

import msgspec

from fabricpulse.remediation.protocol import MAX_REPORT_BYTES, Report


def fitting(report: Report) -> Report:
    """The report with as much as the receiver takes: of a larger one lanes are left out, the last first, then what
    operations said.

    Names and messages are texts of processes: one character may take six bytes. A report that is refused for its size
    would be refused again and again, and the host would be unknown.
    """
    while len(msgspec.json.encode(report)) > MAX_REPORT_BYTES:
        if report.lanes:
            report = msgspec.structs.replace(report, lanes=report.lanes[: len(report.lanes) // 2])
            continue
        results = [msgspec.structs.replace(result, message="") for result in report.results]
        if results == report.results:
            break
        report = msgspec.structs.replace(report, results=results)
    return report
