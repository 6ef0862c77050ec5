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
# Some come by chance later, and make the rate before look as if it were theirs: longer ago it is not. What was lost at
# one moment so long ago, and hardly again, was a burst.
_LONG_AGO_S = (30.0, 60.0)
_CHANCE = 0.005


def has_ended(moments_s: Floats, now_s: float) -> bool:
    """Whether there were so few losses in the last seconds that chance, at the previous rate, would leave so few one
    time in two hundred. moments_s : of losses of the flows that cross the component, one a flow and report, ascending.
    """
    if any(_few(moments_s, now_s, s, at_once=True) for s in _LONG_AGO_S):
        return True
    rate = _rate(moments_s[moments_s <= now_s - _RECENT_S])
    if rate == 0:
        return False
    return any(
        _few(moments_s, now_s, s) for s in (_RECENT_S, min(max(_RECENT_S, _ENOUGH / rate), _LONGEST_S))
    )


def _few(moments_s: Floats, now_s: float, recent_s: float, *, at_once: bool = False) -> bool:
    before = moments_s[moments_s <= now_s - recent_s]
    rate = _rate(before, at_once=at_once)
    return rate > 0 and bool(pdtr(len(moments_s) - len(before), rate * recent_s) < _CHANCE)


def _rate(moments_s: Floats, *, at_once: bool = False) -> float:
    """Losses a second; 0 = not known, as of those that came at once, unless they count, too."""
    spread_s = float(moments_s[-1] - moments_s[0]) if len(moments_s) >= _FEWEST else 0.0
    if spread_s < _SHORTEST_S and not (at_once and len(moments_s) >= _FEWEST):
        return 0.0
    return (len(moments_s) - 1) / max(spread_s, _SHORTEST_S)
