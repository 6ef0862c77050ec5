"""Alertmanager's webhook body, version 4.

The format grows without a new version number (`notification_reason`, `routeLabels`), so unknown fields are ignored; and
one alert that cannot be read must not cost the others of its group, so alerts are decoded one by one.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec

VERSION = "4"
_MAX_LABELS = 256
_MAX_TEXT = 4096
# Values of one body: each takes 70 bytes of memory, however short it is. A body of the largest size has fewer, unless
# they have less than 16 bytes on average; alerts are dates, names and texts.
_MAX_VALUES = 4_000_000
# ValueError: text that is not UTF-8, which msgspec leaves as it comes. OverflowError: a moment before the year 1.
_UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError, OverflowError)


class PayloadError(Exception):
    """The body is not an Alertmanager webhook, version 4: sending it again will not help."""


class TooManyAlertsError(PayloadError):
    """A webhook of more alerts than are taken at once."""


class _Envelope(msgspec.Struct, rename="camel"):
    version: str
    alerts: list[msgspec.Raw]
    truncated_alerts: int = 0


class _Alert(msgspec.Struct, rename="camel"):
    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    fingerprint: str
    starts_at: datetime
    # Not read before it is needed: what is wrong with it must not cost the alert.
    ends_at: msgspec.Raw = msgspec.Raw(b"null")
    annotations: dict[str, str] = {}


@dataclass(frozen=True)
class Alert:
    """One alert. starts_at, ends_at : seconds since 1970, as the sender's clock has them; ends_at 0 while it fires, or
    if that is not known. suppressed : silenced or inhibited."""

    firing: bool
    fingerprint: str
    starts_at: float
    labels: dict[str, str]
    suppressed: bool = False
    ends_at: float = 0.0

    @property
    def name(self) -> str:
        """The alert's name, "" if it has none."""
        return self.labels.get("alertname", "")


@dataclass(frozen=True)
class DeadLetter:
    """An alert that could not be read: its bytes (cut to 4 KiB) and why."""

    body: bytes
    reason: str


@dataclass(frozen=True)
class Notification:
    """A decoded body. digest : SHA-256 of the body, for statistics; effects are never deduplicated by it."""

    digest: str
    alerts: tuple[Alert, ...]
    dead_letters: tuple[DeadLetter, ...]
    truncated: int


def parse_notification(body: bytes, max_alerts: int = 2**31) -> Notification:
    """Decodes a webhook body. Raises PayloadError when it is not one at all, TooManyAlertsError before it reads any of
    more than max_alerts, or makes more values than a fleet's alerts have."""
    _check_values(body)
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
    except _UNREADABLE as error:
        raise PayloadError(f"not an Alertmanager webhook: {error}") from error
    if envelope.version != VERSION:
        raise PayloadError(f"webhook version {envelope.version[:20]!r}, expected {VERSION!r}")
    if len(envelope.alerts) > max_alerts:
        raise TooManyAlertsError(f"{len(envelope.alerts)} alerts in one body, {max_alerts} are taken")
    alerts: list[Alert] = []
    dead: list[DeadLetter] = []
    for raw in envelope.alerts:
        try:
            alerts.append(_alert(bytes(raw)))
        except _UNREADABLE as error:
            dead.append(DeadLetter(bytes(raw)[:_MAX_TEXT], str(error)))
    return Notification(
        hashlib.sha256(body).hexdigest(), tuple(alerts), tuple(dead), max(0, envelope.truncated_alerts)
    )


def parse_polled(body: bytes) -> tuple[Alert, ...]:
    """Decodes the answer of Alertmanager's `GET /api/v2/alerts`: what is active there now. Raises PayloadError, as for
    a webhook also for more values than a fleet's alerts have."""
    _check_values(body)
    try:
        raws = msgspec.json.decode(body, type=list[msgspec.Raw])
    except _UNREADABLE as error:
        raise PayloadError(f"not a list of alerts: {error}") from error
    alerts = []
    for raw in raws:
        try:
            polled = msgspec.json.decode(raw, type=_Polled)
            starts_at = _seconds(polled.starts_at)
        except _UNREADABLE:
            continue  # another receiver's alert with labels that mean nothing to us
        if not is_fingerprint(polled.fingerprint) or not _are_labels(polled.labels):
            continue
        suppressed = polled.status.state != "active"
        alerts.append(Alert(True, polled.fingerprint, starts_at, polled.labels, suppressed))
    return tuple(alerts)


def parse_alerts(body: bytes) -> tuple[Alert, ...]:
    """The alerts of a webhook body, of a list of alerts, or of one alert. Raises PayloadError.

    For people who ask what would be done about an alert: what they leave out gets a value that fits.
    """
    try:
        document = msgspec.json.decode(body)
        if isinstance(document, dict):
            document = document.get("alerts", [document])
        if not all("labels" in alert for alert in document):
            raise PayloadError("not an alert, a list of alerts or a webhook body: an alert without labels")
        return tuple(
            Alert(
                firing=alert.get("status") != "resolved",
                fingerprint=str(alert.get("fingerprint") or "asked"),
                starts_at=_seconds(msgspec.convert(alert["startsAt"], datetime))
                if alert.get("startsAt")
                else 0.0,
                labels=msgspec.convert(alert["labels"], dict[str, str]),
            )
            for alert in document
        )
    except (*_UNREADABLE, msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise PayloadError(f"not an alert, a list of alerts or a webhook body: {error!r}") from error


class _PolledStatus(msgspec.Struct):
    state: str


class _Polled(msgspec.Struct, rename="camel"):
    labels: dict[str, str]
    fingerprint: str
    starts_at: datetime
    status: _PolledStatus


def _alert(raw: bytes) -> Alert:
    decoded = msgspec.json.decode(raw, type=_Alert)
    if not _are_labels(decoded.labels):
        raise ValueError("more labels, or longer ones, than any rule gives")
    if not is_fingerprint(decoded.fingerprint):
        raise ValueError("no usable fingerprint")
    firing = decoded.status == "firing"
    ends_at = 0.0 if firing else _end(decoded.ends_at)
    return Alert(firing, decoded.fingerprint, _seconds(decoded.starts_at), decoded.labels, ends_at=ends_at)


def _end(raw: msgspec.Raw) -> float:
    """0 for what is no moment after 1970."""
    try:
        return max(0.0, _seconds(msgspec.json.decode(raw, type=datetime)))
    except _UNREADABLE:
        return 0.0


def _check_values(body: bytes) -> None:
    # Commas in texts are counted as well. No value is without one before it but the first of a list or an object.
    if len(body) > _MAX_VALUES and (values := body.count(b",")) > _MAX_VALUES:
        raise TooManyAlertsError(f"{values} values in one body, {_MAX_VALUES} are taken")


def _are_labels(labels: dict[str, str]) -> bool:
    return len(labels) <= _MAX_LABELS and max(map(len, (*labels, *labels.values())), default=0) <= _MAX_TEXT


def is_fingerprint(text: str) -> bool:
    """Whether this can be an alert's fingerprint; it is the key of a row of the journal."""
    return 0 < len(text) <= 64 and text.isprintable()


def _seconds(moment: datetime) -> float:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
