"""Decodes agents' reports, also those of a newer agent: what a value says that this receiver does not know is unknown.

Fields that it does not know are passed over by msgspec itself. A report that was refused for one new value would be
refused again and again, and the host would count as lost: in an upgrade agents may come first.
"""

from typing import Any, get_args

import msgspec

from fabricpulse.remediation.protocol import Health, HeldNic, Report, Result, Traffic

_OUTCOMES = get_args(Result.__annotations__["outcome"])
_DESIRED = get_args(HeldNic.__annotations__["desired"])
_HEALTH = get_args(Health)
_TRAFFIC = get_args(Traffic)


def decode_report(body: bytes) -> Report:
    """The report. Raises msgspec.DecodeError for one that is none, or out of bounds."""
    try:
        return msgspec.json.decode(body, type=Report)
    except msgspec.ValidationError:
        return msgspec.convert(_known(msgspec.json.decode(body)), Report)


def _known(report: Any) -> Any:
    """Without results whose outcome is not known, health and desired states that are not; what was seen of the traffic
    counts as not known."""
    if not isinstance(report, dict):
        return report
    found = dict(report)
    if isinstance(results := report.get("results"), list):
        found["results"] = [_result(entry) for entry in results if not _is_new(entry, "outcome", _OUTCOMES)]
    if isinstance(health := report.get("health"), dict):
        found["health"] = {
            device: state for device, state in health.items() if not _is_text_beside(state, _HEALTH)
        }
    if isinstance(held := report.get("held"), dict):
        found["held"] = {device: nic for device, nic in held.items() if not _is_new(nic, "desired", _DESIRED)}
    return found


def _result(entry: Any) -> Any:
    return entry | {"traffic": ""} if _is_new(entry, "traffic", _TRAFFIC) else entry


def _is_new(entry: Any, field: str, known: tuple[str, ...]) -> bool:
    return isinstance(entry, dict) and _is_text_beside(entry.get(field), known)


def _is_text_beside(value: Any, known: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value not in known
