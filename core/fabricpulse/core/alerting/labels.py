"""Labels that a setting adds to an alert."""

import re
from collections.abc import Iterable, Mapping

_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


def check_labels(labels: Mapping[str, str], own: Iterable[str]) -> None:
    """Raises ValueError for one that Alertmanager would refuse, or that the daemon sets itself (`own`)."""
    for label, value in labels.items():
        if label in own:
            raise ValueError(f"label {label!r} is set by the exporter, leave it out of labels")
        if not _NAME.fullmatch(label):
            raise ValueError(f"{label!r} is no name of a label: letters, digits and _, no digit first")
        if not value:
            raise ValueError(f"label {label!r} is empty, which Alertmanager takes for no label")


def check_resolve_hold(resolve_hold_s: float, resend_s: float) -> None:
    """Raises ValueError where an alert would expire while its end is held back."""
    if resolve_hold_s > 3 * resend_s:
        raise ValueError(
            f"resolve_hold_s ({resolve_hold_s:g}) must not be above 3 x resend_s ({3 * resend_s:g}); "
            "the alert would expire in that time; raise resend_s, or set resolve_hold_s to the scrape and "
            "evaluation intervals of Prometheus together"
        )
