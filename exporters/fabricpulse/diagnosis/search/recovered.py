"""Whether a fault has ended that some flows still seem to suffer from. Pure.

What a fault has lost stays in the windows of evidence for a while after it has ended. When another fault begins that
some of its flows cross, the old one would explain their losses, too.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, pdtr

from fabricpulse.diagnosis.flows.flow_table import Floats

# What counts as recent: the shortest time, and one in which so many losses would come at the previous rate.
_RECENT_S, _LONGEST_S, _ENOUGH = 4.0, 15.0, 30.0
# Losses before that, and the seconds that they spread over, without which nothing is known of their rate.
_FEWEST, _SHORTEST_S = 8, 2.0
# Some come by chance later, and make the rate before look as if it were theirs: longer ago it is not. What was lost at
# one moment so long ago, and hardly again, was a burst, also of few losses. What flaps does it more often.
_LONG_AGO_S = (22.0, 30.0, 60.0)
_CHANCE = 0.005


def has_ended(moments_s: Floats, excused: NDArray[np.bool_], now_s: float) -> bool:
    """Whether there were so few losses in the last seconds that chance, at the previous rate, would leave so few one
    time in two hundred. moments_s : of losses of the flows that cross the component, one a flow and report, ascending.
    excused : of each whether a restart explains it. Then it does not say that the fault is there yet; but what a
    coordinator that was restarted receives first may be all that it knows of the rate.
    """
    if any(_burst(moments_s, excused, now_s, s) for s in _LONG_AGO_S):
        return True
    rate = _rate(moments_s[moments_s <= now_s - _RECENT_S])
    if rate == 0:
        return False
    usual_s = min(max(_RECENT_S, _ENOUGH / rate), _LONGEST_S)
    return any(_few(moments_s, excused, now_s, s) for s in (_RECENT_S, usual_s))


def _few(moments_s: Floats, excused: NDArray[np.bool_], now_s: float, recent_s: float) -> bool:
    recent = moments_s > now_s - recent_s
    return bool(pdtr(np.count_nonzero(recent & ~excused), _rate(moments_s[~recent]) * recent_s) < _CHANCE)


def _burst(moments_s: Floats, excused: NDArray[np.bool_], now_s: float, recent_s: float) -> bool:
    """The same of all losses since the first one: of so many at random fewer would be before the last seconds."""
    if not len(moments_s) or now_s - moments_s[0] <= recent_s:
        return False
    last = np.count_nonzero((moments_s > now_s - recent_s) & ~excused)
    return bool(bdtr(last, len(moments_s) - 1, recent_s / (now_s - moments_s[0])) < _CHANCE)


def _rate(moments_s: Floats) -> float:
    """Losses a second; 0 = not known, as of those that came at once."""
    spread_s = float(moments_s[-1] - moments_s[0]) if len(moments_s) >= _FEWEST else 0.0
    return (len(moments_s) - 1) / spread_s if spread_s >= _SHORTEST_S else 0.0
