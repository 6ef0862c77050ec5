"""What time it is at an Alertmanager, from the Date of its answers (RFC 9110, 6.6.1): pure.

An alert is over for Alertmanager when its end lies before Alertmanager's own time, and it refuses one that begins after
it ends. Told in the time of a host whose clock is minutes behind, an alert that fires would count as over.
"""

from datetime import UTC
from email.utils import parsedate_to_datetime

# Below this the two clocks count as one: Date has whole seconds, and an alert lives for minutes.
TOLERATED_S = 2.0
# No clock is off by more, a lost RTC battery included; what the sum would be is no time that can be written.
_BELIEVED_S = 100 * 365 * 86_400.0


class AlertmanagerTime:
    """Seconds to add to our wall clock; 0 until an answer says otherwise.

    ahead_s : the best estimate. ahead_least_s : what is certain by the last answer.
    """

    def __init__(self) -> None:
        self.ahead_s = self.ahead_least_s = 0.0

    def learn(self, date: str, asked_s: float, answered_s: float) -> bool:
        """Takes the Date of an answer; asked_s, answered_s : our wall clock, seconds since 1970.

        Returns whether that reveals a difference, or another one than was known. What is no date is ignored.
        """
        try:
            moment = parsedate_to_datetime(date)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            date_s = moment.timestamp()
        except (ValueError, OverflowError):
            return False
        if abs(date_s - answered_s) > _BELIEVED_S:
            return False
        # Written between the two, in the second that begins with it.
        least, most = date_s - answered_s, date_s + 1 - asked_s
        self.ahead_least_s = least
        if least - TOLERATED_S <= self.ahead_s <= most + TOLERATED_S:
            return False
        ahead_s = (least + most) / 2
        self.ahead_s = ahead_s if abs(ahead_s) > TOLERATED_S else 0.0
        return self.ahead_s != 0
