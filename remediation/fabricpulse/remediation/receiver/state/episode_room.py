"""How many alerts are remembered."""

from fabricpulse.remediation.receiver.payload import Alert
from fabricpulse.remediation.receiver.state.transaction import Transaction

# Episodes that are remembered: one for each NIC of the largest fleets, and for three others of each.
MAX_EPISODES = 200_000


class EpisodeRoom:
    """Room for new episodes in one event: alerts about invented NICs must not fill the memory."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._left = MAX_EPISODES - len(transaction.episodes)
        self._left_out = 0

    def admits(self, alert: Alert, known: bool) -> bool:
        """Whether this alert may be taken over; one that is known always is."""
        if known or not alert.firing:
            return True
        self._left -= 1
        self._left_out += self._left < 0
        return self._left >= 0

    def close(self) -> None:
        """Logs how many were left out."""
        if self._left_out:
            self._transaction.log("fleet", "alerts_left_out", alerts=self._left_out, remembered=MAX_EPISODES)
