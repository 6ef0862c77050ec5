"""How much of the journal alerts may fill. Pure.

Lines are kept for ever, and each alert causes some: it begins, is blocked, ends, is notified. No line about a decision,
an action or a command is ever left out.
"""

from fabricpulse.remediation.receiver.state.model import Bucket
from fabricpulse.remediation.receiver.state.transaction import Transition

# What alerts alone bring about, as often as they come and go.
BOUNDED = frozenset(
    {
        "episode_firing",
        "episode_refired",
        "episode_resolved",
        "episode_expired",
        "alerts_left_out",
        "notify",
        "blocked",
        "awaiting_approval",
        "plan_dropped",
        "hold_started",
        "hold_ended",
        "hold_restarted",
        "hold_stopped",
        "hold_resumed",
        "not_kept",
        "kept",
    }
)
# Three lines of each of 200,000 alerts at once; from then on 350 MB a day.
BURST_BYTES = 256e6
BYTES_PER_S = 4e3
# Lines that are sent as notifications: they queue up at each destination.
NOTIFY_BURST = 2_000
NOTIFY_PER_S = 1.0
# Of a line with its hash and its row.
_LINE_BYTES = 400
_LOG_EVERY_S = 60.0


class LineLimit:
    """A token bucket of bytes, and one of lines that are notified. left_out : lines so far without room."""

    def __init__(self, burst_bytes: float = BURST_BYTES, bytes_per_s: float = BYTES_PER_S) -> None:
        self._burst, self._bytes_per_s = burst_bytes, bytes_per_s
        self._bucket = Bucket(burst_bytes, 0.0)
        self._notify_bucket = Bucket(NOTIFY_BURST, 0.0)
        self.left_out = 0
        self._logged = 0
        self._logged_at = float("-inf")

    def limited(self, lines: list[Transition], now: float) -> list[Transition]:
        """The lines that are written, in their order; once a minute with one that says how many were not."""
        refill = max(0.0, now - self._bucket.at) * self._bytes_per_s
        tokens = min(self._burst, self._bucket.tokens + refill)
        notify_refill = max(0.0, now - self._notify_bucket.at) * NOTIFY_PER_S
        notify_tokens = min(NOTIFY_BURST, self._notify_bucket.tokens + notify_refill)
        kept = []
        for line in lines:
            size = _size(line) if line.event in BOUNDED else 0
            notified = line.event == "notify"
            if size > tokens or notified > notify_tokens:
                self.left_out += 1
                continue
            tokens -= size
            notify_tokens -= notified
            kept.append(line)
        self._bucket, self._notify_bucket = Bucket(tokens, now), Bucket(notify_tokens, now)
        if self.left_out > self._logged and not 0 <= now - self._logged_at < _LOG_EVERY_S:
            kept.append(Transition("fleet", "lines_left_out", {"lines": self.left_out - self._logged}))
            self._logged, self._logged_at = self.left_out, now
        return kept


def _size(line: Transition) -> int:
    labels: dict[str, str] = line.detail.get("labels", {})
    # Text takes up to six bytes a character in JSON.
    return _LINE_BYTES + sum(6 * (len(name) + len(value)) for name, value in labels.items())
