"""Reports of a sidecar that has no edges."""

from fabricpulse.clocksync.wire.messages import PROTOCOL, HostInfo, RoundReport


def empty_report(with_info: bool) -> RoundReport:
    """Of host a. with_info : whether it says who the host is."""
    info = HostInfo(1, "", (), (), "none") if with_info else None
    return RoundReport(PROTOCOL, "a", 1, 1, 0, b"", None, None, "", 0, info)
