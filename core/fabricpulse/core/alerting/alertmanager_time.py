"""The clock offset of an Alertmanager, from the Date header of its responses (RFC 9110, 6.6.1): pure.

Alertmanager takes an alert for resolved when its endsAt lies before Alertmanager's own time, and refuses one that
begins after it ends. Stamped by a host whose clock is minutes behind, a firing alert would count as resolved.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime

# Below this the two clocks count as one: Date has whole seconds, and an alert lives for minutes.
TOLERATED_S = 2.0
# Larger offsets are ignored: not even a lost RTC battery causes one, and the sum might be no valid timestamp.
_MAX_OFFSET_S = 100 * 365 * 86_400.0


class AlertmanagerTime:
    """How far Alertmanager's clock is ahead of ours, seconds; 0 before the first response.

    ahead_s : best estimate. min_ahead_s : lower bound by the last response.
    """

    def __init__(self) -> None:
        self.ahead_s = self.min_ahead_s = 0.0

    def learn(self, date: str, sent_s: float, received_s: float) -> bool:
        """Takes the Date of a response. sent_s, received_s : our wall clock at request and response, s since 1970.

        Returns whether the offset has changed and is not zero. What is no date is ignored.
        """
        try:
            date_time = parsedate_to_datetime(date)
            if date_time.tzinfo is None:
                date_time = date_time.replace(tzinfo=UTC)
            date_s = date_time.timestamp()
        except (ValueError, OverflowError):
            return False
        if abs(date_s - received_s) > _MAX_OFFSET_S:
            return False
        # Written between the two, in the second that begins with it.
        least, most = date_s - received_s, date_s + 1 - sent_s
        self.min_ahead_s = least
        if least - TOLERATED_S <= self.ahead_s <= most + TOLERATED_S:
            return False
        ahead_s = (least + most) / 2
        self.ahead_s = ahead_s if abs(ahead_s) > TOLERATED_S else 0.0
        return self.ahead_s != 0
