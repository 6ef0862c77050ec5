"""Whether a fault has ended that some flows still seem to suffer from. Pure.

What a fault has lost stays in the windows of evidence for a while after it has ended. When another fault begins that
some of its flows cross, the old one would explain their losses, too.
"""

from scipy.special import pdtr

from fabricpulse.diagnosis.flows.flow_table import Floats

# What counts as recent: the shortest time, and one in which so many losses would come at the previous rate.
_RECENT_S, _LONGEST_S, _ENOUGH = 4.0, 15.0, 30.0
# Losses before that, and the seconds that they spread over, without which nothing is known of their rate.
_FEWEST, _SHORTEST_S = 8, 2.0
_CHANCE = 0.005


def has_ended(moments_s: Floats, now_s: float) -> bool:
    """Whether there were so few losses in the last seconds that chance, at the previous rate, would leave so few one
    time in two hundred. moments_s : of losses of the flows that cross the component, one a flow and report, ascending.
    """
    rate = _rate(moments_s[moments_s <= now_s - _RECENT_S])
    if rate == 0:
        return False
    return any(
        _few(moments_s, now_s, s) for s in (_RECENT_S, min(max(_RECENT_S, _ENOUGH / rate), _LONGEST_S))
    )


def _few(moments_s: Floats, now_s: float, recent_s: float) -> bool:
    before = moments_s[moments_s <= now_s - recent_s]
    rate = _rate(before)
    return rate > 0 and bool(pdtr(len(moments_s) - len(before), rate * recent_s) < _CHANCE)


def _rate(moments_s: Floats) -> float:
    """Losses a second; 0 = not known."""
    if len(moments_s) < _FEWEST or moments_s[-1] - moments_s[0] < _SHORTEST_S:
        return 0.0
    return float((len(moments_s) - 1) / (moments_s[-1] - moments_s[0]))
