"""How much a link that jobs seem to share can carry at most, by what they have carried lately. Pure.

Jobs that share one full link, and jobs that fill a link each, look the same to agents. But a link that carried less
than this while all of their lanes were congested carries no more now: what exceeds it comes over other links.
"""

from fabricpulse.remediation.receiver.config import RebalanceConfig
from fabricpulse.remediation.receiver.lane_evidence import LaneEvidence
from fabricpulse.remediation.receiver.lane_planner import Proposal, bounded, least_carried

# A span is a part of the window over which goodput is measured, since the plugin may leave a full link within seconds;
# and has several reports at least.
_PART, _SHORTEST_S = 0.5, 4.0
# What was found for some jobs is taken for so long; of others so many are looked into at once, the rest later.
_VALID_S = 20.0
_AT_ONCE = 8


class LinkBounds:
    """Bounds of one configuration."""

    def __init__(self, config: RebalanceConfig, evidence: LaneEvidence) -> None:
        self._span_s = max(_SHORTEST_S, _PART * config.window_s)
        self._evidence = evidence
        # Lanes -> until when it is valid, bytes per second.
        self._known: dict[tuple[str, ...], tuple[float, float]] = {}
        self._left = _AT_ONCE

    def begin(self, now: float) -> None:
        """A search begins."""
        self._left = _AT_ONCE
        self._known = {
            lanes: known for lanes, known in self._known.items() if now < known[0] <= now + _VALID_S
        }

    def bounded(self, proposal: Proposal, now: float) -> Proposal | None:
        """The proposal, with no more predicted than that allows; None if it must wait for the next search."""
        sharing = proposal.sharing
        if sharing is None:
            return proposal
        lanes = tuple(lane.key for own in sharing.lanes for lane in own)
        if lanes not in self._known:
            if not self._left:
                return None
            self._left -= 1
            spans = self._evidence.spans(lanes, self._span_s, now)
            self._known[lanes] = now + _VALID_S, least_carried(sharing, spans)
        return bounded(proposal, self._known[lanes][1])
