"""Whether a smaller membership is accepted: one that loses many hosts at once is more often a mistake than a decision.

A coordinator that has just started, a file cut short, a DNS zone that was half loaded: taken at its word, it would end
the probing of a whole fleet, and with it every alert.
"""


class ShrinkGuard:
    """Pure. A membership that loses more than `max_share` of the hosts is held back until it has been so for `hold_s`.

    max_share : 0 to 1; 1 holds nothing back. Moments are monotonic seconds.
    """

    def __init__(self, max_share: float, hold_s: float) -> None:
        self._max_share = max_share
        self._hold_s = hold_s
        self._since: float | None = None
        self._hosts: frozenset[str] = frozenset()

    @property
    def holds(self) -> bool:
        """Whether a membership is being held back."""
        return self._since is not None

    def admit(self, before: frozenset[str], after: frozenset[str], now: float) -> bool:
        """Whether `after` may take the place of `before`; both are names of hosts. To be asked each time that `after`
        has been read: another one that shrinks as much restarts its time.
        """
        if not before or len(before - after) <= self._max_share * len(before):
            self._since = None
            return True
        if self._since is None or after != self._hosts:
            self._since, self._hosts = now, after
        if now - self._since < self._hold_s:
            return False
        self._since = None
        return True

    def confirm(self) -> None:
        """A person has asked for it: what is held back is admitted the next time."""
        if self._since is not None:
            self._since = float("-inf")
