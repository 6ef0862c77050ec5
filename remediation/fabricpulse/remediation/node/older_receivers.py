"""What an agent says to a receiver of the release before, which refuses a report with a value that it does not know."""

import msgspec

from fabricpulse.remediation.protocol import Report


def for_older(report: Report) -> Report:
    """The report in the values of protocol that every receiver knows: that jobs of one user have stalled is a stall."""
    return msgspec.structs.replace(
        report,
        results=[
            msgspec.structs.replace(result, traffic="stalled")
            if result.traffic == "partly_stalled"
            else result
            for result in report.results
        ],
    )
